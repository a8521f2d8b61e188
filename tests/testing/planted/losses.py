"""Losses with one bug each."""

import copy
import logging
import multiprocessing
import sys
import threading
import warnings

import numpy as np
import torch
from torch import nn

from pml_ext.plugin import PairLoss, masked_mean, per_anchor, reduced

from .correct import ByHand, ByNames, Deviance, InHalf, Parameter, Ramp, Tuples, TwoTerms, eye
from .table import REFERENCE, plant, planted

softplus, normalize = nn.functional.softplus, nn.functional.normalize
NAMES, PAIRS, TRIPLETS = "check_names_of_classes", "check_indices_tuple_of_pairs", "check_indices_tuple_of_triplets"
MODES, DTYPES, DEGENERATE = "check_modes", "check_dtypes", "check_degenerate_batches"
ARGUMENTS, INPUTS, GLOBALS = "check_arguments", "check_inputs_unchanged", "check_globals_unchanged"
CALLS, TENSORS, GRADIENTS = (
    "check_calls_are_independent",
    "check_tensors_are_registered",
    "check_parameters_get_gradients",
)
ORDER, INDICES, MANY = "check_order_does_not_matter", "check_indices_belong_to_values", "check_many_references"
PICKLE, WAITS, NAN, FORMS = "check_pickle", "check_no_host_sync", "check_nan_shows", "check_call_forms"

# The equation and its settings. Nothing but a reference knows the paper.

plant("MeanOfSome", ByHand, "anchors without a positive are left out of the mean", REFERENCE)(
    values=lambda self, matrix, positives, negatives: (
        ByHand.values(self, matrix, positives, negatives) * positives.any(1) / positives.any(1).double().mean()
    )
)
plant("AlphaForBeta", Deviance, "alpha stands where beta belongs", "check_settings", "beta changes neither")(
    push=lambda self, gap, far: masked_mean(softplus(self.alpha * gap), far)
)
plant("MarginOrDefault", Deviance, "a margin of 0 is none", "check_settings", "margin=0 gives what the default does")(
    __init__=lambda self, margin=0.5, **kwargs: Deviance.__init__(self, margin=margin or 0.5, **kwargs)
)
plant("ZeroForMasked", Deviance, "masked entries are 0, which is more than the hardest negative", REFERENCE)(
    push=lambda self, gap, far: softplus(self.beta * (gap * far).amax(1)) * far.any(1)
)


# Gradients, order, cost.

plant("GradientCut", ByHand, "half of the value has no gradient", "check_gradients", "differs from finite differences")(
    values=lambda self, s, *masks: (ByHand.values(self, s, *masks) + ByHand.values(self, s.detach(), *masks)) / 2
)
plant("Detached", ByHand, "no gradient at all", "check_call_forms", r"no gradient .* look for detach\(\)")(
    values=lambda self, s, *masks: ByHand.values(self, s.detach(), *masks)
)
plant("ReferencesDetached", ByHand, "references get no gradient", "check_gradients", "the gradient of ref_emb")(
    similarity=lambda self, x, y: ByHand.similarity(self, x, y if y is x else y.detach())
)
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


# What is kept between calls.

plant("WeightAsNumber", Parameter, "a learned weight is read as a number", GRADIENTS, "scale get no gradient")(
    weight=lambda self: float(self.scale)
)
plant("MovesInEval", Ramp, "counts calls in eval() too", "check_eval_keeps_state", "mode changes steps of its state")(
    counts=lambda self: True
)
plant("WarmUp", Ramp, "counts steps in a tensor that nobody saves", TENSORS, r"steps of .*register_buffer\('steps'")(
    register_buffer=lambda self, name, value: setattr(self, name, value)
)
plant("CannotBePickled", ByHand, "holds a lambda", PICKLE, "it cannot be copied or pickled")(
    __init__=lambda self, **kwargs: (ByHand.__init__(self, **kwargs), setattr(self, "function", lambda x: x))[0]
)
plant("CopyShares", Parameter, "deepcopy shares the parameters", PICKLE, "deepcopy.. shares .* with the original")(
    __deepcopy__=lambda self, memo: copy.copy(self)
)
plant("UnpickledAsDefault", Deviance, "is unpickled with the settings' defaults", PICKLE)(
    __reduce__=lambda self: (type(self), ())
)


