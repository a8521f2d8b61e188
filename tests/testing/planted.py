"""Bugs as authors make them, one in each component, for the checks to find. Importable by other processes."""

import logging

import numpy as np
import torch
from pytorch_metric_learning import distances, losses, miners, reducers, regularizers
from torch import nn
from torch.utils.data import Sampler

from pml_ext.plugin import LabeledRegularizer, PairLoss, pair_masks, per_anchor
from pml_ext.testing import checks_of

LONG = {"check_compile", "check_torch_func", "check_memory_growth", "check_saved_bytes", "check_pml_trainer"}
FAULTS = []  # class, the check that finds it, a pattern of the message, whether no other check fails, the slow form


def short_checks(kind, *more):
    """The names of the checks of a kind that take little time, and of further ones."""
    return [check.__name__ for check in checks_of(kind) if check.__name__ in more or check.__name__ not in LONG]


def found_by(check, text, alone=False, **given):
    """Class decorator: plant the class."""

    def plant(component):
        FAULTS.append((component, check, text, alone, given))
        return component

    return plant


def full(embeddings):
    return embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))


def similarities(embeddings, ref_emb):
    return nn.functional.normalize(embeddings) @ nn.functional.normalize(ref_emb).T


class Identity(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad

    @staticmethod
    def jvp(ctx, tangent):
        return tangent.clone()


# Components without a fault


class GoodLoss(losses.BaseMetricLossFunction):
    """One value an anchor, the mean over negatives minus the mean over positives of the similarity."""

    capabilities = frozenset({"labels", "indices_tuple", "references"})

    def values(self, s, positives, negatives):
        means = [(s * mask).sum(1) / mask.sum(1).clamp(min=1) for mask in (positives, negatives)]
        return torch.where(positives.any(1) & negatives.any(1), means[1] - means[0] + 1, 0 * s.sum(1))

    def pairs(self, *batch, references):
        return pair_masks(*batch, references=references)

    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        with torch.autocast("cpu", enabled=False):
            s = self.distance(full(embeddings), full(ref_emb))
        masks = self.pairs(s, labels, indices_tuple, ref_labels, references=ref_emb is not embeddings)
        return per_anchor(self.values(s, *masks))

    def get_default_distance(self):
        return distances.CosineSimilarity()


class Weighted(GoodLoss):
    """Settings that act, and one that changes how and not what."""

    def __init__(self, margin: float = 1.0, weight: float = 1.0, kind: str = "plain", tile: int = 4, **kwargs):
        super().__init__(**kwargs)
        self.margin, self.weight, self.kind, self.tile = margin, weight, kind, tile

    def values(self, s, positives, negatives):
        values = self.weight * super().values(s, positives, negatives) + self.margin - 1
        values = values.where(positives.any(1) & negatives.any(1), 0)
        return values.square() if self.kind == "square" else values


def slow(embeddings, labels, indices_tuple=None, margin=1.0, weight=1.0, kind="plain", tile=4):
    """The same, one anchor after the other."""
    x = [e / e.norm() for e in embeddings]
    positives, negatives = pair_masks(embeddings @ embeddings.T, labels, indices_tuple)
    total = 0 * embeddings.sum()
    for i in range(len(x)):
        near, far = ([x[i] @ x[j] for j in range(len(x)) if mask[i, j]] for mask in (positives, negatives))
        if near and far:
            value = weight * (sum(far) / len(far) - sum(near) / len(near) + 1) + margin - 1
            total = total + (value**2 if kind == "square" else value)
    return total / len(x)


class GoodProxies(losses.BaseMetricLossFunction):
    """A center per class; without references."""

    capabilities = frozenset({"labels"})

    def __init__(self, size=8, count=6, **kwargs):
        super().__init__(**kwargs)
        self.proxies = nn.Parameter(torch.randn(count, size))

    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        if ref_emb is not embeddings:
            raise ValueError("no references")
        with torch.autocast("cpu", enabled=False):
            logits = full(embeddings) @ self.proxies.T
            return per_anchor(nn.functional.cross_entropy(logits, labels.long(), reduction="none"))


class GoodPairs(GoodLoss):
    """Values of positive and of negative pairs, two sub-losses."""

    def terms(self, s, positives, negatives):
        names = {"pull": ("pos_pair", positives, 1 - s), "push": ("neg_pair", negatives, s)}
        return {
            name: {"losses": x[mask], "indices": torch.where(mask), "reduction_type": kind}
            for name, (kind, mask, x) in names.items()
        }

    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        s = similarities(embeddings, ref_emb)
        return self.terms(s, *self.pairs(s, labels, indices_tuple, ref_labels, references=ref_emb is not embeddings))

    def _sub_loss_names(self):
        return ["pull", "push"]


class GoodMiner(miners.BaseMiner):
    """Positives that are farther, and negatives that are nearer, than the middle of the distances."""

    capabilities = frozenset({"labels", "references"})

    def same(self, labels, ref_labels):
        return labels[:, None] == ref_labels

    def matrix(self, embeddings, ref_emb):
        return self.distance(embeddings.float(), ref_emb.float())

    def get_default_distance(self):
        return distances.CosineSimilarity()

    def mine(self, embeddings, labels, ref_emb, ref_labels):
        s = self.matrix(embeddings, ref_emb)
        same = self.same(labels, ref_labels)
        positives = same & (s < s.mean())
        if ref_emb is embeddings:
            positives = positives & ~torch.eye(len(s), dtype=torch.bool, device=s.device)
        return (*torch.where(positives), *torch.where(~same & (s > s.mean())))


class GoodBatches(Sampler):
    """Batches drawn at random, from a generator of its own."""

    def __init__(self, labels, batch_size, length_before_new_iter=24):
        self.labels, self.batch_size, self.length = labels, batch_size, length_before_new_iter
        self.generator = torch.Generator().manual_seed(0)

    def __len__(self):
        return self.length // self.batch_size

    def __iter__(self):
        for _ in range(self.length // self.batch_size):
            yield torch.randperm(len(self.labels), generator=self.generator)[: self.batch_size].tolist()

    def state_dict(self):
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])


