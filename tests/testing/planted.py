"""Bugs as authors make them, one in each component, for the checks to find. Importable by other processes."""

import numpy as np
import torch
import wrong
from pytorch_metric_learning import distances, losses, miners, regularizers
from torch import nn
from torch.utils.data import Sampler
from wrong import GoodLoss, masks, similarities

from pml_ext.plugin import LabeledRegularizer, pair_masks

# What is right, and has a bug planted in it


class GoodWithReferences(GoodLoss):
    """The good one, over references too."""

    capabilities = frozenset({"labels", "indices_tuple", "references"})

    def pairs(self, s, labels, indices_tuple, ref_labels, references):
        return pair_masks(s, labels, indices_tuple, ref_labels, references=references)

    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        kind = torch.promote_types(embeddings.dtype, torch.float32)
        with torch.autocast("cpu", enabled=False):
            s = similarities(embeddings.to(kind), ref_emb.to(kind))
        values = self.values(s, *self.pairs(s, labels, indices_tuple, ref_labels, ref_emb is not embeddings))
        indices = torch.arange(len(values), device=values.device)
        return {"loss": {"losses": values, "indices": indices, "reduction_type": "element"}}


class GoodProxies(losses.BaseMetricLossFunction):
    """A center per class."""

    capabilities = frozenset({"labels"})

    def __init__(self, size=8, count=6, **kwargs):
        super().__init__(**kwargs)
        self.proxies = nn.Parameter(torch.randn(count, size))

    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        if ref_emb is not embeddings:
            raise ValueError("no references")
        embeddings = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
        with torch.autocast("cpu", enabled=False):
            values = nn.functional.cross_entropy(embeddings @ self.centers().T, labels.long(), reduction="none")
        indices = torch.arange(len(values), device=values.device)
        return {"loss": {"losses": values, "indices": indices, "reduction_type": "element"}}

    def centers(self):
        return self.proxies


class GoodPairs(GoodLoss):
    """Values of positive and of negative pairs, two sub-losses."""

    def terms(self, s, positives, negatives):
        names = {"pull": ("pos_pair", positives, 1 - s), "push": ("neg_pair", negatives, s)}
        return {
            name: {"losses": x[mask], "indices": torch.where(mask), "reduction_type": kind}
            for name, (kind, mask, x) in names.items()
        }

    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        if ref_emb is not embeddings:
            raise ValueError("no references")
        s = similarities(embeddings, embeddings)
        return self.terms(s, *masks(labels, indices_tuple, len(s)))

    def _sub_loss_names(self):
        return ["pull", "push"]


class GoodMiner(miners.BaseMiner):
    """Positives that are farther, and negatives that are nearer, than the middle of the distances."""

    capabilities = frozenset({"labels", "references"})

    def same(self, labels, ref_labels):
        return labels[:, None] == ref_labels

    def matrix(self, embeddings, ref_emb):
        return similarities(embeddings.float(), ref_emb.float())

    def mine(self, embeddings, labels, ref_emb, ref_labels):
        s = self.matrix(embeddings, ref_emb)
        same = self.same(labels, ref_labels)
        positives = same & (s < s.mean())
        if ref_emb is embeddings:
            positives = positives & ~torch.eye(len(s), dtype=torch.bool, device=s.device)
        return (*torch.where(positives), *torch.where(~same & (s > s.mean())))


# Losses


class NoMean(GoodLoss):
    def values(self, s, positives, negatives):
        return super().values(s, positives, negatives) * positives.sum(1)


class WrongSign(GoodLoss):
    def values(self, s, positives, negatives):
        return super().values(-s, positives, negatives)


class MeanOverTheBatch(GoodLoss):
    def values(self, s, positives, negatives):
        means = [(s * mask).sum(1) / len(s) for mask in (positives, negatives)]
        return torch.where(positives.any(1) & negatives.any(1), means[1] - means[0] + 1, 0 * s.sum(1))


class OwnPositive(GoodLoss):
    def values(self, s, positives, negatives):
        return super().values(s, positives | torch.eye(len(s), dtype=torch.bool, device=s.device), negatives)


class OwnNegative(GoodLoss):
    def values(self, s, positives, negatives):
        return super().values(s, positives, negatives | torch.eye(len(s), dtype=torch.bool, device=s.device))


class SquareForgotten(GoodLoss):
    def values(self, s, positives, negatives):
        return super().values(s, positives, negatives).abs().sqrt()


