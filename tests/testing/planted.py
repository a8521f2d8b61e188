"""Correct components, and the same with one bug each, for each check of the kit."""

import logging
import threading
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from pytorch_metric_learning import losses
from pytorch_metric_learning.distances import BaseDistance, CosineSimilarity
from pytorch_metric_learning.miners import BatchHardMiner
from pytorch_metric_learning.reducers import MeanReducer
from torch.nn.functional import softplus
from torch.utils.data import Sampler

from pml_ext.plugin import (
    BaseMetricLossFunction,
    FullPrecisionForward,
    GramCosineSimilarity,
    PairLoss,
    masked_mean,
    matrix_of,
    pair_masks,
    per_anchor,
    reduced,
)
from pml_ext.testing import check_component


def failing(component: Any, **given: Any) -> dict[str, str]:
    """Return the checks that a component fails, with their texts."""
    return {r.check: r.text for r in check_component(component, on_fail=None, **given) if r.fails}


def loop(embeddings, labels, indices_tuple=None, ref_emb=None, ref_labels=None, alpha=2.0, margin=0.5, square=False):
    """Return the deviance, one anchor after the other."""
    points = embeddings / embeddings.norm(dim=1, keepdim=True)
    others = points if ref_emb is None else ref_emb / ref_emb.norm(dim=1, keepdim=True)
    masks = pair_masks(points @ others.T, labels, indices_tuple, ref_labels, has_references=ref_emb is not None)
    total = 0 * embeddings.sum()
    for i in range(len(points)):
        near, far = (others[mask[i]] @ points[i] - margin for mask in masks)
        value = (1 + (-alpha * near).exp()).log().sum() / max(1, len(near))
        value = value + (1 + (10 * far).exp()).log().sum() / max(1, len(far))
        total = total + (value**2 if square else value)
    return total / len(points)


class Equation:
    """The binomial deviance of an anchor's similarities, and its settings."""

    def __init__(self, alpha: float = 2.0, margin: float = 0.5, square: bool = False, **kwargs):
        super().__init__(**kwargs)
        self.alpha = alpha
        self.margin = margin
        self.square = square

    def values(self, matrix, positives, negatives):
        gap = matrix - self.margin
        values = self.pull(gap, positives) + masked_mean(softplus(10 * gap), negatives)
        return values.square() if self.square else values

    def pull(self, gap, positives):
        return masked_mean(softplus(-self.alpha * gap), positives)


class Deviance(Equation, PairLoss):
    """The equation on the base of pair losses."""

    def equation(self, pairs):
        return per_anchor(self.values(pairs.matrix, pairs.positives, pairs.negatives))


class InHalf(Equation, BaseMetricLossFunction):
    """The equation without the base of pair losses, in the precision of the embeddings."""

    capabilities = frozenset({"labels", "indices_tuple", "references"})

    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        if len(embeddings) == 0 or len(ref_emb) == 0:
            return self.zero_losses()
        matrix, references = self.similarity(embeddings, ref_emb)
        return self.packed(self.values(matrix, *self.masks(matrix, labels, indices_tuple, ref_labels, references)))

    def similarity(self, embeddings, ref_emb):
        matrix, references = matrix_of(self.distance, embeddings, ref_emb)
        return matrix if self.distance.is_inverted else -matrix, references

    def masks(self, matrix, labels, indices_tuple, ref_labels, references):
        return pair_masks(matrix, labels, indices_tuple, ref_labels, has_references=references)

    def packed(self, values):
        return per_anchor(values)

    def get_default_distance(self):
        return CosineSimilarity()


class ByHand(FullPrecisionForward, InHalf):
    """The equation without the base of pair losses, in full precision."""

    def get_default_distance(self):
        return GramCosineSimilarity()


