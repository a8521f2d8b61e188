"""Components with a fault each, for the checks to find. A module of its own, so that other processes can import it."""

import logging

import torch
from pytorch_metric_learning.losses import BaseMetricLossFunction
from pytorch_metric_learning.miners import BaseMiner
from torch import nn

from pml_ext.plugin import PairLoss, per_anchor
from pml_ext.testing import checks_of

# Long, and no part of the fault of most; ours and the good ones are held to them.
LONG = {
    *("check_compile", "check_torch_func", "check_memory_growth", "check_saved_bytes", "check_pml_trainer"),
}


def short_checks(kind, *more):
    """The names of the checks of a kind that take little time, and of further ones."""
    return [check.__name__ for check in checks_of(kind) if check.__name__ in more or check.__name__ not in LONG]


def similarities(embeddings, ref_emb):
    x, y = (nn.functional.normalize(e) for e in (embeddings, ref_emb))
    return x @ y.T


def masks(labels, indices_tuple, size):
    if indices_tuple is None:
        same = labels[:, None] == labels
        return same.clone().fill_diagonal_(False), ~same
    a1, p, a2, n = (
        indices_tuple
        if len(indices_tuple) == 4
        else (indices_tuple[0], indices_tuple[1], indices_tuple[0], indices_tuple[2])
    )
    found = torch.zeros(2, size, size, dtype=torch.bool, device=labels.device)
    found[0, a1, p] = True
    found[1, a2, n] = True
    return found[0], found[1]


class GoodLoss(BaseMetricLossFunction):
    """Right: one value an anchor, the mean over negatives minus the mean over positives of the similarity."""

    capabilities = frozenset({"labels", "indices_tuple"})

    def values(self, s, positives, negatives):
        means = [(s * mask).sum(1) / mask.sum(1).clamp(min=1) for mask in (positives, negatives)]
        return torch.where(positives.any(1) & negatives.any(1), means[1] - means[0] + 1, 0 * s.sum(1))

    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        if ref_emb is not embeddings:
            raise ValueError("no references")
        embeddings = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
        with torch.autocast("cpu", enabled=False):
            s = similarities(embeddings, embeddings)
        values = self.values(s, *masks(labels, indices_tuple, len(embeddings)))
        indices = torch.arange(len(values), device=values.device)
        return {"loss": {"losses": values, "indices": indices, "reduction_type": "element"}}


class MeanInside(GoodLoss):
    def compute_loss(self, *arguments):
        values = super().compute_loss(*arguments)["loss"]["losses"]
        return {"loss": {"losses": values.mean(), "indices": None, "reduction_type": "already_reduced"}}


class LabelsIgnored(GoodLoss):
    def compute_loss(self, embeddings, labels, *more):
        return super().compute_loss(embeddings, torch.arange(len(labels), device=labels.device) // 2, *more)


class MinedNegativesIgnored(GoodLoss):
    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        if indices_tuple is not None and len(indices_tuple) == 4:
            indices_tuple = (*indices_tuple[:2], *torch.where(labels[:, None] != labels))
        return super().compute_loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)


class LoopOverAnchors(GoodLoss):
    def values(self, s, positives, negatives):
        found = [
            super(LoopOverAnchors, self).values(s[i : i + 1], positives[i : i + 1], negatives[i : i + 1])
            for i in range(len(s))
        ]
        return torch.cat(found)


class CallsItem(GoodLoss):
    def values(self, s, positives, negatives):
        return super().values(s, positives, negatives) * (1 if s.max().item() < 10 else 2)


class CallsTolist(GoodLoss):
    def values(self, s, positives, negatives):
        return super().values(s, positives, negatives) * (1 + 0 * len(s.tolist()))


class CrashesWithoutPositives(GoodLoss):
    def values(self, s, positives, negatives):
        hardest = s[positives].min()
        return super().values(s, positives, negatives) + 0 * hardest


class StateNotSaved(GoodLoss):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.mean = 0.0

    def values(self, s, positives, negatives):
        self.mean = 0.9 * self.mean + 0.1 * s.detach().mean()
        return super().values(s, positives, negatives) * (1 + self.mean)


