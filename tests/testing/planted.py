"""Components with one bug each, of the kinds that authors of plugins make, and the right ones that they derive from.

``python tests/testing/planted.py`` prints which of its fast checks finds each, and the share that is found.
"""

import collections
import copy
import logging
import random
import sys
import threading
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from pytorch_metric_learning import reducers
from torch import nn
from torch.utils.data import Sampler

from pml_ext import registry
from pml_ext.plugin import (
    BaseDistance,
    BaseMetricLossFunction,
    BaseMiner,
    BaseReducer,
    BaseRegularizer,
    CosineSimilarity,
    FullPrecisionForward,
    FullPrecisionMining,
    GramCosineSimilarity,
    PairLoss,
    masked_mean,
    masked_min,
    matrix_of,
    pair_masks,
    per_anchor,
    reduced,
    to_full_precision,
)
from pml_ext.testing import check_component

softplus, normalize = nn.functional.softplus, nn.functional.normalize


class Planted(NamedTuple):
    """A class with a bug, the check that finds it (``check_reference`` for a wrong equation), and how it says so."""

    cls: Any
    kind: str
    words: str
    check: str
    text: str


PLANTED: dict[str, Planted] = {}


def planted(words: str, check: str, text: str = ""):
    """Class decorator: enter the class into the table of planted bugs."""

    def enter(cls):
        assert cls.__name__ not in PLANTED, cls
        PLANTED[cls.__name__] = Planted(cls, registry.kind_of(cls), words, check, text)
        return cls

    return enter


def plant(name: str, base: type, words: str, check: str, text: str = ""):
    """Return a function that plants a bug: an override or two of a right component."""

    def override(**overrides):
        globals()[name] = planted(words, check, text)(type(name, (base,), {"__module__": __name__, **overrides}))

    return override


def eye(matrix):
    """Return the mask of each image's pair with itself."""
    return torch.eye(*matrix.shape, dtype=torch.bool, device=matrix.device)


# Right losses: one equation on `PairLoss` and by hand, with settings, with two terms, and with a center per class.


def loop(embeddings, labels, indices_tuple=None, alpha=2.0, beta=10.0, margin=0.5, weight=1.0, kind="plain", tile=4):
    """Return the deviance, one anchor after the other."""
    points = embeddings / embeddings.norm(dim=1, keepdim=True)
    masks = pair_masks(points @ points.T, labels, indices_tuple)
    total = 0 * embeddings.sum()
    for i in range(len(points)):
        near, far = (points[mask[i]] @ points[i] - margin for mask in masks)
        value = (1 + (-alpha * near).exp()).log().sum() / max(1, len(near))
        value = weight * (value + (1 + (beta * far).exp()).log().sum() / max(1, len(far)))
        total = total + (value**2 if kind == "square" else value)
    return total / len(points)


class Equation:
    """The binomial deviance of an anchor's similarities, and its settings."""

    def __init__(self, alpha: float = 2.0, beta: float = 10.0, margin: float = 0.5, **kwargs):
        super().__init__(**kwargs)
        self.alpha, self.beta, self.margin = alpha, beta, margin

    def values(self, matrix, positives, negatives):
        return self.pull(matrix - self.margin, positives) + self.push(matrix - self.margin, negatives)

    def pull(self, gap, positives):
        return masked_mean(softplus(-self.alpha * gap), positives)

    def push(self, gap, negatives):
        return masked_mean(softplus(self.beta * gap), negatives)


class Deviance(Equation, PairLoss):
    """The equation on the base of pair losses."""

    def equation(self, pairs):
        return per_anchor(self.values(pairs.matrix, pairs.positives, pairs.negatives))


@planted("stays in half precision and in autocast", "check_dtypes", "compute it in float32 or float64|autocast changes")
class InHalf(Equation, BaseMetricLossFunction):
    capabilities = frozenset({"labels", "indices_tuple", "references"})

    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        if len(embeddings) == 0 or len(ref_emb) == 0:
            return self.zero_losses()
        matrix, references = self.similarity(embeddings, ref_emb)
        masks = self.masks(matrix, labels, indices_tuple, ref_labels, references)
        return self.packed(self.values(matrix, *masks), labels)

    def similarity(self, embeddings, ref_emb):
        return matrix_of(self.distance, embeddings, ref_emb)

    def masks(self, matrix, labels, indices_tuple, ref_labels, references):
        return pair_masks(matrix, labels, indices_tuple, ref_labels, references=references)

    def packed(self, values, labels):
        return per_anchor(values)

    def get_default_distance(self):
        return GramCosineSimilarity()


class ByHand(FullPrecisionForward, InHalf):
    """The equation without the base of pair losses."""


class Weighted(ByHand):
    """Settings that act, and one that changes how and not what."""

    def __init__(self, weight: float = 1.0, kind: str = "plain", tile: int = 4, **kwargs):
        super().__init__(**kwargs)
        self.weight, self.kind, self.tile = weight, kind, tile

    def values(self, *matrices):
        values = self.weight * super().values(*matrices)
        return values.square() if self.kind == "square" else values