GOOD = [GoodLoss, GoodProxies, GoodMiner, GoodBatches]

# Losses: values


@found_by("check_reference", "the value is", reference=slow)
class OwnPositive(GoodLoss):
    def values(self, s, positives, negatives):
        return super().values(s, positives | torch.eye(len(s), dtype=torch.bool, device=s.device), negatives)


@found_by("check_gradients", "differs from finite differences", alone=True)
class GradientCut(GoodLoss):
    def values(self, s, *masks):
        return super().values(s, *masks) + super().values(s.detach(), *masks)


@found_by("check_call_forms", r"no gradient .* look for detach\(\), torch.no_grad\(\)")
class Detached(GoodLoss):
    def values(self, s, *masks):
        return super().values(s.detach(), *masks)


@found_by("check_order_does_not_matter", "the order of the batch changes the loss", alone=True)
class NotInvariantToOrder(GoodLoss):
    def values(self, s, *masks):
        return super().values(s, *masks) * torch.linspace(0.5, 1.5, len(s), dtype=s.dtype, device=s.device)


@found_by("check_order_does_not_matter", "the order of the batch changes the loss")
class RightForSortedLabelsAlone(GoodLoss):
    def compute_loss(self, embeddings, labels, *more):
        return super().compute_loss(embeddings, labels.sort().values, *more)


@found_by("check_memory_growth", "times the memory; form no triplets", alone=True)
class CubicMemory(GoodLoss):
    def values(self, s, positives, negatives):
        cube = (s[:, :, None] - s[:, None]) * (positives[:, :, None] & negatives[:, None])
        return super().values(s, positives, negatives) + 0 * cube.sum((1, 2))


@found_by("check_saved_bytes", "matrices of B x B; tiles can be computed again", alone=True)
class HoardsMatrices(GoodLoss):
    def values(self, s, *masks):
        return super().values(s + 1e-3 * sum(torch.sin(k * s) for k in range(1, 100)), *masks)


@found_by("check_no_loop_over_anchors", "a loop over", alone=True)
class LoopOverAnchors(GoodLoss):
    def values(self, *matrices):
        rows = zip(*(matrix.split(1) for matrix in matrices), strict=True)
        return torch.cat([super(LoopOverAnchors, self).values(*row) for row in rows])