class NotInvariantToOrder(GoodLoss):
    def values(self, s, positives, negatives):
        return super().values(s, positives, negatives) * torch.linspace(
            0.5, 1.5, len(s), dtype=s.dtype, device=s.device
        )


class RightForSortedLabelsAlone(GoodLoss):
    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        counts = torch.bincount(labels)
        assumed = torch.repeat_interleave(torch.arange(len(counts), device=labels.device), counts)
        return super().compute_loss(embeddings, assumed, indices_tuple, ref_emb, ref_labels)


class ReferencesIgnored(GoodLoss):
    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        return super().compute_loss(embeddings, labels, indices_tuple, embeddings, labels)


class CubicMemory(GoodLoss):
    def values(self, s, positives, negatives):
        cube = (s[:, :, None] - s[:, None]) * (positives[:, :, None] & negatives[:, None])
        return super().values(s, positives, negatives) + 0 * cube.sum((1, 2))


class SummedInHalfPrecision(GoodLoss):
    def compute_loss(self, embeddings, *more):
        found = super().compute_loss(embeddings, *more)
        found["loss"]["losses"] = found["loss"]["losses"].to(embeddings.dtype)
        return found


class GradientCut(GoodLoss):
    def values(self, s, positives, negatives):
        return super().values(s, positives, negatives) + super().values(s.detach(), positives, negatives)


class NotDeterministic(GoodLoss):
    calls = 0

    def values(self, s, positives, negatives):
        NotDeterministic.calls += 1
        return super().values(s, positives, negatives) * (1 + 0.1 * NotDeterministic.calls)


class CannotBePickled(GoodLoss):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.function = lambda x: x


class ForgetsTheDevice(GoodLoss):
    def values(self, s, positives, negatives):
        return super().values(s, positives, negatives) + torch.zeros(len(s))


class WaitsInTheBackward(GoodLoss):
    class Clipped(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, grad):
            return grad if grad.abs().max().item() < 10 else grad / 2

    def values(self, s, positives, negatives):
        return super().values(self.Clipped.apply(s), positives, negatives)


class MovesInEval(GoodLoss):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.register_buffer("seen", torch.zeros(()))

    def values(self, s, positives, negatives):
        self.seen = self.seen + 1
        return super().values(s, positives, negatives)


class ParametersBesideTheModule(GoodLoss):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.known = [self.scale]

    def values(self, s, positives, negatives):
        return super().values(s, positives, negatives) * self.known[0]


class WrongTangent(GoodLoss):
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return 2 * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad

        @staticmethod
        def jvp(ctx, tangent):
            return tangent.clone()

    def values(self, s, positives, negatives):
        return super().values(self.Doubled.apply(s), positives, negatives)


class SaysOneGraph(GoodLoss):
    fullgraph = True

    def values(self, s, positives, negatives):
        logging.getLogger(__name__).debug("a batch of %d", len(s))
        return super().values(s, positives, negatives)


class SaysTiles(GoodLoss):
    capabilities = frozenset({"labels", "indices_tuple", "tiles"})


class SaysTilesOfRows(PairLoss):
    """Its mean is that of the tile."""

    tiles = "rows"

    def equation(self, pairs):
        values = (pairs.matrix * pairs.negatives).sum(1) - (pairs.matrix * pairs.positives).sum(1)
        return per_anchor((values - values.mean()).square())


class SeesTheGraph(GoodLoss):
    """Takes embeddings that were joined for others than they are."""

    def values(self, s, positives, negatives):
        return super().values(s * (0.5 if self.joined else 1), positives, negatives)

    def compute_loss(self, embeddings, *more):
        self.joined = "Cat" in str(embeddings.grad_fn)
        return super().compute_loss(embeddings, *more)


class HoardsMatrices(GoodLoss):
    def values(self, s, positives, negatives):
        waves = sum(torch.sin(k * s) for k in range(1, 100))
        return super().values(s + 1e-3 * waves, positives, negatives)


class EmptyBuffer(GoodLoss):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.register_buffer("queue", torch.zeros(0))