class TwoTerms(ByHand):
    """Values of positive and of negative pairs, two sub-losses."""

    def values(self, matrix, positives, negatives):
        terms = {"pull": ("pos_pair", positives, 1 - matrix), "push": ("neg_pair", negatives, matrix)}
        return {
            name: {"losses": values[mask], "indices": torch.where(mask), "reduction_type": kind}
            for name, (kind, mask, values) in terms.items()
        }

    def packed(self, values, labels):
        return values

    def _sub_loss_names(self):
        return ["pull", "push"]


class ByNames(ByHand):
    """The loss by hand, which compares the names of classes itself."""

    def names(self, labels):
        return labels

    def equal(self, mine, theirs):
        return self.names(mine)[:, None] == self.names(theirs)

    def masks(self, matrix, labels, indices_tuple, ref_labels, references):
        if indices_tuple is not None:
            return super().masks(matrix, labels, indices_tuple, ref_labels, references)
        same = self.equal(labels, ref_labels)
        return (same if references else same & ~eye(same)), ~same


class Centers(FullPrecisionForward, BaseMetricLossFunction):
    """Cross-entropy over the cosine similarities to a learned center per class."""

    capabilities = frozenset({"labels"})

    def __init__(self, embedding_size: int, num_classes: int, scale: float = 10.0, **kwargs):
        super().__init__(**kwargs)
        self.embedding_size, self.num_classes, self.scale = embedding_size, num_classes, scale
        self.centers = nn.Parameter(torch.randn(num_classes, embedding_size))

    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        if ref_emb is not embeddings:
            raise ValueError("Centers compares with its centers; leave out ref_emb")
        x, centers = (normalize(e) for e in (embeddings, self.centers.to(embeddings.dtype)))
        rows = self.rows(labels)
        return per_anchor(nn.functional.cross_entropy(self.scale * x @ centers.T, rows, reduction="none"))

    def rows(self, labels):
        return labels.long()


class Ramp(Deviance):
    """A weight that grows with the steps of training, which are counted and saved."""

    capabilities = Deviance.capabilities | {"state"}

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def values(self, *matrices):
        if self.training and torch.is_grad_enabled():
            self.steps = self.steps + 1
        return super().values(*matrices) * (self.steps / 1000).clamp(max=1)


# Losses: the equation and its settings. Nothing but a reference knows the paper.

REFERENCE = "check_reference"

plant("MeanOfSome", ByHand, "anchors without a positive are left out of the mean", REFERENCE)(
    values=lambda self, matrix, positives, negatives: (
        ByHand.values(self, matrix, positives, negatives) * positives.any(1) / positives.any(1).double().mean()
    )
)
plant("AlphaForBeta", Deviance, "alpha stands where beta belongs", "check_settings", "beta changes neither")(
    push=lambda self, gap, far: masked_mean(softplus(self.alpha * gap), far)
)


@planted("a margin of 0 is taken for no margin given", "check_settings", "margin=0 gives what the default does")
class MarginOrDefault(Deviance):
    def __init__(self, margin: float = 0.5, **kwargs):
        super().__init__(margin=margin or 0.5, **kwargs)


plant("ZeroForMasked", Deviance, "masked entries are 0, which is more than the hardest negative", REFERENCE)(
    push=lambda self, gap, far: softplus(self.beta * (gap * far).amax(1)) * far.any(1)
)
plant("EqualIsItself", ByHand, "an equal image is taken for the image itself", REFERENCE)(
    values=lambda self, s, near, far: ByHand.values(self, s, near & (s < 1 - 1e-6), far)
)


# Losses: gradients, order, cost.

plant("GradientCut", ByHand, "half of the value has no gradient", "check_gradients", "differs from finite differences")(
    values=lambda self, s, *masks: (ByHand.values(self, s, *masks) + ByHand.values(self, s.detach(), *masks)) / 2
)
plant("Detached", ByHand, "no gradient at all", "check_call_forms", r"no gradient .* look for detach\(\)")(
    values=lambda self, s, *masks: ByHand.values(self, s.detach(), *masks)
)
plant("ReferencesDetached", ByHand, "references get no gradient", "check_gradients", "the gradient of ref_emb")(
    similarity=lambda self, x, y: ByHand.similarity(self, x, y if y is x else y.detach())
)


ORDER = "check_order_does_not_matter"
plant("SortedLabels", ByHand, "right for sorted labels alone", ORDER, "the order of the batch changes the loss")(
    compute_loss=lambda self, x, labels, *more: ByHand.compute_loss(self, x, labels.sort().values, *more)
)
plant("CubicMemory", ByHand, "forms all triplets", "check_memory_growth", "times the memory; form no triplets")(
    values=lambda self, s, near, far: (
        ByHand.values(self, s, near, far)
        + 0 * ((s[:, :, None] - s[:, None]) * (near[:, :, None] & far[:, None])).sum((1, 2))
    )
)
plant("HoardsMatrices", ByHand, "saves a hundred matrices", "check_saved_bytes", "tiles can be computed again")(
    values=lambda self, s, *masks: ByHand.values(self, s + 1e-3 * sum(torch.sin(k * s) for k in range(1, 100)), *masks)
)
plant("LoopOverAnchors", ByHand, "goes through the anchors in Python", "check_no_loop_over_anchors", "a loop over")(
    values=lambda self, *matrices: torch.cat(
        [ByHand.values(self, *row) for row in zip(*(matrix.split(1) for matrix in matrices), strict=True)]
    )
)


# Losses: what is kept between calls.

CALLS = "check_calls_are_independent"


