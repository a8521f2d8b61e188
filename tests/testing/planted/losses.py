"""Losses with one bug each."""

import logging
import multiprocessing
import threading
import warnings
from typing import Literal

import numpy as np
import torch
from torch import nn

from pml_ext.plugin import (
    BaseMetricLossFunction,
    FullPrecisionForward,
    PairLoss,
    masked_mean,
    matrix_of,
    per_anchor,
    reduced,
)

from .correct import ByHand, ByNames, Deviance, InHalf, Parameter, Ramp, Tuples, TwoTerms
from .table import REFERENCE, plant, planted

softplus = nn.functional.softplus
normalize = nn.functional.normalize

# The equation and its settings. Nothing but a reference knows the paper.

plant("MarginOrDefault", Deviance, "a margin of 0 is none", "check_settings", "margin=0 gives what the default does")(
    __init__=lambda self, margin=0.5, **kwargs: Deviance.__init__(self, margin=margin or 0.5, **kwargs)
)
plant("ZeroForMasked", Deviance, "masked entries are 0, which is more than the hardest negative", REFERENCE)(
    push=lambda self, gap, far: softplus(self.beta * (gap * far).amax(1)) * far.any(1)
)


plant("WrongSign", Deviance, "its sign is turned", "check_classes_separate", "do not separate classes|pushes them")(
    values=lambda self, *matrices: -Deviance.values(self, *matrices)
)
plant(
    "PushesPositives", ByHand, "the sign of one term", "check_classes_separate", "positive pairs .* pushes them apart"
)(pull=lambda self, gap, near: masked_mean(softplus(self.alpha * gap), near))
plant("CountsSelf", ByHand, "the count of positives includes the image itself", REFERENCE, "the value is")(
    pull=lambda self, gap, near: (softplus(-self.alpha * gap) * near).sum(1) / (near.sum(1) + 1)
)
plant(
    "SeedsInInit", ByHand, "seeds torch in the constructor", "check_constructor", "seeds the global generator of torch"
)(__init__=lambda self, **kwargs: (ByHand.__init__(self, **kwargs), torch.manual_seed(0))[0])


@planted("a choice of a setting is wrong with references alone", REFERENCE, "kind='square'.*references: the value")
class ChoiceWrong(ByHand):
    def __init__(self, kind: Literal["plain", "square"] = "plain", **kwargs):
        super().__init__(**kwargs)
        self.kind = kind

    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        info = super().compute_loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        if self.kind == "square" and ref_emb is embeddings and torch.is_tensor(info["loss"]["losses"]):
            info["loss"]["losses"] = info["loss"]["losses"].square()
        return info


# Gradients, order, cost.

plant("GradientCut", ByHand, "half of the value has no gradient", "check_gradients", "differs from finite differences")(
    values=lambda self, s, *masks: (ByHand.values(self, s, *masks) + ByHand.values(self, s.detach(), *masks)) / 2
)
plant(
    "SortedLabels",
    ByHand,
    "right for sorted labels alone",
    "check_order_does_not_matter",
    "the order of the batch changes the loss",
)(compute_loss=lambda self, x, labels, *more: ByHand.compute_loss(self, x, labels.sort().values, *more))
plant("CubicMemory", ByHand, "forms all triplets", "check_memory_growth", "times the memory; form no triplets")(
    values=lambda self, s, near, far: (
        ByHand.values(self, s, near, far)
        + 0 * ((s[:, :, None] - s[:, None]) * (near[:, :, None] & far[:, None])).sum((1, 2))
    )
)
plant("LoopOverAnchors", ByHand, "goes through the anchors in Python", "check_no_loop_over_anchors", "a loop over")(
    values=lambda self, *matrices: torch.cat(
        [ByHand.values(self, *row) for row in zip(*(matrix.split(1) for matrix in matrices), strict=True)]
    )
)


# What is kept between calls.