class MaskOffByOne(GoodLoss):
    def values(self, s, positives, negatives):
        return super().values(s, positives.roll(1, 1), negatives)


class PositivesInTheSecondHalf(GoodLoss):
    def values(self, s, positives, negatives):
        half = torch.zeros_like(positives)
        half[:, len(s) // 2 :] = True
        return super().values(s, positives & half, negatives)


class Detached(GoodLoss):
    def values(self, s, positives, negatives):
        return super().values(s.detach(), positives, negatives)


class NoGrad(GoodLoss):
    @torch.no_grad()
    def values(self, s, positives, negatives):
        return super().values(s, positives, negatives)


class NegativesDetached(GoodLoss):
    def values(self, s, positives, negatives):
        return super().values(torch.where(negatives, s.detach(), s), positives, negatives)


class LabelsAsNumbers(GoodLoss):
    def compute_loss(self, embeddings, labels, *more):
        terms = super().compute_loss(embeddings, labels, *more)
        terms["loss"]["losses"] = terms["loss"]["losses"] * (1 + labels)
        return terms


class LabelParity(GoodLoss):
    def compute_loss(self, embeddings, labels, *more):
        return super().compute_loss(embeddings, labels % 4, *more)


class LabelsAsIndex(GoodLoss):
    def compute_loss(self, embeddings, labels, *more):
        terms = super().compute_loss(embeddings, labels, *more)
        counts = torch.zeros(len(labels), device=labels.device).index_add(0, labels, torch.ones_like(labels).float())
        terms["loss"]["losses"] = terms["loss"]["losses"] / counts[labels]
        return terms


class NormalizesInPlace(GoodLoss):
    def compute_loss(self, embeddings, *more):
        if not embeddings.requires_grad:
            embeddings /= embeddings.norm(dim=1, keepdim=True)
        return super().compute_loss(embeddings, *more)


class SortsLabelsInPlace(GoodLoss):
    def compute_loss(self, embeddings, labels, *more):
        same = super().compute_loss(embeddings, labels.clone(), *more)
        labels -= labels.min() - 1
        return same


class IndicesInPlace(GoodLoss):
    def compute_loss(self, embeddings, labels, indices_tuple, *more):
        terms = super().compute_loss(embeddings, labels, indices_tuple, *more)
        if indices_tuple is not None:
            indices_tuple[0].zero_()
        return terms


class MinedPositivesIgnored(GoodLoss):
    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        if indices_tuple is not None and len(indices_tuple) == 4:
            same = (labels[:, None] == labels).fill_diagonal_(False)
            indices_tuple = (*torch.where(same), *indices_tuple[2:])
        return super().compute_loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)


class MinedTripletsIgnored(GoodLoss):
    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        triplets = indices_tuple is not None and len(indices_tuple) == 3
        return super().compute_loss(embeddings, labels, None if triplets else indices_tuple, ref_emb, ref_labels)


class ReferencesWithoutTheDiagonal(GoodWithReferences):
    def pairs(self, s, labels, indices_tuple, ref_labels, references):
        found = super().pairs(s, labels, indices_tuple, ref_labels, references)
        own = torch.eye(*s.shape, dtype=torch.bool, device=s.device)
        return [mask & ~own for mask in found]


class LabelsOfTheBatchForReferences(GoodWithReferences):
    def pairs(self, s, labels, indices_tuple, ref_labels, references):
        mine = labels if ref_labels is not None and len(ref_labels) == len(labels) else ref_labels
        return super().pairs(s, labels, indices_tuple, mine, references)


class Numpy(GoodLoss):
    def values(self, s, positives, negatives):
        weights = torch.from_numpy(np.exp(-s.detach().numpy())).to(s)
        return super().values(s, positives, negatives) * weights.mean()


class CopiesToTheCPU(GoodLoss):
    def values(self, s, positives, negatives):
        weight = s.detach().cpu().max().to(s.device)
        return super().values(s, positives, negatives) * (1 + 0 * weight)


class InHalfPrecision(GoodLoss):
    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        s = similarities(embeddings, embeddings)
        values = self.values(s, *masks(labels, indices_tuple, len(s)))
        return {"loss": {"losses": values, "indices": torch.arange(len(s)), "reduction_type": "element"}}


class InsideAutocast(GoodLoss):
    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        embeddings = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
        s = similarities(embeddings, embeddings).to(embeddings.dtype)
        values = self.values(s, *masks(labels, indices_tuple, len(s)))
        return {"loss": {"losses": values, "indices": torch.arange(len(s)), "reduction_type": "element"}}