@planted("the masks of pairs are kept by the length of the batch", CALLS)
class MasksKeptByLength(ByHand):
    _kept = None

    def masks(self, matrix, *batch):
        if self._kept is None or self._kept[0].shape != matrix.shape:
            self._kept = super().masks(matrix, *batch)
        return self._kept


@planted("keeps the embeddings of all batches", "check_tensors_are_registered", "holds more tensors with each call")
class KeepsAll(ByHand):
    def masks(self, matrix, *batch):
        self.seen = [*getattr(self, "seen", ()), matrix.detach()]
        return super().masks(matrix, *batch)


@planted("a moving mean of similarities moves the margin, and is not saved", "check_state_dict", "the next loss is")
class MovingMargin(Deviance):
    _mean = 0.0

    def values(self, matrix, *masks):
        self._mean = 0.9 * self._mean + 0.1 * matrix.mean().item()
        return super().values(matrix - self._mean, *masks)


@planted("is switched off for good by an empty batch", CALLS)
class OffAfterEmpty(ByHand):
    _off = False

    def compute_loss(self, embeddings, *more):
        self._off = self._off or len(embeddings) == 0
        return self.zero_losses() if self._off else super().compute_loss(embeddings, *more)


TENSORS = "check_tensors_are_registered"


@planted("a warm-up counts calls in a tensor that nobody saves", TENSORS, r"calls of .*register_buffer\('calls'")
class WarmUp(Deviance):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.calls = torch.zeros((), dtype=torch.int16)

    def values(self, *matrices):
        self.calls += 1
        return super().values(*matrices) * (self.calls / 1000).clamp(max=1)


@planted("keeps its last value with its graph", TENSORS, r"leaves its graph in the attribute last .* detach\(\)")
class KeepsGraph(Deviance):
    def values(self, *matrices):
        self.last = super().values(*matrices)
        return self.last


class Parameter(ByHand):
    """A loss with a learned weight."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def values(self, *matrices):
        return self.weight() * super().values(*matrices)

    def weight(self):
        return self.scale


PARAMETERS = "check_parameters_get_gradients", "the parameters scale get no gradient"
plant("WeightAsNumber", Parameter, "a learned weight is read as a number", *PARAMETERS)(
    weight=lambda self: float(self.scale)
)


@planted("a parameter is found in a list beside the module", "check_torch_func", "torch.func.grad")
class ParameterBeside(Parameter):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.known = [self.scale]

    def weight(self):
        return self.known[0]


class Buffer(ByHand):
    """A loss with an unused number in its state."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.register_buffer("seen", self.first())

    def first(self):
        return torch.zeros(())


plant("MovesInEval", Buffer, "counts calls in eval() too", "check_eval_keeps_state", "mode changes seen of its state")(
    values=lambda self, *matrices: Buffer.values(self, *matrices) + 0 * self.seen.add_(1)
)
plant("EmptyBuffer", Buffer, "an empty buffer stops the records", "check_pml_trainer", "Tensor with 0 elements cannot")(
    first=lambda self: torch.zeros(0)
)


@planted("records a vector", "check_pml_trainer", "the recorded attribute hardest")
class RecordsVector(ByHand):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.add_to_recordable_attributes(name="hardest")

    def values(self, s, *masks):
        self.hardest = s.detach().amax(1)
        return super().values(s, *masks)


PICKLE = "check_pickle"
plant("UnpickledAsDefault", Deviance, "is unpickled with the settings' defaults", PICKLE)(
    __reduce__=lambda self: (type(self), ())
)


@planted("deepcopy shares the centers", PICKLE)
class CopySharesCenters(Centers):
    def __deepcopy__(self, memo):
        other = copy.copy(self)
        other._parameters = dict(self._parameters)
        return other


@planted("holds a lambda", PICKLE, "it cannot be copied or pickled")
class CannotBePickled(ByHand):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.function = lambda x: x


# Losses: labels, a miner's tuple, references.

NAMES = "check_names_of_classes"
plant("NamesInBytes", ByNames, "compares names in uint8", NAMES)(names=lambda self, labels: labels.to(torch.uint8))
plant("NamesInInt32", ByNames, "compares names in int32", NAMES)(names=lambda self, labels: labels.int())
plant("LabelsUnseen", ByNames, "does not look at the labels", "check_labels_are_used", "labels are ignored")(
    names=lambda self, labels: torch.zeros_like(labels)
)
plant("NamesByRemainder", ByNames, "names 1,009 apart are one", "check_sizes")(names=lambda self, labels: labels % 1009)


plant("WeighedByName", ByHand, "weighs classes by the order of their names", NAMES)(
    packed=lambda self, values, labels: per_anchor(
        values if labels is None else values * (1 + labels.unique(return_inverse=True)[1] / 10)
    )
)


@planted("counts classes by their names", NAMES, r"IndexError: .* \(at planted.py:\d+\)")
class LabelsAsIndex(ByHand):
    def packed(self, values, labels):
        counts = torch.zeros(len(labels), device=labels.device).index_add(0, labels, torch.ones_like(labels).float())
        return per_anchor(values / counts[labels])


class Tuples(ByHand):
    """The loss by hand, with a step in which a miner's tuple passes."""

    def masks(self, matrix, labels, indices_tuple, *more):
        if indices_tuple is not None and labels is not None:
            indices_tuple = self.mined(indices_tuple, labels[:, None] == labels)
        return super().masks(matrix, labels, indices_tuple, *more)