plant(
    "WeightAsNumber",
    Parameter,
    "a learned weight is read as a number",
    "check_parameters_get_gradients",
    "scale get no gradient",
)(weight=lambda self: float(self.scale))
plant("MovesInEval", Ramp, "counts calls in eval() too", "check_eval_keeps_state", "mode changes steps of its state")(
    counts=lambda self: True
)
plant(
    "WarmUp",
    Ramp,
    "counts steps in a tensor that nobody saves",
    "check_tensors_are_registered",
    r"steps of .*register_buffer\('steps'",
)(register_buffer=lambda self, name, value: setattr(self, name, value))
plant("UnpickledAsDefault", Deviance, "is unpickled with the settings' defaults", "check_pickle")(
    __reduce__=lambda self: (type(self), ())
)


@planted("a moving mean of similarities moves the margin, and is not saved", "check_state_dict", "the next loss is")
class MovingMargin(Deviance):
    _mean = 0.0

    def values(self, matrix, *masks):
        self._mean = 0.9 * self._mean + 0.1 * matrix.mean().item()
        return super().values(matrix - self._mean, *masks)


@planted("is switched off for good by an empty batch", "check_calls_are_independent")
class OffAfterEmpty(ByHand):
    _off = False

    def compute_loss(self, embeddings, *more):
        self._off = self._off or len(embeddings) == 0
        return self.zero_losses() if self._off else super().compute_loss(embeddings, *more)


@planted("records a vector", "check_pml_trainer", "the recorded attribute hardest")
class RecordsVector(ByHand):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.add_to_recordable_attributes(name="hardest")

    def values(self, s, *masks):
        self.hardest = s.detach().amax(1)
        return super().values(s, *masks)


# Labels, a miner's tuple, references.

plant("NamesInInt32", ByNames, "compares names in int32", "check_names_of_classes")(
    names=lambda self, labels: labels.int()
)
plant("LabelsUnseen", ByNames, "does not look at the labels", "check_labels_are_used", "labels are ignored")(
    names=lambda self, labels: torch.zeros_like(labels)
)
plant("NamesByRemainder", ByNames, "names 1,009 apart are one", "check_sizes")(names=lambda self, labels: labels % 1009)
plant(
    "MinedNegativesIgnored",
    Tuples,
    "all negative pairs, whatever is mined",
    "check_indices_tuple_of_pairs",
    "the negative pairs that",
)(mined=lambda self, t, same: (*t[:2], *torch.where(~same)) if len(t) == 4 else t)
plant(
    "TripletsSwapped", Tuples, "reads a tuple of three as anchor, negative, positive", "check_indices_tuple_of_triplets"
)(mined=lambda self, t, same: t if len(t) == 4 else (t[0], t[2], t[1]))
plant("LeavesOutRow", ByHand, "leaves out the reference in the same row", "check_references", "has_references=True to")(
    masks=lambda self, matrix, *batch: ByHand.masks(self, matrix, *batch[:3], False)
)


@planted("leaves out the reference in the same row, with a flag", "check_references", "with hard=True; partners are")
class HardLeavesOutRow(ByHand):
    def __init__(self, hard: bool = False, **kwargs):
        super().__init__(**kwargs)
        self.hard = hard

    def masks(self, matrix, labels, indices_tuple, ref_labels, references):
        references = references and not (self.hard and matrix.shape[0] == matrix.shape[1])
        return super().masks(matrix, labels, indices_tuple, ref_labels, references)


class OfProxies(FullPrecisionForward, BaseMetricLossFunction):
    """A right loss of proxies, but for its value."""

    capabilities = frozenset({"labels"})

    def __init__(self, embedding_size: int, num_classes: int, **kwargs):
        super().__init__(**kwargs)
        self.proxies = torch.nn.Parameter(torch.randn(num_classes, embedding_size))


@planted("the angle to a proxy, with no gradient at the proxy", "check_degenerate_batches", "at their proxies")
class AngleToProxy(OfProxies):
    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        cosine = normalize(embeddings) @ normalize(self.proxies.to(embeddings.dtype)).T
        return per_anchor(torch.nn.functional.cross_entropy(-torch.acos(cosine), labels, reduction="none"))


@planted("values divided by the sum of the images' weights", "check_reducers", "twice the images halve the value")
class WeightedMeanTwice(OfProxies):
    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        logits = normalize(embeddings) @ normalize(self.proxies.to(embeddings.dtype)).T
        weights = torch.ones_like(logits[:, 0])
        losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        return per_anchor(weights * losses / weights.sum())