# Losses: labels, tuples, references


@found_by("check_labels_are_used", "labels are ignored")
class LabelsIgnored(GoodLoss):
    def pairs(self, s, labels, indices_tuple, *ref_labels, references):
        made = torch.arange(len(s), device=s.device) // 2
        return super().pairs(s, made, indices_tuple, made, references=references)


@found_by("check_names_of_classes", r"IndexError: .* \(at planted.py:\d+\)")
class LabelsAsIndex(GoodLoss):
    def compute_loss(self, embeddings, labels, *more):
        counts = torch.zeros(len(labels), device=labels.device).index_add(0, labels, torch.ones_like(labels).float())
        return per_anchor(super().compute_loss(embeddings, labels, *more)["loss"]["losses"] / counts[labels])


@found_by("check_indices_tuple_of_pairs", "the positive pairs that a miner chose are ignored")
class MinedPositivesIgnored(GoodLoss):
    def compute_loss(self, embeddings, labels, indices_tuple, *more):
        if indices_tuple is not None and len(indices_tuple) == 4:
            same = (labels[:, None] == labels).fill_diagonal_(False)
            indices_tuple = (*torch.where(same), *indices_tuple[2:])
        return super().compute_loss(embeddings, labels, indices_tuple, *more)


@found_by("check_indices_tuple_of_pairs", "the negative pairs that a miner chose are ignored", alone=True)
class MinedNegativesIgnored(GoodLoss):
    def compute_loss(self, embeddings, labels, indices_tuple, *more):
        if indices_tuple is not None and len(indices_tuple) == 4:
            indices_tuple = (*indices_tuple[:2], *torch.where(labels[:, None] != labels))
        return super().compute_loss(embeddings, labels, indices_tuple, *more)


@found_by("check_indices_tuple_of_triplets", "the triplets that a miner chose are ignored")
class MinedTripletsIgnored(GoodLoss):
    def compute_loss(self, embeddings, labels, indices_tuple, *more):
        triplets = indices_tuple is not None and len(indices_tuple) == 3
        return super().compute_loss(embeddings, labels, None if triplets else indices_tuple, *more)


@found_by("check_references", "ref_emb is accepted and ignored", alone=True)
class ReferencesIgnored(GoodLoss):
    capabilities = frozenset({"labels", "indices_tuple"})

    def compute_loss(self, embeddings, labels, indices_tuple, *references):
        return super().compute_loss(embeddings, labels, indices_tuple, embeddings, labels)


@found_by("check_references", "say references=True to pair_masks")
class ReferencesWithoutTheDiagonal(GoodLoss):
    def pairs(self, s, *batch, references):
        own = torch.eye(*s.shape, dtype=torch.bool, device=s.device)
        return [mask & ~own for mask in super().pairs(s, *batch, references=references)]


@found_by("check_references", "references")
class LabelsOfTheBatchForReferences(GoodLoss):
    def pairs(self, s, labels, indices_tuple, ref_labels, references):
        mine = labels if ref_labels is not None and len(ref_labels) == len(labels) else ref_labels
        return super().pairs(s, labels, indices_tuple, mine, references=references)


@found_by("check_inputs_unchanged", "changes labels in place")
class SortsLabelsInPlace(GoodLoss):
    def compute_loss(self, embeddings, labels, *more):
        same = super().compute_loss(embeddings, labels.clone(), *more)
        labels -= labels.min() - 1
        return same


@found_by("check_inputs_unchanged", r"changes indices_tuple\[0\] in place")
class IndicesInPlace(GoodLoss):
    def compute_loss(self, embeddings, labels, indices_tuple, *more):
        terms = super().compute_loss(embeddings, labels, indices_tuple, *more)
        if indices_tuple is not None:
            indices_tuple[0].zero_()
        return terms


# Losses: devices and numbers


@found_by("check_devices", r"at planted.py:\d+ mixes a tensor", alone=True)
class ForgetsTheDevice(GoodLoss):
    def values(self, s, *masks):
        return super().values(s, *masks) + torch.zeros(len(s))


@found_by("check_devices", r"call \.cpu\(\) first")
class Numpy(GoodLoss):
    def values(self, s, *masks):
        return super().values(s, *masks) * torch.from_numpy(np.exp(-s.detach().numpy())).to(s).mean()