PAIRS, TRIPLETS = "check_indices_tuple_of_pairs", "check_indices_tuple_of_triplets"
plant("MinedNegativesIgnored", Tuples, "all negative pairs, whatever is mined", PAIRS, "the negative pairs that")(
    mined=lambda self, t, same: (*t[:2], *torch.where(~same)) if len(t) == 4 else t
)
plant("MinedTripletsIgnored", Tuples, "all pairs, whatever triplets are mined", TRIPLETS, "the triplets that a miner")(
    mined=lambda self, t, same: t if len(t) == 4 else None
)
plant("TripletsSwapped", Tuples, "reads a tuple of three as anchor, negative, positive", TRIPLETS)(
    mined=lambda self, t, same: t if len(t) == 4 else (t[0], t[2], t[1])
)


@planted("an image is a positive of itself", PAIRS)
class ItselfIsPositive(ByHand):
    def masks(self, matrix, labels, indices_tuple, ref_labels, references):
        positives, negatives = super().masks(matrix, labels, indices_tuple, ref_labels, references)
        return positives | eye(matrix) if not references and indices_tuple is None else positives, negatives


@planted("compares with the batch, whatever the references", "check_references", "ref_emb is accepted and ignored")
class ReferencesIgnored(ByHand):
    capabilities = frozenset({"labels", "indices_tuple"})

    def compute_loss(self, embeddings, labels, indices_tuple, *references):
        return super().compute_loss(embeddings, labels, indices_tuple, embeddings, labels)


plant("LeavesOutRow", ByHand, "leaves out the reference in the same row", "check_references", "references=True to")(
    masks=lambda self, matrix, *batch: ByHand.masks(self, matrix, *batch[:3], False)
)


@planted("takes the first label of a set alone", "check_relation", "label sets with SharedLabel")
class FirstLabelAlone(Deviance):
    def forward(self, embeddings, labels=None, *others, **named):
        if isinstance(labels, torch.Tensor) and labels.ndim == 2:
            labels = torch.nn.functional.one_hot(labels.long().argmax(1), labels.shape[1])
        return super().forward(embeddings, labels, *others, **named)


# Losses: modes, threads, devices, numbers.

MODES, DTYPES, DEGENERATE = "check_modes", "check_dtypes", "check_degenerate_batches"


plant("DropsCoordinates", ByHand, "drops a tenth of the coordinates in training", MODES)(
    similarity=lambda self, x, y: ByHand.similarity(
        self, z := nn.functional.dropout(x, 0.1, self.training), z if y is x else y
    )
)
plant("CheapWithoutGradient", Deviance, "looks at half of the columns where no gradient is wanted", MODES)(
    push=lambda self, gap, far: Deviance.push(
        self, gap, far & (torch.is_grad_enabled() | (torch.arange(gap.shape[1]) % 2 == 0))
    )
)


plant("OfOneThread", Deviance, "is right in the main thread alone", MODES, "another thread changes")(
    push=lambda self, gap, far: Deviance.push(
        self, gap if threading.current_thread() is threading.main_thread() else gap / 2, far
    )
)
plant("ForgetsDevice", ByHand, "makes a tensor on the CPU", "check_devices", r"at planted.py:\d+ mixes a tensor")(
    values=lambda self, s, *masks: ByHand.values(self, s, *masks) + torch.zeros(len(s))
)


WAITS = "check_no_host_sync"
plant("CallsItem", ByHand, "looks at the largest similarity", WAITS, r"a value read at planted.py:\d+")(
    values=lambda self, s, *masks: ByHand.values(self, s, *masks) * (1 if s.max().item() < 10 else 2)
)


plant("WaitsInBackward", ByHand, "looks at the largest gradient", WAITS, r"a value read at planted.py:\d+")(
    values=lambda self, s, *masks: (
        s.register_hook(lambda grad: grad if grad.abs().max().item() < 10 else grad / 2),
        ByHand.values(self, s, *masks),
    )[1]
)
plant("Overflows", ByHand, "an exponential that float32 does not hold", DTYPES, "torch.float32 embeddings give")(
    values=lambda self, s, *masks: ByHand.values(self, s, *masks) + 0 * (200 * s).exp().sum(1)
)


@planted("a batch in half precision leaves the centers in half precision", DTYPES, "leave centers in torch.bfloat16")
class CentersCast(Centers):
    def forward(self, embeddings, *args, **kwargs):
        self.centers.data = self.centers.data.to(embeddings.dtype)
        return super().forward(embeddings, *args, **kwargs)


plant("NoEpsBelowNorm", ByHand, "divides by a norm of 0", DEGENERATE, "all at zero gives .* not finite; norms")(
    similarity=lambda self, x, y: ((x / x.norm(dim=1)[:, None]) @ (y / y.norm(dim=1)[:, None]).T, y is not x)
)
plant("RootOfEqual", ByHand, "the root of a distance of 0", DEGENERATE, "duplicates gives a gradient that is not")(
    similarity=lambda self, x, y: (
        -(x[:, None] - y).square().sum(2).masked_fill(eye(x @ y.T) & (y is x), 1).sqrt(),
        y is not x,
    )
)
plant("MeanOfNone", ByHand, "the mean of no positives", DEGENERATE, "a batch without positives gives nan")(
    pull=lambda self, gap, near: (softplus(-self.alpha * gap) * near).sum(1) / near.sum(1)
)