class Overflows(GoodLoss):
    def values(self, s, positives, negatives):
        return super().values(s, positives, negatives) + 0 * (200 * s).exp().sum(1)


class NoEpsBelowANorm(GoodLoss):
    def compute_loss(self, embeddings, *more):
        scale = embeddings.float().norm(dim=1)[:, None]
        terms = super().compute_loss(embeddings, *more)
        terms["loss"]["losses"] = terms["loss"]["losses"] + (embeddings / scale).sum(1) * 0
        return terms


class RootOfZero(GoodLoss):
    def compute_loss(self, embeddings, labels, *more):
        x = nn.functional.normalize(embeddings.double())
        squares = (x[:, None] - x).square().sum(2)
        own = torch.eye(len(x), dtype=torch.bool, device=x.device)
        values = squares.masked_fill(own, 1).sqrt().sum(1)
        return super().compute_loss(embeddings, labels, *more) | {
            "loss": {"losses": values, "indices": torch.arange(len(x)), "reduction_type": "element"}
        }


class LogOfNone(GoodLoss):
    def values(self, s, positives, negatives):
        return super().values(s, positives, negatives) + (s.exp() * negatives).sum(1).log()


class MeanOfNone(GoodLoss):
    def values(self, s, positives, negatives):
        return 1 + (s * negatives).sum(1) / negatives.sum(1).clamp(min=1) - (s * positives).sum(1) / positives.sum(1)


class EqualClassesAlone(GoodLoss):
    def values(self, s, positives, negatives):
        each = int(positives[0].sum())
        hardest = s[positives].reshape(len(s), each).amin(1) if each else 0 * s.sum(1)
        return super().values(s, positives, negatives) - 0.1 * hardest


class TensorBesideTheModule(GoodLoss):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.weights = torch.linspace(1, 2, 3)


class KeepsTheGraph(GoodLoss):
    def values(self, s, positives, negatives):
        self.last = s
        return super().values(s, positives, negatives)


class UnusedParameter(GoodLoss):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.scale = nn.Parameter(torch.ones(2))


class ParameterByItsData(GoodProxies):
    def centers(self):
        return nn.functional.normalize(self.proxies.data)


class IndicesShifted(GoodLoss):
    def compute_loss(self, *arguments):
        terms = super().compute_loss(*arguments)
        terms["loss"]["indices"] = terms["loss"]["indices"].roll(1)
        return terms


class KindsSwapped(GoodPairs):
    def terms(self, s, positives, negatives):
        terms = super().terms(s, positives, negatives)
        terms["pull"]["reduction_type"], terms["push"]["reduction_type"] = "neg_pair", "pos_pair"
        return terms


class OneTermReduced(GoodPairs):
    def terms(self, s, positives, negatives):
        terms = super().terms(s, positives, negatives)
        push = {"losses": terms["push"]["losses"].mean(), "indices": None, "reduction_type": "already_reduced"}
        return terms | {"push": push}


class NamesForgotten(GoodPairs):
    def _sub_loss_names(self):
        return ["loss"]


class AValueAlone(GoodLoss):
    def compute_loss(self, *arguments):
        return super().compute_loss(*arguments)["loss"]["losses"].mean()


class KindOfItsOwn(GoodLoss):
    def compute_loss(self, *arguments):
        terms = super().compute_loss(*arguments)
        terms["loss"]["reduction_type"] = "anchor"
        return terms


class RandomByNumpy(GoodLoss):
    def values(self, s, positives, negatives):
        return super().values(s, positives, negatives) * (1 + np.random.rand())


class SeedsTheWorld(GoodLoss):
    def values(self, s, positives, negatives):
        torch.manual_seed(0)
        return super().values(s, positives, negatives)


class Exits(GoodLoss):
    def values(self, s, positives, negatives):
        raise SystemExit("no such mode")


# Miners


class OwnPositiveMined(GoodMiner):
    def mine(self, embeddings, labels, ref_emb, ref_labels):
        a, p, *negatives = super().mine(embeddings, labels, ref_emb, ref_labels)
        rows = torch.arange(len(labels), device=labels.device)
        return (torch.cat([a, rows]), torch.cat([p, rows]), *negatives)


class ReferencesNotMined(GoodMiner):
    def matrix(self, embeddings, ref_emb):
        s = similarities(embeddings.float(), embeddings.float())
        return s if ref_emb is embeddings else s.repeat(1, 2)[:, : len(ref_emb)]