@planted("counts the classes of the batch", "check_names_of_classes", "numbered otherwise, rows and labels alike")
class ClassesOfBatch(OfProxies):
    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        proxies = self.proxies[: labels.max() + 1].to(embeddings.dtype)
        logits = normalize(embeddings) @ normalize(proxies).T
        return per_anchor(torch.nn.functional.cross_entropy(logits, labels, reduction="none"))


@planted("keeps the last image of a class", "check_order_does_not_matter", "keeps one image of each class")
class LastOfClass(FullPrecisionForward, BaseMetricLossFunction):
    capabilities = frozenset({"labels", "state"})

    def __init__(self, embedding_size: int, num_classes: int, **kwargs):
        super().__init__(**kwargs)
        self.register_buffer("centers", torch.eye(num_classes, embedding_size))

    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        centers = self.centers.to(embeddings.dtype, copy=True)
        if self.training:
            self.centers[labels] = embeddings.detach().to(self.centers.dtype)
        logits = normalize(embeddings) @ centers.T
        return per_anchor(torch.nn.functional.cross_entropy(logits, labels, reduction="none"))


@planted("takes the first label of a set alone", "check_relation", "label sets with SharedLabel")
class FirstLabelAlone(Deviance):
    def forward(self, embeddings, labels=None, *others, **named):
        if isinstance(labels, torch.Tensor) and labels.ndim == 2:
            labels = nn.functional.one_hot(labels.long().argmax(1), labels.shape[1])
        return super().forward(embeddings, labels, *others, **named)


# Modes, threads, devices, numbers.

plant("OfOneThread", Deviance, "is right in the main thread alone", "check_modes", "another thread changes")(
    push=lambda self, gap, far: Deviance.push(
        self, gap if threading.current_thread() is threading.main_thread() else gap / 2, far
    )
)
plant(
    "OfOneProcess", Deviance, "is right in the first process alone", "check_other_process", "it gives another result"
)(push=lambda self, gap, far: Deviance.push(self, gap if multiprocessing.parent_process() is None else gap / 2, far))
planted("stays in half precision and in autocast", "check_dtypes", "compute it in float32 or float64|autocast changes")(
    InHalf
)
plant("ForgetsDevice", ByHand, "makes a tensor on the CPU", "check_devices", r"at losses.py:\d+ mixes a tensor")(
    values=lambda self, s, *masks: ByHand.values(self, s, *masks) + torch.zeros(len(s))
)
plant("CallsItem", ByHand, "looks at the largest similarity", "check_no_host_sync", r"a value read at losses.py:\d+")(
    values=lambda self, s, *masks: ByHand.values(self, s, *masks) * (1 if s.max().item() < 10 else 2)
)
plant(
    "MeanOfNone", ByHand, "the mean of no positives", "check_degenerate_batches", "a batch without positives gives nan"
)(pull=lambda self, gap, near: (softplus(-self.alpha * gap) * near).sum(1) / near.sum(1))
plant("NanIsZero", ByHand, "puts 0 for NaN among the embeddings", "check_nan_shows")(
    forward=lambda self, x, *args, **kwargs: ByHand.forward(self, x.nan_to_num(), *args, **kwargs)
)
plant("CountsInFloat16", Deviance, "counts pairs in float16", "check_many_references")(
    push=lambda self, gap, far: (softplus(self.beta * gap) * far).sum(1) / far.half().sum(1).clamp(min=1).to(gap.dtype)
)
plant("First64", ByHand, "looks at the first 64 coordinates only", "check_dimensions")(
    similarity=lambda self, x, y: ByHand.similarity(self, z := x[:, :64], z if y is x else y[:, :64])
)


# Arguments, inputs, globals.