NAN = "check_nan_shows"
plant("NanIsZero", ByHand, "puts 0 for NaN among the embeddings", NAN)(
    forward=lambda self, x, *args, **kwargs: ByHand.forward(self, x.nan_to_num(), *args, **kwargs)
)


@planted("leaves out references that are not finite", NAN)
class NanDropsOut(ByHand):
    def forward(self, embeddings, labels=None, indices_tuple=None, ref_emb=None, ref_labels=None):
        if ref_emb is not None and indices_tuple is None:
            kept = ref_emb.isfinite().all(1)
            ref_emb, ref_labels = ref_emb[kept], ref_labels[kept]
        return super().forward(embeddings, labels, indices_tuple, ref_emb, ref_labels)


MANY = "check_many_references"
plant("CountsInFloat16", Deviance, "counts pairs in float16", MANY)(
    push=lambda self, gap, far: (softplus(self.beta * gap) * far).sum(1) / far.half().sum(1).clamp(min=1).to(gap.dtype)
)
plant("First64", ByHand, "looks at the first 64 coordinates only", "check_dimensions")(
    similarity=lambda self, x, y: ByHand.similarity(self, z := x[:, :64], z if y is x else y[:, :64])
)


# Losses: arguments, inputs, globals.

ARGUMENTS, INPUTS, GLOBALS = "check_arguments", "check_inputs_unchanged", "check_globals_unchanged"
plant("OwnSimilarity", ByHand, "distance= changes nothing", ARGUMENTS, "distance= changes nothing")(
    similarity=lambda self, x, y: (normalize(x) @ normalize(y).T, y is not x)
)
plant("MeanInside", ByHand, "reducer= changes nothing", "check_reducers", "reduced already, so that a reducer")(
    packed=lambda self, values, labels: reduced(values.mean())
)


@planted("embedding_reg_weight= changes nothing", ARGUMENTS, "embedding_reg_weight=0.5 gives")
class NoRegularizerWeight(ByHand):
    def __init__(self, embedding_reg_weight: float = 1, **kwargs):
        super().__init__(**kwargs)


@planted("sorts the miner's tuple in place", INPUTS, r"changes indices_tuple\[0\] in place")
class SortsTuple(ByHand):
    def compute_loss(self, embeddings, labels, indices_tuple, *references):
        if indices_tuple is not None:
            order = indices_tuple[0].argsort(descending=True)
            for index in indices_tuple[:2]:
                index.copy_(index[order].clone())
        return super().compute_loss(embeddings, labels, indices_tuple, *references)


plant(
    "SwitchesGradientOn", ByHand, "switches on the gradient of its input", INPUTS, "switches on the gradient of embed"
)(
    compute_loss=lambda self, x, *more: ByHand.compute_loss(
        self, x.requires_grad_() if x.is_leaf and not x.is_inference() else x, *more
    )
)
plant("Silences", Deviance, "silences all warnings of the process", GLOBALS, "it changes warnings.filters")(
    values=lambda self, *matrices: (warnings.simplefilter("ignore"), Deviance.values(self, *matrices))[1]
)
plant("RandomByNumpy", ByHand, "draws by NumPy's generator", "check_determinism", "draw by torch's generators")(
    values=lambda self, *matrices: ByHand.values(self, *matrices) * (1 + np.random.rand())
)

# Losses: PML's dictionary, torch's transforms, promises.

FORMS, INDICES = "check_call_forms", "check_indices_belong_to_values"


plant("OneTermReduced", TwoTerms, "one of two terms is reduced", "check_reducers", "sub-loss 'push' is reduced")(
    packed=lambda self, values, labels: values | {"push": reduced(values["push"]["losses"].mean())["loss"]}
)


@planted("a value per class, with the indices of the first images", INDICES)
class ValuePerClass(ByHand):
    def packed(self, values, labels):
        classes, rows = labels.unique(return_inverse=True)
        sums = torch.zeros(len(classes), dtype=values.dtype, device=values.device).index_add(0, rows, values)
        return per_anchor(sums / rows.bincount().clamp(min=1))


plant("NamesForgotten", TwoTerms, "does not name its terms", FORMS, "; name them in _sub_loss_names")(
    _sub_loss_names=lambda self: ["loss"]
)
plant("ValueAlone", ByHand, "compute_loss returns a value", FORMS, r"returns a tensor of shape \(\); wanted {'loss'")(
    packed=lambda self, values, labels: values.mean()
)
plant("Exits", ByHand, "exits", FORMS, r"SystemExit: no such mode \(at planted.py:\d+\)")(
    values=lambda self, *matrices: sys.exit("no such mode")
)


@planted("a tangent that is doubled", "check_torch_func", "torch.func.jvp gives another derivative")
class WrongTangent(ByHand):
    class Doubled(torch.autograd.Function):
        forward = staticmethod(lambda x: x.clone())
        setup_context = staticmethod(lambda ctx, inputs, output: None)
        backward = staticmethod(lambda ctx, grad: grad)
        jvp = staticmethod(lambda ctx, tangent: 2 * tangent)

    def values(self, s, *masks):
        return super().values(self.Doubled.apply(s), *masks)