@found_by("check_no_host_sync", r"a copy to the CPU at planted.py:\d+")
class CopiesToTheCPU(GoodLoss):
    def values(self, s, *masks):
        return super().values(s, *masks) * (1 + 0 * s.detach().cpu().max().to(s.device))


@found_by("check_no_host_sync", r"a value read at planted.py:\d+", alone=True)
class CallsItem(GoodLoss):
    def values(self, s, *masks):
        return super().values(s, *masks) * (1 if s.max().item() < 10 else 2)


@found_by("check_no_host_sync", r"a value read at planted.py:\d+", alone=True)
class WaitsInTheBackward(GoodLoss):
    class Clipped(Identity):
        @staticmethod
        def backward(ctx, grad):
            return grad if grad.abs().max().item() < 10 else grad / 2

    def values(self, s, *masks):
        return super().values(self.Clipped.apply(s), *masks)


@found_by("check_dtypes", "compute it in float32 or float64", alone=True)
class SummedInHalfPrecision(GoodLoss):
    def compute_loss(self, embeddings, *more):
        return per_anchor(super().compute_loss(embeddings, *more)["loss"]["losses"].to(embeddings.dtype))


@found_by("check_dtypes", "autocast changes the loss")
class InsideAutocast(GoodLoss):
    def compute_loss(self, embeddings, labels, indices_tuple, *references):
        s = similarities(full(embeddings), full(embeddings)).to(full(embeddings).dtype)
        return per_anchor(self.values(s, *pair_masks(s, labels, indices_tuple)))


@found_by("check_dtypes", "torch.float32 embeddings give")
class Overflows(GoodLoss):
    def values(self, s, *masks):
        return super().values(s, *masks) + 0 * (200 * s).exp().sum(1)


@found_by("check_degenerate_batches", "all at zero gives .* not finite; norms and roots want eps")
class NoEpsBelowANorm(GoodLoss):
    def compute_loss(self, embeddings, *more):
        unit = embeddings / embeddings.float().norm(dim=1)[:, None]
        return per_anchor(super().compute_loss(embeddings, *more)["loss"]["losses"] + unit.sum(1) * 0)


@found_by("check_degenerate_batches", "exact duplicates gives a gradient that is not finite")
class RootOfZero(GoodLoss):
    def compute_loss(self, embeddings, *more):
        squares = (embeddings[:, None] - embeddings).square().sum(2)
        own = torch.eye(len(squares), dtype=torch.bool, device=squares.device)
        return per_anchor(squares.masked_fill(own, 1).sqrt().sum(1))


@found_by("check_degenerate_batches", "a batch without negatives gives -inf")
class LogOfNone(GoodLoss):
    def values(self, s, positives, negatives):
        return super().values(s, positives, negatives) + (s.exp() * negatives).sum(1).log()


@found_by("check_degenerate_batches", "a batch without positives gives nan")
class MeanOfNone(GoodLoss):
    def values(self, s, positives, negatives):
        return 1 + (s * negatives).sum(1) / negatives.sum(1).clamp(min=1) - (s * positives).sum(1) / positives.sum(1)


@found_by("check_degenerate_batches", r"RuntimeError: .*shape.* \(at planted.py:\d+\)")
class EqualClassesAlone(GoodLoss):
    def values(self, s, positives, negatives):
        hardest = s[positives].reshape(len(s), each).amin(1) if (each := int(positives[0].sum())) else 0 * s.sum(1)
        return super().values(s, positives, negatives) - 0.1 * hardest


@found_by("check_degenerate_batches", r"RuntimeError: min.* \(at planted.py:\d+\)", alone=True)
class CrashesWithoutPositives(GoodLoss):
    def values(self, s, positives, negatives):
        return super().values(s, positives, negatives) + 0 * s[positives].min()


# Losses: what they keep


@found_by("check_state_dict", "the next loss is")
class StateNotSaved(GoodLoss):
    mean = 0.0

    def values(self, s, *masks):
        self.mean = 0.9 * self.mean + 0.1 * s.detach().mean()
        return super().values(s, *masks) * (1 + self.mean)


@found_by("check_pickle", "it cannot be copied or pickled", alone=True)
class CannotBePickled(GoodLoss):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.function = lambda x: x