class LabelsOfTheBatchAlone(GoodMiner):
    def same(self, labels, ref_labels):
        return labels[:, None] == labels.repeat(2)[: len(ref_labels)]


class ShortIndices(GoodMiner):
    def mine(self, *batch):
        return tuple(index.int() for index in super().mine(*batch))


class TwoTensors(GoodMiner):
    def mine(self, *batch):
        return super().mine(*batch)[:2]


class ClassesMixed(GoodMiner):
    def mine(self, *batch):
        a, p, b, n = super().mine(*batch)
        return b, n, a, p


class LoopOverImages(GoodMiner):
    def matrix(self, embeddings, ref_emb):
        return torch.cat([similarities(e[None].float(), ref_emb.float()) for e in embeddings])


class MinesByNumpy(GoodMiner):
    def matrix(self, embeddings, ref_emb):
        noise = torch.from_numpy(np.random.rand(len(embeddings), len(ref_emb)))
        return super().matrix(embeddings, ref_emb) + noise.to(embeddings.device)


class RemembersTheLast(GoodMiner):
    moment = 0.0

    def matrix(self, embeddings, ref_emb):
        s = super().matrix(embeddings, ref_emb)
        before, self.moment = self.moment, s.mean().item()
        return s + 9 * before * torch.linspace(-1, 1, s.shape[1], device=s.device)


class HardestOfNone(GoodMiner):
    def mine(self, embeddings, labels, ref_emb, ref_labels):
        s, same = self.matrix(embeddings, ref_emb), self.same(labels, ref_labels)
        s[~same].max()
        return super().mine(embeddings, labels, ref_emb, ref_labels)


class QuantileOfHalves(GoodMiner):
    def matrix(self, embeddings, ref_emb):
        s = embeddings @ ref_emb.T
        return s - torch.quantile(s, 0.5)


class MinesByNumbers(GoodMiner):
    def same(self, labels, ref_labels):
        return labels[:, None] // 2 == ref_labels // 2


class ShufflesLabels(GoodMiner):
    def mine(self, embeddings, labels, ref_emb, ref_labels):
        mined = super().mine(embeddings, labels, ref_emb, ref_labels)
        labels.add_(1)
        return mined


# Samplers


class Batches(Sampler):
    """Batches drawn at random, from a generator of its own."""

    def __init__(self, labels, batch_size, length_before_new_iter=24):
        self.labels, self.batch_size, self.length = labels, batch_size, length_before_new_iter
        self.generator = torch.Generator().manual_seed(0)

    def __len__(self):
        return self.length // self.batch_size

    def __iter__(self):
        for _ in range(len(self)):
            yield torch.randperm(len(self.labels), generator=self.generator)[: self.batch_size].tolist()

    def state_dict(self):
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])