@planted("says that it is one graph", "check_compile", "it says fullgraph = True, but")
class SaysOneGraph(ByHand):
    fullgraph = True

    def values(self, s, *masks):
        logging.getLogger(__name__).debug("a batch of %d", len(s))
        return super().values(s, *masks)


MORE = ByHand.capabilities
plant("SaysRefs", ByHand, "misspells a capability", "check_capabilities", r"unknown capabilities \['refs'\]; known")(
    capabilities=MORE | {"refs"}
)
plant("SaysTiles", ByHand, "says that it has tiles", "check_saved_bytes", "although it says that it has tiles")(
    capabilities=MORE | {"tiles"}
)


@planted("its mean is that of the tile", "check_tiles", "tiles")
class MeanOfTile(PairLoss):
    tiles = "rows"

    def equation(self, pairs):
        values = (pairs.matrix * pairs.negatives).sum(1) - (pairs.matrix * pairs.positives).sum(1)
        return per_anchor((values - values.mean()).square())


@planted("looks at what computed the embeddings", "check_gradient_caching", "micro-batches")
class SeesGraph(ByHand):
    def compute_loss(self, embeddings, *more):
        values = super().compute_loss(embeddings, *more)["loss"]["losses"]
        return per_anchor(values * (0.5 if "Cat" in str(embeddings.grad_fn) else 1))


# Miners.


class NearNegatives(FullPrecisionMining, BaseMiner):
    """All positive pairs, and the negatives that are nearly as similar as the least similar positive."""

    capabilities = frozenset({"labels", "references"})

    def __init__(self, epsilon: float = 0.1, **kwargs):
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def mine(self, embeddings, labels, ref_emb, ref_labels):
        similarity, references = self.similarity(embeddings, ref_emb)
        positives, negatives = self.masks(similarity, labels, ref_labels, references)
        return self.listed(*self.chosen(similarity, positives, negatives))

    def similarity(self, embeddings, ref_emb):
        matrix, references = matrix_of(self.distance, embeddings, ref_emb)
        return matrix if self.distance.is_inverted else -matrix, references

    def masks(self, similarity, labels, ref_labels, references):
        return pair_masks(similarity, labels, None, ref_labels, references=references)

    def chosen(self, similarity, positives, negatives):
        near = similarity > masked_min(similarity, positives)[:, None] - self.epsilon
        return positives, negatives & near

    def listed(self, positives, negatives):
        return (*torch.where(positives), *torch.where(negatives))

    def get_default_distance(self):
        return GramCosineSimilarity()


class Hardest(NearNegatives):
    """A triplet of each positive pair and the anchor's hardest negative."""

    def __init__(self, **kwargs):
        BaseMiner.__init__(self, **kwargs)

    def chosen(self, similarity, positives, negatives):
        return positives & negatives.any(1, keepdim=True), similarity.masked_fill(~negatives, -torch.inf)

    def listed(self, positives, similarity):
        anchors, partners = torch.where(positives)
        hardest = similarity.argmax(1) if similarity.shape[1] else anchors
        return anchors, partners, hardest[anchors]