@found_by("check_eval_keeps_state", r"in eval\(\) mode changes seen of its state", alone=True)
class MovesInEval(GoodLoss):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.register_buffer("seen", torch.zeros(()))

    def values(self, *batch):
        self.seen = self.seen + 1
        return super().values(*batch)


@found_by("check_tensors_are_registered", r"weights of .*register_buffer\('weights'")
class TensorBesideTheModule(GoodLoss):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.weights = torch.linspace(1, 2, 3)


@found_by("check_tensors_are_registered", r"leaves its graph in the attribute last .* detach\(\)")
class KeepsTheGraph(GoodLoss):
    def values(self, s, *masks):
        self.last = s
        return super().values(s, *masks)


@found_by("check_parameters_get_gradients", "the parameters scale get no gradient")
class UnusedParameter(GoodLoss):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.scale = nn.Parameter(torch.ones(2))


@found_by("check_pml_trainer", "a Tensor with 0 elements cannot be converted", alone=True)
class EmptyBuffer(GoodLoss):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.register_buffer("queue", torch.zeros(0))


@found_by("check_pml_trainer", "the recorded attribute hardest", alone=True)
class RecordsAVector(GoodLoss):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.add_to_recordable_attributes(name="hardest")

    def values(self, s, *masks):
        self.hardest = s.detach().amax(1)
        return super().values(s, *masks)


@found_by("check_determinism", "draw by torch's generators")
class RandomByNumpy(GoodLoss):
    def values(self, *batch):
        return super().values(*batch) * (1 + np.random.rand())


@found_by("check_globals_unchanged", "it seeds the global generator of torch")
class SeedsTheWorld(GoodLoss):
    def values(self, *batch):
        torch.manual_seed(0)
        return super().values(*batch)


# Losses: the dictionary of PML, torch's transforms, and promises


@found_by("check_reducers", "reduced already, so that a reducer", alone=True)
class MeanInside(GoodLoss):
    def compute_loss(self, *batch):
        value = super().compute_loss(*batch)["loss"]["losses"].mean()
        return {"loss": {"losses": value, "indices": None, "reduction_type": "already_reduced"}}


@found_by("check_reducers", "sub-loss 'push' is reduced already beside 'pull'")
class OneTermReduced(GoodPairs):
    def terms(self, *batch):
        terms = super().terms(*batch)
        push = {"losses": terms["push"]["losses"].mean(), "indices": None, "reduction_type": "already_reduced"}
        return terms | {"push": push}


@found_by("check_indices_belong_to_values", "do not belong to its values")
class IndicesShifted(GoodLoss):
    def compute_loss(self, *batch):
        terms = super().compute_loss(*batch)
        terms["loss"]["indices"] = terms["loss"]["indices"].roll(1)
        return terms


@found_by("check_indices_belong_to_values", "'pull' says neg_pair, but its indices are of images of one")
class KindsSwapped(GoodPairs):
    def terms(self, *batch):
        terms = super().terms(*batch)
        terms["pull"]["reduction_type"], terms["push"]["reduction_type"] = "neg_pair", "pos_pair"
        return terms


@found_by("check_call_forms", r"sub_loss_names\(\) says \['loss'\]; name them in _sub_loss_names")
class NamesForgotten(GoodPairs):
    def _sub_loss_names(self):
        return ["loss"]


@found_by("check_call_forms", r"returns a tensor of shape \(\); wanted {'loss'")
class AValueAlone(GoodLoss):
    def compute_loss(self, *batch):
        return super().compute_loss(*batch)["loss"]["losses"].mean()


@found_by("check_call_forms", "has reduction_type 'anchor'; wanted")
class KindOfItsOwn(GoodLoss):
    def compute_loss(self, *batch):
        return {"loss": super().compute_loss(*batch)["loss"] | {"reduction_type": "anchor"}}


@found_by("check_call_forms", r"SystemExit: no such mode \(at planted.py:\d+\)")
class Exits(GoodLoss):
    def values(self, *batch):
        raise SystemExit("no such mode")


@found_by("check_torch_func", "torch.func.grad", alone=True)
class ParametersBesideTheModule(GoodLoss):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.known = [self.scale]

    def values(self, *batch):
        return super().values(*batch) * self.known[0]