class LengthInImages(Batches):
    def __len__(self):
        return self.length

    def __iter__(self):
        for _ in range(self.length // self.batch_size):
            yield torch.randperm(len(self.labels), generator=self.generator)[: self.batch_size].tolist()


class OnePassAlone(Batches):
    def __iter__(self):
        yield from getattr(self, "drawn", super().__iter__())
        self.drawn = ()


class GeneratorNotSaved(Batches):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class ImagesTwice(Batches):
    def __iter__(self):
        for _ in range(len(self)):
            yield torch.randint(4, (self.batch_size,), generator=self.generator).tolist()


class LengthIgnored(Batches):
    def __len__(self):
        return len(self.labels) // self.batch_size


class StopsHalfway(Batches):
    def __iter__(self):
        yield 1 / 0


class CountsFromOne(Batches):
    def __iter__(self):
        yield from ([index + 1 for index in batch] for batch in super().__iter__())


# Distances


class SimilarityAsDistance(distances.CosineSimilarity):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.is_inverted = False


class RootWithoutEps(distances.LpDistance):
    def compute_mat(self, query_emb, ref_emb):
        return ((query_emb[:, None] - ref_emb) ** 2).sum(2).sqrt()


class NotSymmetric(distances.DotProductSimilarity):
    def compute_mat(self, query_emb, ref_emb):
        return query_emb @ ref_emb.abs().T


class PairsOtherwise(distances.DotProductSimilarity):
    def pairwise_distance(self, query_emb, ref_emb):
        return (query_emb - ref_emb).square().sum(1)


class CentersInPlace(distances.DotProductSimilarity):
    def forward(self, query_emb, ref_emb=None):
        if not query_emb.requires_grad:
            query_emb -= query_emb.mean(0)
        return super().forward(query_emb, ref_emb)


# Regularizers


class ByPosition(regularizers.BaseRegularizer):
    def compute_loss(self, embeddings):
        weights = torch.linspace(1, 2, len(embeddings), dtype=embeddings.dtype, device=embeddings.device)
        values = (embeddings.square().sum(1) * weights).to(torch.promote_types(embeddings.dtype, torch.float32))
        return {"loss": {"losses": values, "indices": torch.arange(len(embeddings)), "reduction_type": "element"}}


class NormWithoutEps(regularizers.BaseRegularizer):
    def compute_loss(self, embeddings):
        x = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
        values = (x - x.mean(0)).square().sum(1).sqrt()
        return {"loss": {"losses": values, "indices": torch.arange(len(x)), "reduction_type": "element"}}


class VarianceByNumbers(LabeledRegularizer):
    def compute_loss(self, embeddings, labels):
        x = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
        values = x.square().sum(1) * (1 + labels / 10)
        return {"loss": {"losses": values, "indices": torch.arange(len(x)), "reduction_type": "element"}}


SLOW = {"reference": wrong.slow}
# What finds each, and words of what it says.
LOSSES = [
    (NoMean, "check_reference", "the value is", SLOW),
    (WrongSign, "check_reference", "the value is", SLOW),
    (MeanOverTheBatch, "check_reference", "the value is", SLOW),
    (OwnPositive, "check_reference", "the value is", SLOW),
    (OwnNegative, "check_reference", "the value is", SLOW),
    (SquareForgotten, "check_reference", "the value is", SLOW),
    (MaskOffByOne, "check_order_does_not_matter", "the order of the batch changes the loss", {}),
    (PositivesInTheSecondHalf, "check_order_does_not_matter", "the order of the batch changes the loss", {}),
    (Detached, "check_call_forms", r"no gradient .* look for detach\(\)", {}),
    (NoGrad, "check_call_forms", r"no gradient .*torch.no_grad\(\)", {}),
    (NegativesDetached, "check_gradients", "differs from finite differences", {}),
    (LabelsAsNumbers, "check_names_of_classes", "compare labels, never calculate with them", {}),
    (LabelParity, "check_names_of_classes", "compare labels, never calculate with them", {}),
    (LabelsAsIndex, "check_names_of_classes", r"IndexError: .* \(at planted.py:\d+\)", {}),
    (NormalizesInPlace, "check_inputs_unchanged", "changes embeddings in place", {}),
    (SortsLabelsInPlace, "check_inputs_unchanged", "changes labels in place", {}),
    (IndicesInPlace, "check_inputs_unchanged", r"changes indices_tuple\[0\] in place", {}),
    (MinedPositivesIgnored, "check_indices_tuple_of_pairs", "the positive pairs that a miner chose are ignored", {}),
    (wrong.MinedNegativesIgnored, "check_indices_tuple_of_pairs", "the negative pairs that a miner chose are", {}),
    (MinedTripletsIgnored, "check_indices_tuple_of_triplets", "the triplets that a miner chose are ignored", {}),
    (wrong.ReferencesIgnored, "check_references", "ref_emb is accepted and ignored", {}),
    (ReferencesWithoutTheDiagonal, "check_references", "say references=True to pair_masks", {}),
    (LabelsOfTheBatchForReferences, "check_references", "references", {}),
    (wrong.ForgetsTheDevice, "check_devices", r"at wrong.py:\d+ mixes a tensor", {}),
    (Numpy, "check_devices", r"call \.cpu\(\) first", {}),
    (CopiesToTheCPU, "check_no_host_sync", r"a copy to the CPU at planted.py:\d+", {}),
    (wrong.CallsItem, "check_no_host_sync", r"a value read at wrong.py:\d+", {}),
    (InHalfPrecision, "check_dtypes", "compute it in float32 or float64", {}),
    (InsideAutocast, "check_dtypes", "autocast changes the loss", {}),
    (Overflows, "check_dtypes", "torch.float32 embeddings give", {}),
    (NoEpsBelowANorm, "check_degenerate_batches", "all at zero gives .* not finite; norms and roots want eps", {}),
    (RootOfZero, "check_degenerate_batches", "exact duplicates gives a gradient that is not finite", {}),
    (LogOfNone, "check_degenerate_batches", "a batch without negatives gives -inf", {}),
    (MeanOfNone, "check_degenerate_batches", "a batch without positives gives nan", {}),
    (EqualClassesAlone, "check_degenerate_batches", r"RuntimeError: .* \(at planted.py:\d+\)", {}),
    (TensorBesideTheModule, "check_tensors_are_registered", r"weights of .*register_buffer\('weights'", {}),
    (KeepsTheGraph, "check_tensors_are_registered", r"leaves its graph in the attribute last .* detach\(\)", {}),
    (UnusedParameter, "check_parameters_get_gradients", "the parameters scale get no gradient", {}),
    (ParameterByItsData, "check_parameters_get_gradients", "the parameters proxies get no gradient", {}),
    (IndicesShifted, "check_indices_belong_to_values", "do not belong to its values", {}),
    (KindsSwapped, "check_indices_belong_to_values", "'pull' says neg_pair, but its indices are of images of one", {}),
    (OneTermReduced, "check_reducers", "sub-loss 'push' is reduced already beside 'pull'", {}),
    (wrong.MeanInside, "check_reducers", "reduced already, so that a reducer", {}),
    (NamesForgotten, "check_call_forms", r"sub_loss_names\(\) says \['loss'\]; name them in _sub_loss_names", {}),
    (AValueAlone, "check_call_forms", r"returns a tensor of shape \(\); wanted {'loss'", {}),
    (KindOfItsOwn, "check_call_forms", "has reduction_type 'anchor'; wanted", {}),
    (RandomByNumpy, "check_determinism", "draw by torch's generators", {}),
    (SeedsTheWorld, "check_determinism", "a call seeds torch's global generator", {}),
    (Exits, "check_call_forms", r"SystemExit: no such mode \(at planted.py:\d+\)", {}),
]
OTHERS = [
    (OwnPositiveMined, "check_mined_indices", "an anchor is its own positive", {}),
    (ReferencesNotMined, "check_mined_references", "mine among", {}),
    (LabelsOfTheBatchAlone, "check_mined_references", "partners are rows of ref_emb, with ref_labels", {}),
    (ShortIndices, "check_mined_indices", "must be int64 .* got torch.int32", {}),
    (TwoTensors, "check_mined_indices", r"PML refuses what mine\(\) returns; it wants three", {}),
    (ClassesMixed, "check_mined_indices", "a positive has another class than its anchor", {}),
    (LoopOverImages, "check_no_loop_over_anchors", "a loop over images; use whole matrices", {}),
    (MinesByNumpy, "check_determinism", "draw by torch's generators", {}),
    (RemembersTheLast, "check_determinism", "depends on the calls before", {}),
    (HardestOfNone, "check_degenerate_batches", r"max.* \(at planted.py:\d+\)", {}),
    (QuantileOfHalves, "check_dtypes", r"RuntimeError: quantile.* \(at planted.py:\d+\)", {}),
    (MinesByNumbers, "check_names_of_classes", "change what is mined", {}),
    (ShufflesLabels, "check_inputs_unchanged", "changes labels in place", {}),
    (wrong.MinesOnTheCPU, "check_devices", "on the CPU", {}),
    (LengthInImages, "check_sampler", r"a pass gives 2 items, but len\(\) says 24", {}),
    (OnePassAlone, "check_sampler", r"a pass gives 0 items, but len\(\) says 2", {}),
    (CountsFromOne, "check_sampler", "an index is outside of 0 to 23", {}),
    (GeneratorNotSaved, "check_sampler_state", "draws something else; give it state_dict", {}),
    (ImagesTwice, "check_sampler", "an image comes twice in a batch", {}),
    (LengthIgnored, "check_sampler", "24 and 48 both give 2 items", {}),
    (SimilarityAsDistance, "check_distance", "pass is_inverted=True", {}),
    (RootWithoutEps, "check_distance", "the gradient between equal points", {}),
    (NotSymmetric, "check_distance", "is not symmetric", {}),
    (PairsOtherwise, "check_distance", "pairwise_distance differs from the diagonal", {}),
    (CentersInPlace, "check_inputs_unchanged", "changes embeddings in place", {}),
    (ByPosition, "check_order_does_not_matter", "the order of the batch changes the regularizer", {}),
    (NormWithoutEps, "check_degenerate_batches", "all at one point gives a gradient that is not", {}),
    (VarianceByNumbers, "check_names_of_classes", "compare labels, never calculate with them", {}),
]
GOOD = [GoodWithReferences, GoodProxies, GoodMiner, Batches]