MINED, AMONG = "check_mined_indices", "check_mined_references"
plant("ListsTwice", NearNegatives, "lists a pair once by each of two rules", MINED, "listed twice")(
    listed=lambda self, *masks: tuple(torch.cat([i, i[: len(i) // 2]]) for i in NearNegatives.listed(self, *masks))
)
plant("OwnPositiveMined", NearNegatives, "an anchor is its own positive", MINED, "an anchor is its own positive")(
    listed=lambda self, near, far: NearNegatives.listed(self, near | eye(near), far)
)
plant("ReturnsInt32", NearNegatives, "returns int32 indices", MINED, "must be int64 .* got torch.int32")(
    listed=lambda self, *masks: tuple(index.int() for index in NearNegatives.listed(self, *masks))
)
plant("TwoTensors", NearNegatives, "returns positive pairs alone", MINED, r"PML refuses what mine\(\) returns")(
    listed=lambda self, near, far: torch.where(near)
)
plant("MinerLeavesOutRow", NearNegatives, "leaves out the reference in the same row", AMONG, "say references=True")(
    masks=lambda self, similarity, *labels: NearNegatives.masks(
        self, similarity, *labels[:2], labels[2] and similarity.shape[0] != similarity.shape[1]
    )
)


plant("PolarityIgnored", NearNegatives, "takes every distance for a similarity", ARGUMENTS)(
    similarity=lambda self, x, y: (self.distance(x, y), y is not x)
)
plant("NegativeZero", Hardest, "a triplet with no negative takes image 0 for one", DEGENERATE)(
    chosen=lambda self, similarity, near, far: (near, similarity.masked_fill(~far, -torch.inf))
)
plant("MinesOnCPU", NearNegatives, "indices stay on the CPU", "check_devices", "on the CPU")(
    listed=lambda self, *masks: tuple(index.cpu() for index in NearNegatives.listed(self, *masks))
)


plant("PartnersFirst", Hardest, "gives partners before anchors", "check_mined_references", "is outside of 0 to 23")(
    capabilities=frozenset(), listed=lambda self, *masks: (lambda a, p, n: (p, a, n))(*Hardest.listed(self, *masks))
)


@planted("does not look at a setting", "check_settings", "the setting epsilon changes neither")
class EpsilonIgnored(NearNegatives):
    def __init__(self, epsilon: float = 0.1, **kwargs):
        super().__init__(0.1, **kwargs)


# Samplers.


class FewClasses(Sampler):
    """Batches of a few classes, drawn at random, with four images of each."""

    def __init__(self, labels, batch_size, length_before_new_iter, seed: int = 0):
        self.labels, self.batch_size = self.read(labels), batch_size
        self.length, self.seed = length_before_new_iter, seed
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


PASS, LONG_RUN, STATE = "check_sampler", "check_sampler_in_the_long_run", "check_sampler_state"
plant("NamesKeptInBytes", FewClasses, "keeps the names of classes in bytes", LONG_RUN)(
    read=lambda self, labels: torch.as_tensor(labels).to(torch.uint8)
)
plant("SortsLabels", FewClasses, "sorts the labels that it is given, in place", LONG_RUN, "it changes the labels")(
    read=lambda self, labels: (labels.sort(), torch.as_tensor(labels))[1]
)
plant("CountsFromOne", FewClasses, "counts from 1", PASS, "an index is outside of 0 to 23")(
    images=lambda self, rows: FewClasses.images(self, rows + 1)
)
plant("ShufflesByPython", FewClasses, "shuffles by Python's generator", LONG_RUN)(
    images=lambda self, rows: random.sample(4 * rows.tolist() if len(rows) < 4 else rows.tolist(), 4)
)
plant("SameEveryEpoch", FewClasses, "draws the same in every epoch", LONG_RUN, "two passes in a row are equal")(
    __iter__=lambda self: (self.generator.manual_seed(self.seed), FewClasses.__iter__(self))[1]
)


@planted("does not look at its seed", LONG_RUN, "seed= is accepted and ignored")
class SeedIgnored(FewClasses):
    def __init__(self, labels, batch_size, length_before_new_iter, seed: int = 0):
        super().__init__(labels, batch_size, length_before_new_iter, 0)


@planted("does not look at the length that is asked for", PASS, "24 and 48 both give 2 items")
class LengthIgnored(FewClasses):
    def __init__(self, labels, batch_size, length_before_new_iter, seed: int = 0):
        super().__init__(labels, batch_size, len(labels), seed)


plant("StateNotPutBack", FewClasses, "does not put its state back", STATE, "draws something else; give it state_dict")(
    load_state_dict=lambda self, state: None
)


plant("LiveState", FewClasses, "the state that was saved goes on changing", STATE)(
    state_dict=lambda self: {"generator": self.generator},
    load_state_dict=lambda self, state: self.generator.set_state(state["generator"].get_state()),
)


@planted("draws from the global generator, which it seeds", GLOBALS, "it seeds the global generator of torch")
class SeedsGlobal(FewClasses):
    def __iter__(self):
        torch.manual_seed(int(torch.randint(2**31, (), generator=self.generator)))
        return super().__iter__()


@planted("can be passed over once", PASS, r"a pass gives 0 items, but len\(\) says 2")
class OnePass(FewClasses):
    def __iter__(self):
        self._pass = getattr(self, "_pass", None) or super().__iter__()
        return self._pass


plant("OwnIterator", FewClasses, "is its own iterator, so that a second one goes on where the first is", PASS)(
    __iter__=lambda self: (setattr(self, "_batches", FewClasses.__iter__(self)), self)[1],
    __next__=lambda self: next(self._batches),
)
plant("DrawsTwice", FewClasses, "draws an image twice in a batch", PASS, "an image comes twice in a batch")(
    images=lambda self, rows: rows[torch.randint(len(rows), (4,), generator=self.generator)].tolist()
)
plant("TakesLabelsAsSorted", FewClasses, "takes labels as sorted", LONG_RUN)(
    images=lambda self, rows: FewClasses.images(self, torch.arange(int(rows[0]), int(rows[0]) + len(rows)) % 38)
)

plant("OneClass", FewClasses, "gives batches of one class", LONG_RUN, "every batch has one class alone")(
    some=lambda self, classes: FewClasses.some(self, classes)[:1].repeat(self.batch_size // 4)
)


@planted("does not look at a setting", LONG_RUN, "the setting each changes nothing that it draws")
class EachIgnored(FewClasses):
    def __init__(self, labels, batch_size, length_before_new_iter, each: int = 4, seed: int = 0):
        super().__init__(labels, batch_size, length_before_new_iter, seed)


plant("StopsHalfway", FewClasses, "stops halfway", PASS, r"ZeroDivisionError: .* \(at planted.py:\d+\)")(
    images=lambda self, rows: 1 / 0
)


# Regularizers.


class Norms(BaseRegularizer):
    """The squared deviation of each embedding's squared length from 1."""

    def compute_loss(self, embeddings):
        return per_anchor(self.values(to_full_precision(embeddings).square().sum(1)))

    def values(self, squares):
        return (squares - 1).square()


plant("NormsOwnMean", Norms, "reducer= changes nothing", ARGUMENTS, "reducer= changes nothing")(
    compute_loss=lambda self, x: reduced(Norms.compute_loss(self, x)["loss"]["losses"].sum() / max(1, len(x)))
)

# Distances.


class Soft(BaseDistance):
    """The root of the squared distance and a constant."""

    def __init__(self, softness: float = 0.1, **kwargs):
        super().__init__(**kwargs)
        self.softness = softness

    def compute_mat(self, query_emb, ref_emb):
        squares = query_emb.square().sum(1)[:, None] + ref_emb.square().sum(1) - 2 * query_emb @ ref_emb.T
        return (squares.clamp(min=0) + self.softness**2).sqrt()

    def pairwise_distance(self, query_emb, ref_emb):
        return ((query_emb - ref_emb).square().sum(1) + self.softness**2).sqrt()


DISTANCE = "check_distance"
plant("SquareOfPairs", Soft, "of pairs it gives the square", DISTANCE, "pairwise_distance differs from the diagonal")(
    pairwise_distance=lambda self, x, y: Soft.pairwise_distance(self, x, y).square()
)
plant("Squeezes", Soft, "one query or one reference loses its dimension", DISTANCE)(
    compute_mat=lambda self, x, y: Soft.compute_mat(self, x, y).squeeze()
)
plant("RootOfZero", Soft, "no gradient where embeddings are equal", DISTANCE, "the gradient between equal points")(
    compute_mat=lambda self, x, y: (x[:, None] - y).square().sum(2).sqrt(),
    pairwise_distance=lambda self, x, y: (x - y).square().sum(1).sqrt(),
)
plant("NotSymmetric", Soft, "is not symmetric", DISTANCE, "is not symmetric")(
    compute_mat=lambda self, x, y: Soft.compute_mat(self, x, y.abs())
)
plant("DistanceReferencesDetached", Soft, "references have no gradient", DISTANCE, "the references get no gradient")(
    compute_mat=lambda self, x, y: Soft.compute_mat(self, x, y.detach())
)
plant("ScaledByBatch", Soft, "divides by the largest of the batch", DISTANCE, "depends on others of the batch")(
    compute_mat=lambda self, x, y: Soft.compute_mat(self, x, y) / x.abs().max(),
    pairwise_distance=lambda self, x, y: Soft.pairwise_distance(self, x, y) / x.abs().max(),
)


@planted("a similarity that says it is a distance", DISTANCE, "pass is_inverted=True")
class WrongWay(CosineSimilarity):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.is_inverted = False


@planted("half of a learned scale has no gradient", "check_gradients", "the gradient of scale differs")
class ScaleCut(Soft):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.scale = nn.Parameter(torch.ones(()))

    def compute_mat(self, query_emb, ref_emb):
        return (self.scale + self.scale.detach()) / 2 * super().compute_mat(query_emb, ref_emb)

    def pairwise_distance(self, query_emb, ref_emb):
        return (self.scale + self.scale.detach()) / 2 * super().pairwise_distance(query_emb, ref_emb)


# Reducers.


class RootMeanSquare(BaseReducer):
    """The root of the mean square of a loss's values."""

    def element_reduction(self, losses, loss_indices, embeddings, labels):
        if len(losses) == 0:
            return self.zero_loss(embeddings)
        return self.mean(losses.square()).clamp(min=1e-12).sqrt()

    def mean(self, squares):
        return squares.mean()

    pos_pair_reduction = neg_pair_reduction = triplet_reduction = lambda self, *args: self.element_reduction(*args)


plant(
    "NothingForNone", RootMeanSquare, "0 without a gradient where there are no values", "check_reducer", "not 0 with"
)(zero_loss=lambda self, embeddings: embeddings.new_zeros(()))
plant(
    "ReturnsValues", reducers.BaseReducer, "returns values", "check_reducer", r"element values give tensor.*\n.*, not"
)(forward=lambda self, loss_dict, embeddings, labels: loss_dict["loss"]["losses"])


@planted("bounds the values that it is given, in place", INPUTS, "changes losses in place")
class BoundsInPlace(RootMeanSquare):
    def element_reduction(self, losses, *more):
        losses.data.clamp_(max=1)
        return super().element_reduction(losses, *more)


RIGHT = (Deviance, ByNames, Centers, Ramp, NearNegatives, Hardest, FewClasses)
RIGHT += (Norms, Soft, RootMeanSquare)


def failing(component: Any, **given: Any) -> dict[str, str]:
    """Return the checks that a component fails, with their texts."""
    return {r.check: r.text for r in check_component(component, on_fail=None, **given) if r.fails}


def main(*names: str) -> None:
    """Print the checks of the fast kit that find each bug, with a reference if none does without, and the shares."""
    counted = {share: collections.Counter[str]() for share in ("planted", "found", "found with a reference")}
    for name in names or PLANTED:
        bug = PLANTED[name]
        without = failing(bug.cls, fast=True)
        found = without or (failing(bug.cls, checks=[REFERENCE], reference=loop) if bug.kind == "loss" else {})
        print(f"| {bug.kind} | `{name}` | {bug.words} | {', '.join(found) or '-'} |", flush=True)
        for share, hit in zip(counted, (True, without, found), strict=True):
            counted[share][bug.kind] += bool(hit)
    for share, kinds in counted.items():
        print(f"{share}: {', '.join(f'{kind} {kinds[kind]}' for kind in counted['planted'])}")


if __name__ == "__main__":
    import planted as importable  # under a name that a copy of an object keeps

    importable.main(*sys.argv[1:])