@found_by("check_torch_func", "torch.func.jvp gives another derivative", alone=True)
class WrongTangent(GoodLoss):
    class Doubled(Identity):
        @staticmethod
        def jvp(ctx, tangent):
            return 2 * tangent

    def values(self, s, *masks):
        return super().values(self.Doubled.apply(s), *masks)


@found_by("check_compile", "it says fullgraph = True, but", alone=True)
class SaysOneGraph(GoodLoss):
    fullgraph = True

    def values(self, s, *masks):
        logging.getLogger(__name__).debug("a batch of %d", len(s))
        return super().values(s, *masks)


@found_by("check_capabilities", r"unknown capabilities \['refs'\]; known are", alone=True)
class SaysRefs(GoodLoss):
    capabilities = GoodLoss.capabilities | {"refs"}


@found_by("check_saved_bytes", "although it says that it has tiles", alone=True)
class SaysTiles(GoodLoss):
    capabilities = GoodLoss.capabilities | {"tiles"}


@found_by("check_tiles", "tiles", alone=True)
class SaysTilesOfRows(PairLoss):
    """Its mean is that of the tile."""

    tiles = "rows"

    def equation(self, pairs):
        values = (pairs.matrix * pairs.negatives).sum(1) - (pairs.matrix * pairs.positives).sum(1)
        return per_anchor((values - values.mean()).square())


@found_by("check_gradient_caching", "micro-batches", alone=True)
class SeesTheGraph(GoodLoss):
    """Takes embeddings that were joined for others than they are."""

    def compute_loss(self, embeddings, *more):
        values = super().compute_loss(embeddings, *more)["loss"]["losses"]
        return per_anchor(values * (0.5 if "Cat" in str(embeddings.grad_fn) else 1))


# Miners


@found_by("check_mined_indices", "an anchor is its own positive")
class OwnPositiveMined(GoodMiner):
    def mine(self, embeddings, labels, *references):
        a, p, *negatives = super().mine(embeddings, labels, *references)
        rows = torch.arange(len(labels), device=labels.device)
        return (torch.cat([a, rows]), torch.cat([p, rows]), *negatives)


@found_by("check_mined_indices", "must be int64 .* got torch.int32")
class ShortIndices(GoodMiner):
    def mine(self, *batch):
        return tuple(index.int() for index in super().mine(*batch))


@found_by("check_mined_indices", r"PML refuses what mine\(\) returns; it wants three")
class TwoTensors(GoodMiner):
    def mine(self, *batch):
        return super().mine(*batch)[:2]


@found_by("check_mined_indices", "a positive has another class than its anchor")
class ClassesMixed(GoodMiner):
    def mine(self, *batch):
        a, p, b, n = super().mine(*batch)
        return b, n, a, p


@found_by("check_mined_references", "mine among")
class ReferencesNotMined(GoodMiner):
    def matrix(self, embeddings, ref_emb):
        s = similarities(embeddings.float(), embeddings.float())
        return s if ref_emb is embeddings else s.repeat(1, 2)[:, : len(ref_emb)]


@found_by("check_mined_references", "partners are rows of ref_emb, with ref_labels")
class LabelsOfTheBatchAlone(GoodMiner):
    def same(self, labels, ref_labels):
        return labels[:, None] == labels.repeat(2)[: len(ref_labels)]


@found_by("check_no_loop_over_anchors", "a loop over images; use whole matrices")
class LoopOverImages(GoodMiner):
    def matrix(self, embeddings, ref_emb):
        return torch.cat([similarities(e[None].float(), ref_emb.float()) for e in embeddings])


@found_by("check_calls_are_independent", "another result than of a new object")
class RemembersTheLast(GoodMiner):
    moment = 0.0

    def matrix(self, embeddings, ref_emb):
        s = super().matrix(embeddings, ref_emb)
        before, self.moment = self.moment, s.mean().item()
        return s + 9 * before * torch.linspace(-1, 1, s.shape[1], device=s.device)


@found_by("check_dtypes", r"RuntimeError: quantile.* \(at planted.py:\d+\)")
class QuantileOfHalves(GoodMiner):
    def matrix(self, embeddings, ref_emb):
        return embeddings @ ref_emb.T - torch.quantile(embeddings @ ref_emb.T, 0.5)