@planted("the masks of pairs are kept by the length of the batch", CALLS)
class MasksKeptByLength(ByHand):
    _kept = None

    def masks(self, matrix, *batch):
        if self._kept is None or self._kept[0].shape != matrix.shape:
            self._kept = super().masks(matrix, *batch)
        return self._kept


@planted("keeps the embeddings of all batches", TENSORS, "holds more tensors with each call")
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


@planted("records a vector", "check_pml_trainer", "the recorded attribute hardest")
class RecordsVector(ByHand):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.add_to_recordable_attributes(name="hardest")

    def values(self, s, *masks):
        self.hardest = s.detach().amax(1)
        return super().values(s, *masks)


# Labels, a miner's tuple, references.

plant("NamesInInt32", ByNames, "compares names in int32", NAMES)(names=lambda self, labels: labels.int())
plant("LabelsUnseen", ByNames, "does not look at the labels", "check_labels_are_used", "labels are ignored")(
    names=lambda self, labels: torch.zeros_like(labels)
)
plant("NamesByRemainder", ByNames, "names 1,009 apart are one", "check_sizes")(names=lambda self, labels: labels % 1009)
plant("MinedNegativesIgnored", Tuples, "all negative pairs, whatever is mined", PAIRS, "the negative pairs that")(
    mined=lambda self, t, same: (*t[:2], *torch.where(~same)) if len(t) == 4 else t
)
plant("MinedTripletsIgnored", Tuples, "all pairs, whatever triplets are mined", TRIPLETS, "the triplets that a miner")(
    mined=lambda self, t, same: t if len(t) == 4 else None
)
plant("TripletsSwapped", Tuples, "reads a tuple of three as anchor, negative, positive", TRIPLETS)(
    mined=lambda self, t, same: t if len(t) == 4 else (t[0], t[2], t[1])
)
plant("ReferencesIgnored", ByHand, "compares with the batch", "check_references", "ref_emb is accepted and ignored")(
    capabilities=frozenset({"labels", "indices_tuple"}),
    compute_loss=lambda self, x, labels, mined, *references: ByHand.compute_loss(self, x, labels, mined, x, labels),
)
plant("LeavesOutRow", ByHand, "leaves out the reference in the same row", "check_references", "references=True to")(
    masks=lambda self, matrix, *batch: ByHand.masks(self, matrix, *batch[:3], False)
)


@planted("counts classes by their names", NAMES, r"IndexError: .* \(at losses.py:\d+\)")
class LabelsAsIndex(ByHand):
    def packed(self, values, labels):
        counts = torch.zeros(len(labels), device=labels.device).index_add(0, labels, torch.ones_like(labels).float())
        return per_anchor(values / counts[labels])


@planted("an image is a positive of itself", PAIRS)
class ItselfIsPositive(ByHand):
    def masks(self, matrix, labels, indices_tuple, ref_labels, references):
        positives, negatives = super().masks(matrix, labels, indices_tuple, ref_labels, references)
        return positives | eye(matrix) if not references and indices_tuple is None else positives, negatives


@planted("takes the first label of a set alone", "check_relation", "label sets with SharedLabel")
class FirstLabelAlone(Deviance):
    def forward(self, embeddings, labels=None, *others, **named):
        if isinstance(labels, torch.Tensor) and labels.ndim == 2:
            labels = nn.functional.one_hot(labels.long().argmax(1), labels.shape[1])
        return super().forward(embeddings, labels, *others, **named)