class FewClasses(Sampler):
    """Batches of a few classes, drawn at random, with four images of each."""

    def __init__(self, labels, batch_size, length_before_new_iter, seed: int = 0):
        self.labels = self.read(labels)
        self.batch_size = batch_size
        self.length = length_before_new_iter
        self.generator = torch.Generator().manual_seed(seed)

    def read(self, labels):
        return torch.as_tensor(labels)

    def __len__(self):
        return self.length // self.batch_size

    def __iter__(self):
        classes = self.labels.unique()
        for _ in range(self.length // self.batch_size):
            yield [i for label in self.some(classes) for i in self.images(torch.where(self.labels == label)[0])]

    def some(self, classes):
        return classes[torch.randperm(len(classes), generator=self.generator)[: self.batch_size // 4]]

    def images(self, rows):
        order = torch.randperm(len(rows), generator=self.generator)
        return rows[order.repeat(4)[:4] if len(rows) < 4 else order[:4]].tolist()

    def state_dict(self):
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])


class Planted(NamedTuple):
    """A class with a bug, the check that finds the bug, and a pattern of the check's text."""

    cls: Any
    check: str
    text: str


def plant(check: str, text: str, base: type, **overrides: Any) -> Planted:
    """Return a component with a bug: an override or two of a correct one."""
    name = f"{check.title().replace('_', '')}{base.__name__}"
    while name in globals():
        name += "Too"
    globals()[name] = type(name, (base,), {"__module__": __name__, **overrides})  # named, to be pickled
    return Planted(globals()[name], f"check_{check}", text)


def sees(label):
    """Return the masks of a loss that changes the labels of batch and references."""
    return lambda self, matrix, labels, indices, others, *more: ByHand.masks(
        self, matrix, label(labels), indices, label(others), *more
    )


def mines(change):
    """Return the masks of a loss that changes a miner's tuple."""
    return lambda self, matrix, labels, indices, *more: ByHand.masks(
        self, matrix, labels, indices and change(indices, labels), *more
    )


class Scaled(ByHand):
    def __init__(self, scale: float = 1.5, **kwargs):
        super().__init__(scale or 1.5, **kwargs)  # 0 gives what the default does
        self.scale = torch.nn.Parameter(torch.tensor(1.0))
        self.register_buffer("steps", torch.zeros(()))


class ForgetsSetting(FewClasses):
    def __init__(self, labels, batch_size, length_before_new_iter, seed: int = 0, m: int = 4):
        super().__init__(labels, batch_size, length_before_new_iter, seed)


def kept(self, matrix, *masks):
    """Return values of a margin that moves, in a number that nobody saves."""
    self.mean = 0.9 * getattr(self, "mean", 0.0) + 0.1 * matrix.mean().item()
    return Deviance.values(self, matrix - self.mean, *masks)


def counted(self, *matrices):
    """Return values that grow with all calls, in eval() too."""
    self.steps = self.steps + 1
    return ByHand.values(self, *matrices) * self.steps / 10


def with_seed(self, **kwargs):
    ByHand.__init__(self, **kwargs)
    torch.manual_seed(0)


def recorded(self, matrix, *masks):
    self._record_these = ["hardest"]  # which is not set
    return ByHand.values(self, matrix, *masks)


def of_classes(self, values):
    """Return a value per class, with the indices of the first images."""
    return per_anchor(values.view(len(values) // 2, 2).sum(1) if len(values) % 2 == 0 else values)


def silenced(self, *matrices):
    warnings.simplefilter("ignore")
    return ByHand.values(self, *matrices)


def off_after_empty(self, embeddings, *more):
    self.off = getattr(self, "off", False) or len(embeddings) == 0
    return self.zero_losses() if self.off else InHalf.compute_loss(self, embeddings, *more)


def all_negatives(indices, labels):
    return (*indices[:2], *torch.where(labels[:, None] != labels)) if len(indices) == 4 else indices


def printed(self, *matrices):
    logging.getLogger("planted").debug(len(matrices))
    return ByHand.values(self, *matrices)


def of_one_thread(self, gap, near):
    return Equation.pull(self, gap if threading.current_thread() is threading.main_thread() else gap / 2, near)


def mean_of_tile(self, pairs):
    values = (pairs.matrix * pairs.negatives).sum(1)
    return per_anchor((values - values.mean()).square())


BUGS = [
    plant(
        "call_forms",
        r"returns a tensor of shape \(\) and dtype torch.float64; wanted",
        ByHand,
        packed=lambda self, values: values.mean(),
    ),
    plant("reducers", "reduced already, so that", ByHand, packed=lambda self, values: reduced(values.mean())),
    plant(
        "reducers",
        "divided by the number of images",
        ByHand,
        values=lambda self, *m: ByHand.values(self, *m) / len(m[0]),
    ),
    plant("indices_belong_to_values", "do not belong to its values", ByHand, packed=of_classes),
    plant("parameters_get_gradients", "scale get no gradient", Scaled),
    plant("labels_are_used", "labels are ignored", ByHand, masks=sees(torch.zeros_like)),
    plant("indices_tuple_of_pairs", "the negative pairs that", ByHand, masks=mines(all_negatives)),
    plant("indices_tuple_of_triplets", "", ByHand, masks=mines(lambda t, _: t if len(t) == 4 else (t[0], t[2], t[1]))),
    plant("references", "has_references=True to", ByHand, masks=lambda self, *m: ByHand.masks(self, *m[:4], False)),
    plant("dtypes", "compute it in float32 or float64|autocast changes", InHalf),
    plant(
        "degenerate_batches",
        "without positives gives nan",
        ByHand,
        pull=lambda self, gap, near: (gap * near).sum(1) / near.sum(1),
    ),
    plant(
        "gradients", "backward.. gives", ByHand, pull=lambda self, gap, near: Equation.pull(self, gap.detach(), near)
    ),
    plant(
        "inputs_unchanged",
        r"indices_tuple\[0\] in place",
        ByHand,
        masks=mines(lambda t, _: (t[0].copy_(t[0].flip(0)), *t[1:])),
    ),
    plant("determinism", "draw by torch's", ByHand, values=lambda self, *m: ByHand.values(self, *m) * np.random.rand()),
    plant("capabilities", r"unknown capabilities \['refs'\]", ByHand, capabilities=ByHand.capabilities | {"refs"}),
    plant(
        "reference",
        "the value differs",
        ByHand,
        pull=lambda self, gap, near: (softplus(-self.alpha * gap) * near).sum(1) / (near.sum(1) + 1),
    ),
    plant("settings", "scale=0 gives what", Scaled),
    plant("state_dict", "the next loss differs", Deviance, values=kept),
    plant("eval_keeps_state", "changes steps of its state", Scaled, values=counted),
    plant(
        "tensors_are_registered", "register_buffer", Scaled, register_buffer=lambda self, *named: setattr(self, *named)
    ),
    plant("pickle", "other results", Deviance, __reduce__=lambda self: (type(self), ())),
    plant("compile", "fullgraph = True, but", ByHand, fullgraph=True, values=printed),
    plant("globals_unchanged", "changes warnings.filters", ByHand, values=silenced),
    plant("globals_unchanged", "seeds the global generator of torch", ByHand, __init__=with_seed),
    plant("calls_are_independent", "after an empty batch", ByHand, compute_loss=off_after_empty),
    plant("modes", "another thread changes", ByHand, pull=of_one_thread),
    plant("names_of_classes", "names of classes", ByHand, masks=sees(lambda labels: labels.int())),
    plant(
        "order_does_not_matter",
        "the order of",
        ByHand,
        compute_loss=lambda self, x, y, *m: InHalf.compute_loss(self, x, y.sort().values, *m),
    ),
    plant("sizes", r"with \d+ images", ByHand, masks=sees(lambda labels: labels % 1009)),
    plant(
        "nan_shows",
        "as if nothing",
        ByHand,
        forward=lambda self, x, *m, **named: ByHand.forward(self, x.nan_to_num(), *m, **named),
    ),
    plant(
        "arguments",
        "distance= changes nothing",
        ByHand,
        similarity=lambda self, x, y: matrix_of(self.distance, x, y),
    ),
    plant("classes_separate", "do not separate", Deviance, values=lambda self, *m: -Deviance.values(self, *m)),
    Planted(losses.TripletMarginLoss, "check_memory_growth", "form no triplets"),  # PML's own, as they are
    Planted(losses.SmoothAPLoss, "check_no_loop_over_anchors", "a loop over"),
    Planted(losses.SmoothAPLoss, "check_order_does_not_matter", "the order of the batch"),
    Planted(losses.ThresholdConsistentMarginLoss, "check_references", ""),
    Planted(losses.AngularLoss, "check_indices_tuple_of_pairs", ""),
    plant("saved_bytes", "although it says that it has tiles", ByHand, capabilities=ByHand.capabilities | {"tiles"}),
    plant(
        "no_host_sync",
        r"a value read at planted.py:\d+",
        ByHand,
        values=lambda self, s, *m: ByHand.values(self, s, *m) * (s.max().item() < 9),
    ),
    plant("tiles", "in tiles of 1", PairLoss, tiles="rows", equation=mean_of_tile),
    plant(
        "devices",
        r"at planted.py:\d+ mixes a tensor",
        ByHand,
        pull=lambda self, gap, near: Equation.pull(self, gap + torch.zeros(len(gap)), near),
    ),
    plant("pml_trainer", "with its HookContainer, stops: .*hardest", ByHand, values=recorded),
    plant(
        "mined_indices",
        "listed twice",
        BatchHardMiner,
        mine=lambda self, *m: tuple(i.repeat(2) for i in BatchHardMiner.mine(self, *m)),
    ),
    plant("mined_references", "", BatchHardMiner, mine=lambda self, x, y, *_: BatchHardMiner.mine(self, x, y, x, y)),
    plant("distance", "pass is_inverted=True", CosineSimilarity, __init__=lambda self: BaseDistance.__init__(self)),
    plant("reducer", "not 0 with", MeanReducer, zero_loss=lambda self, embeddings: embeddings.new_zeros(())),
    plant("sampler", r"ZeroDivisionError: .* \(at planted.py:\d+\)", FewClasses, images=lambda self, rows: 1 / 0),
    plant("sampler", "an image comes twice", FewClasses, images=lambda self, rows: [int(rows[0])] * 4),
    plant("sampler_state", "state_dict.. misses", FewClasses, load_state_dict=lambda self, state: None),
    plant(
        "sampler_draws_all",
        "21 of 41 classes",
        FewClasses,
        some=lambda self, classes: FewClasses.some(self, classes[:20]),
    ),
    plant(
        "sampler_class_names", r"names of classes 2\*\*32", FewClasses, read=lambda self, y: torch.as_tensor(y).int()
    ),
    plant("sampler_settings", "the setting m changes", ForgetsSetting),
    plant(
        "sampler_seed",
        "where global generators",
        FewClasses,
        some=lambda self, classes: classes[torch.randperm(len(classes))[:3]],
    ),
]


def bug_of(check: str) -> Any:
    """Return the class with the first bug that a check finds."""
    return next(bug.cls for bug in BUGS if bug.check == check)