@found_by("check_names_of_classes", "change the result")
class MinesByNumbers(GoodMiner):
    def same(self, labels, ref_labels):
        return super().same(labels // 2, ref_labels // 2)


@found_by("check_devices", "on the CPU", alone=True)
class MinesOnTheCPU(miners.BaseMiner):
    """All pairs, each with its anchor's row, of indices that are made on the CPU."""

    capabilities = frozenset({"labels"})

    def mine(self, embeddings, labels, ref_emb, ref_labels):
        rows = torch.arange(len(labels))
        a, p = torch.where((labels[:, None] == labels) & (rows[:, None] != rows))
        return a, p, *torch.where(labels[:, None] != labels)


# Samplers


@found_by("check_sampler", r"a pass gives 2 items, but len\(\) says 24")
class LengthInImages(GoodBatches):
    def __len__(self):
        return self.length


@found_by("check_sampler", r"a pass gives 0 items, but len\(\) says 2")
class OnePassAlone(GoodBatches):
    def __iter__(self):
        yield from getattr(self, "drawn", super().__iter__())
        self.drawn = ()


@found_by("check_sampler", "an image comes twice in a batch")
class ImagesTwice(GoodBatches):
    def __iter__(self):
        yield from (batch[:1] * self.batch_size for batch in super().__iter__())


@found_by("check_sampler", "24 and 48 both give 2 items")
class LengthIgnored(GoodBatches):
    def __init__(self, labels, batch_size, length_before_new_iter=24):
        super().__init__(labels, batch_size, len(labels))


@found_by("check_sampler", "an index is outside of 0 to 23")
class CountsFromOne(GoodBatches):
    def __iter__(self):
        yield from ([index + 1 for index in batch] for batch in super().__iter__())


@found_by("check_sampler", r"ZeroDivisionError: .* \(at planted.py:\d+\)")
class StopsHalfway(GoodBatches):
    def __iter__(self):
        yield 1 / 0


@found_by("check_sampler_state", "draws something else; give it state_dict")
class GeneratorNotSaved(GoodBatches):
    def load_state_dict(self, state):
        pass


# Distances


@found_by("check_distance", "pass is_inverted=True")
class SimilarityAsDistance(distances.CosineSimilarity):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.is_inverted = False


@found_by("check_distance", "the gradient between equal points")
class RootWithoutEps(distances.LpDistance):
    def compute_mat(self, query_emb, ref_emb):
        return ((query_emb[:, None] - ref_emb) ** 2).sum(2).sqrt()


@found_by("check_distance", "is not symmetric")
class NotSymmetric(distances.DotProductSimilarity):
    def compute_mat(self, query_emb, ref_emb):
        return query_emb @ ref_emb.abs().T


@found_by("check_distance", "pairwise_distance differs from the diagonal")
class PairsOtherwise(distances.DotProductSimilarity):
    def pairwise_distance(self, query_emb, ref_emb):
        return (query_emb - ref_emb).square().sum(1)


@found_by("check_inputs_unchanged", "changes embeddings in place")
class CentersInPlace(distances.DotProductSimilarity):
    def forward(self, query_emb, ref_emb=None):
        if not query_emb.requires_grad:
            query_emb -= query_emb.mean(0)
        return super().forward(query_emb, ref_emb)


# Regularizers


@found_by("check_degenerate_batches", "all at one point gives a gradient that is not")
class NormWithoutEps(regularizers.BaseRegularizer):
    def compute_loss(self, embeddings):
        x = full(embeddings)
        return per_anchor((x - x.mean(0)).square().sum(1).sqrt())


@found_by("check_names_of_classes", "never calculate with them")
class VarianceByNumbers(LabeledRegularizer):
    def compute_loss(self, embeddings, labels):
        return per_anchor(full(embeddings).square().sum(1) * (1 + labels / 10))


# A reducer


@found_by("check_reducer", r"element values give tensor.*\n.*, not a scalar tensor")
class ReturnsValues(reducers.BaseReducer):
    def forward(self, loss_dict, embeddings, labels):
        return loss_dict["loss"]["losses"]