class RecordsAVector(GoodLoss):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.add_to_recordable_attributes(name="hardest")

    def values(self, s, positives, negatives):
        self.hardest = s.detach().amax(1)
        return super().values(s, positives, negatives)


class MinesOnTheCPU(BaseMiner):
    """All pairs, each with its anchor's row, of indices that are made on the CPU."""

    capabilities = frozenset({"labels"})

    def mine(self, embeddings, labels, ref_emb, ref_labels):
        rows = torch.arange(len(labels))
        a, p = torch.where((labels[:, None] == labels) & (rows[:, None] != rows))
        return a, p, *torch.where(labels[:, None] != labels)


class FailsWhereMixed(GoodLoss):
    """Fails in the middle of other checks than that of calls: where the first two labels differ."""

    def compute_loss(self, embeddings, labels, *more):
        self.mixed = labels is not None and bool(labels[0] != labels[1])
        return super().compute_loss(embeddings, labels, *more)

    def values(self, s, positives, negatives):
        if self.mixed:
            return 1 / 0
        return super().values(s, positives, negatives)


# Settings


class Weighted(GoodLoss):
    """The good one with settings that act, and one that changes how and not what."""

    def __init__(self, margin: float = 1.0, weight: float = 1.0, kind: str = "plain", tile: int = 4, **kwargs):
        super().__init__(**kwargs)
        self.margin, self.weight, self.kind, self.tile = margin, weight, kind, tile

    def values(self, s, positives, negatives):
        values = self.weight * super().values(s, positives, negatives) + self.margin - 1
        values = values.where(positives.any(1) & negatives.any(1), 0)
        return values.square() if self.kind == "square" else values


class SettingIgnored(Weighted):
    def values(self, s, positives, negatives):
        self.margin = 1.0
        return super().values(s, positives, negatives)


def slow(embeddings, labels, indices_tuple=None, margin=1.0, weight=1.0, kind="plain", tile=4):
    """The good one, one anchor after the other."""
    x = [e / e.norm() for e in embeddings]
    positives, negatives = masks(labels, indices_tuple, len(x))
    total = 0 * embeddings.sum()
    for i in range(len(x)):
        near, far = ([x[i] @ x[j] for j in range(len(x)) if mask[i, j]] for mask in (positives, negatives))
        if near and far:
            value = weight * (sum(far) / len(far) - sum(near) / len(near) + 1) + margin - 1
            total = total + (value**2 if kind == "square" else value)
    return total / len(x)


# The name of the check that finds each.
WRONG = {
    MeanInside: "check_reducers",
    LabelsIgnored: "check_labels_are_used",
    MinedNegativesIgnored: "check_indices_tuple_of_pairs",
    LoopOverAnchors: "check_no_loop_over_anchors",
    CallsItem: "check_no_host_sync",
    CallsTolist: "check_no_host_sync",
    CrashesWithoutPositives: "check_degenerate_batches",
    StateNotSaved: "check_state_dict",
    NotInvariantToOrder: "check_order_does_not_matter",
    RightForSortedLabelsAlone: "check_order_does_not_matter",
    ReferencesIgnored: "check_references",
    CubicMemory: "check_memory_growth",
    SummedInHalfPrecision: "check_dtypes",
    GradientCut: "check_gradients",
    NotDeterministic: "check_determinism",
    CannotBePickled: "check_pickle",
    ForgetsTheDevice: "check_devices",
    MinesOnTheCPU: "check_devices",
    WaitsInTheBackward: "check_no_host_sync",
    MovesInEval: "check_eval_keeps_state",
    ParametersBesideTheModule: "check_torch_func",
    WrongTangent: "check_torch_func",
    SaysOneGraph: "check_compile",
    SaysTilesOfRows: "check_tiles",
    SeesTheGraph: "check_gradient_caching",
    SaysTiles: "check_saved_bytes",
    HoardsMatrices: "check_saved_bytes",
    EmptyBuffer: "check_pml_trainer",
    RecordsAVector: "check_pml_trainer",
}
# What others find too, for each of these is wrong in several ways.
FOUND_BY_SEVERAL = {LabelsIgnored, StateNotSaved, RightForSortedLabelsAlone, NotDeterministic}