plant("OwnSimilarity", ByHand, "distance= changes nothing", "check_arguments", "distance= changes nothing")(
    similarity=lambda self, x, y: (normalize(x) @ normalize(y).T, y is not x)
)
plant("NearIsFar", ByHand, "takes a distance for a similarity", "check_arguments", "look at self.distance.is_inverted")(
    similarity=lambda self, x, y: matrix_of(self.distance, x, y)
)
plant("DividedTwice", ByHand, "values divided by the batch size", "check_reducers", "multiply all values by 0.5")(
    values=lambda self, s, *masks: ByHand.values(self, s, *masks) / len(s)
)
plant("MeanInside", ByHand, "reducer= changes nothing", "check_reducers", "reduced already, so that a reducer")(
    packed=lambda self, values, labels: reduced(values.mean())
)
plant("RepeatsMean", ByHand, "repeats the mean for every image", "check_reducers", "'loss' repeats one number")(
    packed=lambda self, values, labels: per_anchor(values.mean().expand(len(values)))
)
plant(
    "TurnsTuple",
    Tuples,
    "turns the miner's tuple round in place",
    "check_inputs_unchanged",
    r"changes indices_tuple\[0\] in place",
)(mined=lambda self, t, same: (*(index.copy_(index.flip(0)) for index in t[:2]), *t[2:]))
plant(
    "Silences",
    Deviance,
    "silences all warnings of the process",
    "check_globals_unchanged",
    "it changes warnings.filters",
)(values=lambda self, *matrices: (warnings.simplefilter("ignore"), Deviance.values(self, *matrices))[1])
plant("RandomByNumpy", ByHand, "draws by NumPy's generator", "check_determinism", "draw by torch's generators")(
    values=lambda self, *matrices: ByHand.values(self, *matrices) * (1 + np.random.rand())
)


# PML's dictionary, torch's transforms, promises.

plant(
    "ValueAlone",
    ByHand,
    "compute_loss returns a value",
    "check_call_forms",
    r"returns a tensor of shape \(\); wanted {'loss'",
)(packed=lambda self, values, labels: values.mean())
plant("SaysOneGraph", ByHand, "says that it is one graph", "check_compile", "it says fullgraph = True, but")(
    fullgraph=True,
    values=lambda self, s, *masks: (logging.getLogger("planted").debug(len(s)), ByHand.values(self, s, *masks))[1],
)
plant("LosesGradient", ByHand, "compiled it has another gradient", "check_compile", "compiled it gives another grad")(
    values=lambda self, *matrices: _with_half_of_the_gradient(ByHand.values(self, *matrices))
)


def _with_half_of_the_gradient(values):
    return (values + values.detach()) / 2 if torch.compiler.is_compiling() else values


plant("SaysRefs", ByHand, "misspells a capability", "check_capabilities", r"unknown capabilities \['refs'\]; known")(
    capabilities=ByHand.capabilities | {"refs"}
)
plant("SaysTiles", ByHand, "says that it has tiles", "check_saved_bytes", "although it says that it has tiles")(
    capabilities=ByHand.capabilities | {"tiles"}
)


@planted("a value per class, with the indices of the first images", "check_indices_belong_to_values")
class ValuePerClass(ByHand):
    def packed(self, values, labels):
        classes, rows = labels.unique(return_inverse=True)
        sums = torch.zeros(len(classes), dtype=values.dtype, device=values.device).index_add(0, rows, values)
        return per_anchor(sums / rows.bincount().clamp(min=1))


@planted("gives indices as (partner, anchor)", "check_indices_belong_to_values", "wanted .anchor, partner|anchors are")
class PartnerFirst(TwoTerms):
    def values(self, matrix, positives, negatives):
        terms = super().values(matrix, positives, negatives)
        for info in terms.values():
            info["indices"] = info["indices"][::-1]
        return terms


@planted("a tangent that is doubled", "check_torch_func", "torch.func.jvp gives another derivative")
class WrongTangent(ByHand):
    class Doubled(torch.autograd.Function):
        forward = staticmethod(lambda x: x.clone())
        setup_context = staticmethod(lambda ctx, inputs, output: None)
        backward = staticmethod(lambda ctx, grad: grad)
        jvp = staticmethod(lambda ctx, tangent: 2 * tangent)

    def values(self, s, *masks):
        return super().values(self.Doubled.apply(s), *masks)


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