# Modes, threads, devices, numbers.

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
plant(
    "OfOneProcess", Deviance, "is right in the first process alone", "check_other_process", "it gives another result"
)(push=lambda self, gap, far: Deviance.push(self, gap if multiprocessing.parent_process() is None else gap / 2, far))
planted("stays in half precision and in autocast", DTYPES, "compute it in float32 or float64|autocast changes")(InHalf)
plant("ForgetsDevice", ByHand, "makes a tensor on the CPU", "check_devices", r"at losses.py:\d+ mixes a tensor")(
    values=lambda self, s, *masks: ByHand.values(self, s, *masks) + torch.zeros(len(s))
)
plant("CallsItem", ByHand, "looks at the largest similarity", WAITS, r"a value read at losses.py:\d+")(
    values=lambda self, s, *masks: ByHand.values(self, s, *masks) * (1 if s.max().item() < 10 else 2)
)
plant("Overflows", ByHand, "an exponential that float32 does not hold", DTYPES, "torch.float32 embeddings give")(
    values=lambda self, s, *masks: ByHand.values(self, s, *masks) + 0 * (200 * s).exp().sum(1)
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
plant("NanIsZero", ByHand, "puts 0 for NaN among the embeddings", NAN)(
    forward=lambda self, x, *args, **kwargs: ByHand.forward(self, x.nan_to_num(), *args, **kwargs)
)
plant("CountsInFloat16", Deviance, "counts pairs in float16", MANY)(
    push=lambda self, gap, far: (softplus(self.beta * gap) * far).sum(1) / far.half().sum(1).clamp(min=1).to(gap.dtype)
)
plant("First64", ByHand, "looks at the first 64 coordinates only", "check_dimensions")(
    similarity=lambda self, x, y: ByHand.similarity(self, z := x[:, :64], z if y is x else y[:, :64])
)


@planted("a batch in half precision leaves the weight in half precision", DTYPES, "leave scale in torch.bfloat16")
class WeightCast(Parameter):
    def forward(self, embeddings, *args, **kwargs):
        self.scale.data = self.scale.data.to(embeddings.dtype)
        return super().forward(embeddings, *args, **kwargs)


# Arguments, inputs, globals.

plant("OwnSimilarity", ByHand, "distance= changes nothing", ARGUMENTS, "distance= changes nothing")(
    similarity=lambda self, x, y: (normalize(x) @ normalize(y).T, y is not x)
)
plant("MeanInside", ByHand, "reducer= changes nothing", "check_reducers", "reduced already, so that a reducer")(
    packed=lambda self, values, labels: reduced(values.mean())
)
plant("TurnsTuple", Tuples, "turns the miner's tuple round in place", INPUTS, r"changes indices_tuple\[0\] in place")(
    mined=lambda self, t, same: (*(index.copy_(index.flip(0)) for index in t[:2]), *t[2:])
)
plant("SwitchesGradientOn", ByHand, "its input has a gradient", INPUTS, "switches on the gradient of embed")(
    compute_loss=lambda self, x, *more: ByHand.compute_loss(self, x if x.is_inference() else x.requires_grad_(), *more)
)
plant(
    "NoRegularizerWeight", ByHand, "embedding_reg_weight= changes nothing", ARGUMENTS, "embedding_reg_weight=0.5 gives"
)(__init__=lambda self, embedding_reg_weight=1, **kwargs: ByHand.__init__(self, **kwargs))
plant("Silences", Deviance, "silences all warnings of the process", GLOBALS, "it changes warnings.filters")(
    values=lambda self, *matrices: (warnings.simplefilter("ignore"), Deviance.values(self, *matrices))[1]
)
plant("RandomByNumpy", ByHand, "draws by NumPy's generator", "check_determinism", "draw by torch's generators")(
    values=lambda self, *matrices: ByHand.values(self, *matrices) * (1 + np.random.rand())
)


# PML's dictionary, torch's transforms, promises.

plant("NamesForgotten", TwoTerms, "does not name its terms", FORMS, "; name them in _sub_loss_names")(
    _sub_loss_names=lambda self: ["loss"]
)
plant("ValueAlone", ByHand, "compute_loss returns a value", FORMS, r"returns a tensor of shape \(\); wanted {'loss'")(
    packed=lambda self, values, labels: values.mean()
)
plant("Exits", ByHand, "exits", FORMS, r"SystemExit: no such mode \(at losses.py:\d+\)")(
    values=lambda self, *matrices: sys.exit("no such mode")
)
plant("SaysOneGraph", ByHand, "says that it is one graph", "check_compile", "it says fullgraph = True, but")(
    fullgraph=True,
    values=lambda self, s, *masks: (logging.getLogger("planted").debug(len(s)), ByHand.values(self, s, *masks))[1],
)
plant("SaysRefs", ByHand, "misspells a capability", "check_capabilities", r"unknown capabilities \['refs'\]; known")(
    capabilities=ByHand.capabilities | {"refs"}
)
plant("SaysTiles", ByHand, "says that it has tiles", "check_saved_bytes", "although it says that it has tiles")(
    capabilities=ByHand.capabilities | {"tiles"}
)


@planted("a value per class, with the indices of the first images", INDICES)
class ValuePerClass(ByHand):
    def packed(self, values, labels):
        classes, rows = labels.unique(return_inverse=True)
        sums = torch.zeros(len(classes), dtype=values.dtype, device=values.device).index_add(0, rows, values)
        return per_anchor(sums / rows.bincount().clamp(min=1))


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
