"""Components with a planted mistake each, of the kinds that plugins have, and the right ones that they derive from.

They are written as a plugin's author would write them from the documentation alone.
"""

import copy
import itertools
import random
import threading
import warnings
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Sampler

from pml_ext.plugin import (
    BaseDistance,
    BaseMetricLossFunction,
    BaseMiner,
    BaseReducer,
    BaseRegularizer,
    CosineSimilarity,
    EuclideanDistance,
    FullPrecisionForward,
    FullPrecisionMining,
    GramCosineSimilarity,
    LabeledRegularizer,
    PairLoss,
    masked_max,
    masked_mean,
    masked_min,
    matrix_of,
    pair_masks,
    per_anchor,
    reduced,
    to_full_precision,
)

softplus = nn.functional.softplus


class Planted(NamedTuple):
    """A class with a mistake, and the check that finds it: ``check_reference`` where it is a wrong equation."""

    cls: Any
    kind: str
    words: str
    check: str


PLANTED: dict[str, Planted] = {}


def planted(kind: str, words: str, check: str):
    """Enter a class into the table of planted mistakes."""

    def enter(cls):
        PLANTED[cls.__name__] = Planted(cls, kind, words, check)
        return cls

    return enter


# Losses. The right ones: the same equation on `PairLoss` and by hand, and one with proxies.


def loop(embeddings, labels, alpha=2.0, beta=10.0, margin=0.5):
    """The deviance, one anchor after the other."""
    points = embeddings / embeddings.norm(dim=1, keepdim=True)
    total, ours = 0 * embeddings.sum(), torch.arange(len(labels))
    for i in range(len(points)):
        gaps = points @ points[i] - margin
        near = gaps[(labels == labels[i]) & (ours != i)]
        far = gaps[labels != labels[i]]
        total = total + (1 + (-alpha * near).exp()).log().sum() / max(1, len(near))
        total = total + (1 + (beta * far).exp()).log().sum() / max(1, len(far))
    return total / len(points)


class Deviance(PairLoss):
    """The binomial deviance of an anchor's similarities."""

    def __init__(self, alpha: float = 2.0, beta: float = 10.0, margin: float = 0.5, **kwargs):
        super().__init__(**kwargs)
        self.alpha, self.beta, self.margin = alpha, beta, margin

    def equation(self, pairs):
        return per_anchor(self.values(pairs.matrix, pairs.positives, pairs.negatives))

    def values(self, matrix, positives, negatives):
        gap = matrix - self.margin
        pull = masked_mean(softplus(-self.alpha * gap), positives)
        return pull + masked_mean(softplus(self.beta * gap), negatives)


class DevianceByHand(FullPrecisionForward, BaseMetricLossFunction):
    """The same, without the base of pair losses."""

    capabilities = frozenset({"labels", "indices_tuple", "references"})

    def __init__(self, alpha: float = 2.0, beta: float = 10.0, margin: float = 0.5, **kwargs):
        super().__init__(**kwargs)
        self.alpha, self.beta, self.margin = alpha, beta, margin

    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        if len(embeddings) == 0 or len(ref_emb) == 0:
            return self.zero_losses()
        matrix, references = self.similarity(embeddings, ref_emb)
        positives, negatives = self.masks(matrix, labels, indices_tuple, ref_labels, references)
        return self.packed(self.values(matrix, positives, negatives), labels)

    def similarity(self, embeddings, ref_emb):
        return matrix_of(self.distance, embeddings, ref_emb)

    def masks(self, matrix, labels, indices_tuple, ref_labels, references):
        return pair_masks(matrix, labels, indices_tuple, ref_labels, references=references)

    values = Deviance.values

    def packed(self, values, labels):
        return per_anchor(values)

    def get_default_distance(self):
        return GramCosineSimilarity()


class ByNames(DevianceByHand):
    """The same, which compares the names of classes itself."""

    def names(self, labels):
        return labels

    def equal(self, mine, theirs):
        return self.names(mine)[:, None] == self.names(theirs)

    def masks(self, matrix, labels, indices_tuple, ref_labels, references):
        if indices_tuple is not None:
            return super().masks(matrix, labels, indices_tuple, ref_labels, references)
        same = self.equal(labels, ref_labels)
        itself = torch.eye(len(labels), dtype=torch.bool) if not references else torch.zeros_like(same)
        return same & ~itself, ~same


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
        x, centers = (nn.functional.normalize(e) for e in (embeddings, self.centers.to(embeddings.dtype)))
        rows = self.rows(labels)
        return per_anchor(nn.functional.cross_entropy(self.scale * x @ centers.T, rows, reduction="none"))

    def rows(self, labels):
        return labels


@planted("loss", "the masks of pairs are kept by the length of the batch", "check_calls_are_independent")
class MasksKeptByLength(DevianceByHand):
    _kept = None

    def masks(self, matrix, *arguments):
        if self._kept is None or self._kept[0].shape != matrix.shape:
            self._kept = super().masks(matrix, *arguments)
        return self._kept


@planted("loss", "a moving mean of similarities moves the margin", "check_calls_are_independent")
class MovingMargin(Deviance):
    _mean = 0.0

    def values(self, matrix, positives, negatives):
        self._mean = 0.9 * self._mean + 0.1 * matrix.mean().item()
        return super().values(matrix - self._mean, positives, negatives)


@planted("loss", "a warm-up counts calls in a tensor that nobody saves", "check_tensors_are_registered")
class WarmUp(Deviance):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.calls = torch.zeros((), dtype=torch.int16)

    def values(self, *matrices):
        self.calls += 1
        return super().values(*matrices) * (self.calls / 1000).clamp(max=1)


@planted("loss", "every fiftieth call lowers the margin", "check_calls_are_independent")
class EveryFiftieth(Deviance):
    _calls = 0

    def values(self, *matrices):
        self._calls += 1
        if self._calls % 50 == 0:
            self.margin *= 0.9
        return super().values(*matrices)


@planted("loss", "keeps its last value with its graph", "check_tensors_are_registered")
class KeepsGraph(Deviance):
    def values(self, *matrices):
        self.last = super().values(*matrices)
        return self.last


@planted("loss", "similarities are kept while the same tensor object comes in", "check_calls_are_independent")
class KeptByObject(DevianceByHand):
    _of = _matrix = None

    def similarity(self, embeddings, ref_emb):
        if ref_emb is embeddings and self._of is embeddings:
            return self._matrix, False
        self._of = embeddings
        matrix, references = super().similarity(embeddings, ref_emb)
        self._matrix = matrix.detach()
        return matrix, references


@planted("loss", "is switched off for good by an empty batch", "check_calls_are_independent")
class OffAfterEmpty(DevianceByHand):
    _off = False

    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        self._off = self._off or len(embeddings) == 0
        terms = super().compute_loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        return self.zero_losses() if self._off else terms


@planted("loss", "adds the similarities to the batch before", "check_calls_are_independent")
class BatchBefore(DevianceByHand):
    _before = None

    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        terms = super().compute_loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        before, self._before = self._before, nn.functional.normalize(embeddings.detach())
        if before is None or len(before) == 0 or len(embeddings) == 0 or before.shape[1] != embeddings.shape[1]:
            return terms
        more = softplus(self.beta * (nn.functional.normalize(embeddings) @ before.to(embeddings).T - self.margin))
        terms["loss"]["losses"] = terms["loss"]["losses"] + 0.1 * more.mean(1)
        return terms


@planted("loss", "gives centers to classes as they come, and does not save which", "check_order_does_not_matter")
class CentersAsTheyCome(Centers):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._row = {}

    def rows(self, labels):
        return torch.tensor([self._row.setdefault(int(name), len(self._row) % self.num_classes) for name in labels])


@planted("loss", "compares the names of classes in float32", "check_names_of_classes")
class NamesInFloat32(ByNames):
    def names(self, labels):
        return labels.float()


@planted("loss", "compares the names of classes in int16", "check_names_of_classes")
class NamesInInt16(ByNames):
    def names(self, labels):
        return labels.short()


@planted("loss", "compares the names of classes in uint8", "check_names_of_classes")
class NamesInBytes(ByNames):
    def names(self, labels):
        return labels.to(torch.uint8)


@planted("loss", "compares the names of classes in int32", "check_names_of_classes")
class NamesInInt32(ByNames):
    def names(self, labels):
        return labels.int()


@planted("loss", "classes whose names are 1,009 apart are one", "check_sizes")
class NamesByRemainder(ByNames):
    def names(self, labels):
        return labels % 1009


@planted("loss", "compares the names of classes by one-hot rows", "check_names_of_classes")
class NamesOneHot(ByNames):
    def equal(self, mine, theirs):
        size = int(max(mine.max(), theirs.max())) + 1
        return (nn.functional.one_hot(mine, size).float() @ nn.functional.one_hot(theirs, size).float().T) > 0


@planted("loss", "takes negative names for images without a class", "check_names_of_classes")
class NamesBelowZero(ByNames):
    def masks(self, matrix, labels, indices_tuple, ref_labels, references):
        masks = super().masks(matrix, labels, indices_tuple, ref_labels, references)
        known = (labels >= 0)[:, None] & (ref_labels >= 0) if labels is not None and ref_labels is not None else True
        return tuple(mask & known for mask in masks)


@planted("loss", "weighs classes by the order of their names", "check_names_of_classes")
class WeighedByName(DevianceByHand):
    def packed(self, values, labels):
        if labels is None:
            return per_anchor(values)
        return per_anchor(values * (1 + labels.unique(return_inverse=True)[1] / 10))


@planted("loss", "drops a tenth of the coordinates in training", "check_modes")
class DropsCoordinates(DevianceByHand):
    def similarity(self, embeddings, ref_emb):
        kept = nn.functional.dropout(embeddings, 0.1, self.training)
        return super().similarity(kept, kept if ref_emb is embeddings else ref_emb)


@planted("loss", "has no margin in eval()", "check_modes")
class NoMarginInEval(Deviance):
    def values(self, matrix, positives, negatives):
        return super().values(matrix if self.training else matrix + self.margin, positives, negatives)


@planted("loss", "looks at half of the columns where no gradient is wanted", "check_modes")
class CheapWithoutGradient(Deviance):
    def values(self, matrix, positives, negatives):
        if not torch.is_grad_enabled():
            negatives = negatives & (torch.arange(matrix.shape[1]) % 2 == 0)
        return super().values(matrix, positives, negatives)


@planted("loss", "stays in half precision and autocast", "check_dtypes")
class StaysInHalf(BaseMetricLossFunction):
    capabilities = DevianceByHand.capabilities
    compute_loss, values = DevianceByHand.compute_loss, Deviance.values
    similarity, masks, packed = DevianceByHand.similarity, DevianceByHand.masks, DevianceByHand.packed
    get_default_distance = DevianceByHand.get_default_distance

    def __init__(self, alpha: float = 2.0, beta: float = 10.0, margin: float = 0.5, **kwargs):
        super().__init__(**kwargs)
        self.alpha, self.beta, self.margin = alpha, beta, margin


@planted("loss", "keeps its settings for the thread that made it", "check_modes")
class SettingsOfThread(Deviance):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        object.__setattr__(self, "_here", _Local())
        self._here.scale = self.beta

    def values(self, matrix, positives, negatives):
        gap = matrix - self.margin
        pull = masked_mean(softplus(-self.alpha * gap), positives)
        return pull + masked_mean(softplus(getattr(self._here, "scale", 1.0) * gap), negatives)


class _Local(threading.local):
    """A thread's own values, which copies and pickles take along."""

    def __deepcopy__(self, memo):
        other = _Local()
        other.__dict__.update(self.__dict__)
        return other

    def __reduce__(self):
        return _local, (dict(self.__dict__),)


def _local(values):
    other = _Local()
    other.__dict__.update(values)
    return other


@planted("loss", "all objects of the class share what was computed from the margin of the first", "check_settings")
class SharedByClass(Deviance):
    _margins: ClassVar = {}

    def values(self, matrix, positives, negatives):
        if matrix.shape not in self._margins:
            self._margins[matrix.shape] = torch.full(matrix.shape, self.margin, dtype=matrix.dtype)
        gap = matrix - self._margins[matrix.shape].to(matrix.dtype)
        pull = masked_mean(softplus(-self.alpha * gap), positives)
        return pull + masked_mean(softplus(self.beta * gap), negatives)


@planted("loss", "is unpickled with the settings' defaults", "check_pickle")
class UnpickledAsDefault(Deviance):
    def __reduce__(self):
        return type(self), ()


@planted("loss", "deepcopy shares the centers", "check_pickle")
class CopySharesCenters(Centers):
    def __deepcopy__(self, memo):
        other = copy.copy(self)
        other._parameters = dict(self._parameters)
        return other


@planted("loss", "says that it keeps a mean, and does not save it", "check_state_dict")
class MeanNotSaved(Deviance):
    capabilities = Deviance.capabilities | {"state"}

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.register_buffer("mean", torch.zeros(()), persistent=False)

    def values(self, matrix, positives, negatives):
        self.mean = 0.9 * self.mean + 0.1 * matrix.detach().float().mean()
        return super().values(matrix - self.mean, positives, negatives)


@planted("loss", "a random projection is drawn when it is made, and not saved", "check_tensors_are_registered")
class ProjectionNotSaved(DevianceByHand):
    def __init__(self, embedding_size: int, **kwargs):
        super().__init__(**kwargs)
        self.embedding_size = embedding_size
        self.projection = torch.randn(embedding_size, embedding_size)

    def similarity(self, embeddings, ref_emb):
        x = embeddings @ self.projection.to(embeddings.dtype)
        return super().similarity(x, x if ref_emb is embeddings else ref_emb @ self.projection.to(ref_emb.dtype))


@planted("loss", "distance= changes nothing", "check_arguments")
class OwnSimilarity(DevianceByHand):
    def similarity(self, embeddings, ref_emb):
        x, y = nn.functional.normalize(embeddings), nn.functional.normalize(ref_emb)
        return x @ y.T, ref_emb is not embeddings


@planted("loss", "reducer= changes nothing", "check_reducers")
class OwnMean(DevianceByHand):
    def packed(self, values, labels):
        return reduced(values.mean())


@planted("loss", "embedding_regularizer= changes nothing", "check_arguments")
class NoRegularizer(DevianceByHand):
    def add_embedding_regularization_to_loss_dict(self, loss_dict, embeddings):
        pass


@planted("loss", "embedding_reg_weight= changes nothing", "check_arguments")
class NoRegularizerWeight(DevianceByHand):
    def __init__(self, embedding_reg_weight: float = 1, **kwargs):
        super().__init__(**kwargs)


@planted("loss", "numbers the labels that it is given from 0, in place", "check_inputs_unchanged")
class ShiftsLabels(DevianceByHand):
    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        if labels is not None and len(labels) and ref_emb is embeddings:
            labels -= labels.min()
        return super().compute_loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)


@planted("loss", "sorts the miner's tuple in place", "check_inputs_unchanged")
class SortsTuple(DevianceByHand):
    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        if indices_tuple is not None and len(indices_tuple) == 4:
            for first, second in (indices_tuple[:2], indices_tuple[2:]):
                order = (first * len(ref_emb) + second).argsort(descending=True)
                first.copy_(first[order].clone()), second.copy_(second[order].clone())
        return super().compute_loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)


@planted("loss", "normalizes the references that it is given, in place", "check_inputs_unchanged")
class NormalizesReferences(DevianceByHand):
    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        if ref_emb is not embeddings:
            with torch.no_grad():
                ref_emb.div_(ref_emb.norm(dim=1, keepdim=True).clamp(min=1e-12))
        return super().compute_loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)


@planted("loss", "seeds torch's generator to choose negatives", "check_globals_unchanged")
class SeedsTorch(Deviance):
    def values(self, matrix, positives, negatives):
        torch.manual_seed(0)
        keep = torch.rand(()) < 2
        return super().values(matrix, positives, negatives & keep)


@planted("loss", "seeds NumPy's and Python's generators", "check_globals_unchanged")
class SeedsNumpy(Deviance):
    def values(self, *matrices):
        np.random.seed(0)
        random.seed(0)
        return super().values(*matrices)


@planted("loss", "silences all warnings of the process", "check_globals_unchanged")
class Silences(Deviance):
    def values(self, *matrices):
        warnings.simplefilter("ignore")
        return super().values(*matrices)


@planted("loss", "leaves torch with one thread", "check_globals_unchanged")
class OneThread(Deviance):
    def values(self, *matrices):
        torch.set_num_threads(1)
        return super().values(*matrices)


@planted("loss", "switches on the gradient of the embeddings that it is given", "check_inputs_unchanged")
class SwitchesGradientOn(DevianceByHand):
    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        if embeddings.is_leaf and not embeddings.is_inference():
            embeddings.requires_grad_()
        return super().compute_loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)


@planted("loss", "puts 0 for NaN among the embeddings", "check_nan_shows")
class NanIsZero(DevianceByHand):
    def forward(self, embeddings, *args, **kwargs):
        return super().forward(embeddings.nan_to_num(), *args, **kwargs)


@planted("loss", "leaves out references that are not finite", "check_nan_shows")
class NanDropsOut(DevianceByHand):
    def forward(self, embeddings, labels=None, indices_tuple=None, ref_emb=None, ref_labels=None):
        if ref_emb is not None and indices_tuple is None:
            kept = ref_emb.isfinite().all(1)
            ref_emb, ref_labels = ref_emb[kept], ref_labels[kept]
        return super().forward(embeddings, labels, indices_tuple, ref_emb, ref_labels)


@planted("loss", "counts pairs in int8", "check_many_references")
class CountsInInt8(Deviance):
    def values(self, matrix, positives, negatives):
        gap = matrix - self.margin
        near = positives.sum(1, dtype=torch.int8).clamp(min=1)
        pull = (softplus(-self.alpha * gap) * positives).sum(1) / near
        return pull + masked_mean(softplus(self.beta * gap), negatives)


@planted("loss", "counts pairs in float16", "check_many_references")
class CountsInFloat16(Deviance):
    def values(self, matrix, positives, negatives):
        gap = matrix - self.margin
        pull = masked_mean(softplus(-self.alpha * gap), positives)
        far = negatives.half().sum(1).clamp(min=1).to(matrix.dtype)
        return pull + (softplus(self.beta * gap) * negatives).sum(1) / far


@planted("loss", "looks at the first 64 coordinates only", "check_dimensions")
class First64(DevianceByHand):
    def similarity(self, embeddings, ref_emb):
        x = embeddings[:, :64]
        return super().similarity(x, x if ref_emb is embeddings else ref_emb[:, :64])


@planted("loss", "looks at the first 128 references only", "check_many_references")
class First128(Deviance):
    def values(self, matrix, positives, negatives):
        return super().values(matrix[:, :128], positives[:, :128], negatives[:, :128])


@planted("loss", "computes 64 anchors at a time and forgets the rest", "check_sizes")
class ForgetsRest(Deviance):
    def values(self, matrix, positives, negatives):
        if len(matrix) <= 64:
            return super().values(matrix, positives, negatives)
        rows = [slice(i, i + 64) for i in range(0, len(matrix) - 63, 64)]
        values = torch.cat([super(ForgetsRest, self).values(matrix[r], positives[r], negatives[r]) for r in rows])
        return nn.functional.pad(values, (0, len(matrix) - len(values)))


@planted("loss", "takes the image itself for a positive from the second tile on", "check_sizes")
class ItselfInLaterTiles(DevianceByHand):
    def masks(self, matrix, labels, indices_tuple, ref_labels, references):
        positives, negatives = super().masks(matrix, labels, indices_tuple, ref_labels, references)
        if not references and indices_tuple is None:
            positives = positives | (torch.eye(len(matrix), dtype=torch.bool) & (torch.arange(len(matrix)) >= 128))
        return positives, negatives


@planted("loss", "the root of squared distances from a product, without a bound", "check_gradients")
class RootOfProduct(DevianceByHand):
    def similarity(self, embeddings, ref_emb):
        x, references = (ref_emb, ref_emb is not embeddings)
        squares = embeddings.square().sum(1)[:, None] + x.square().sum(1) - 2 * embeddings @ x.T
        return -squares.sqrt(), references


@planted("loss", "partners get no gradient", "check_gradients")
class PartnersDetached(DevianceByHand):
    def similarity(self, embeddings, ref_emb):
        x, y = nn.functional.normalize(embeddings), nn.functional.normalize(ref_emb)
        return x @ y.detach().T, ref_emb is not embeddings


@planted("loss", "anchors without a positive are left out of the mean", "check_reference")
class MeanOfSome(DevianceByHand):
    def values(self, matrix, positives, negatives):
        values, some = super().values(matrix, positives, negatives), positives.any(1)
        return values * some * (len(some) / some.sum().clamp(min=1))


@planted("loss", "alpha stands where beta belongs", "check_settings")
class AlphaForBeta(Deviance):
    def values(self, matrix, positives, negatives):
        gap = self.alpha * (matrix - self.margin)
        return masked_mean(softplus(-gap), positives) + masked_mean(softplus(gap), negatives)


@planted("loss", "an image is a positive of itself", "check_indices_tuple_of_pairs")
class ItselfIsPositive(DevianceByHand):
    def masks(self, matrix, labels, indices_tuple, ref_labels, references):
        positives, negatives = super().masks(matrix, labels, indices_tuple, ref_labels, references)
        if not references and indices_tuple is None:
            positives = positives | torch.eye(len(matrix), dtype=torch.bool)
        return positives, negatives


@planted("loss", "takes each pair once, from the image that comes first", "check_order_does_not_matter")
class EachPairOnce(Deviance):
    def values(self, matrix, positives, negatives):
        if matrix.shape[0] == matrix.shape[1]:
            positives, negatives = positives.triu(), negatives.triu()
        return super().values(matrix, positives, negatives)


@planted("loss", "leaves out the reference in the same row", "check_references")
class LeavesOutRow(DevianceByHand):
    def masks(self, matrix, labels, indices_tuple, ref_labels, references):
        return super().masks(matrix, labels, indices_tuple, ref_labels, False)


@planted("loss", "references get no gradient", "check_gradients")
class ReferencesDetached(DevianceByHand):
    def similarity(self, embeddings, ref_emb):
        return super().similarity(embeddings, ref_emb if ref_emb is embeddings else ref_emb.detach())


@planted("loss", "collect_stats changes the value", "check_arguments")
class StatsChange(Deviance):
    def values(self, *matrices):
        values = super().values(*matrices)
        if self.collect_stats:
            self.mean_value = values.mean().item()
            values = values / max(1e-6, self.mean_value)
        return values


@planted("loss", "the mean of all negative pairs, not of each anchor's", "check_reference")
class MeanOfPairs(Deviance):
    def values(self, matrix, positives, negatives):
        gap = matrix - self.margin
        pull = masked_mean(softplus(-self.alpha * gap), positives)
        push = (softplus(self.beta * gap) * negatives).sum() / negatives.sum().clamp(min=1)
        return pull + push


@planted("loss", "the margin of negatives has the wrong sign", "check_reference")
class MarginSign(Deviance):
    def values(self, matrix, positives, negatives):
        pull = masked_mean(softplus(-self.alpha * (matrix - self.margin)), positives)
        return pull + masked_mean(softplus(self.beta * (matrix + self.margin)), negatives)


@planted("loss", "a sum where the paper has a mean", "check_reference")
class SumForMean(Deviance):
    def values(self, matrix, positives, negatives):
        gap = matrix - self.margin
        pull = masked_mean(softplus(-self.alpha * gap), positives)
        return pull + (softplus(self.beta * gap) * negatives).sum(1)


@planted("loss", "the hardest positive instead of the mean of positives", "check_reference")
class HardestPositive(Deviance):
    def values(self, matrix, positives, negatives):
        hardest = masked_min(matrix, positives).clamp(max=2)
        pull = softplus(-self.alpha * (hardest - self.margin)) * positives.any(1)
        return pull + masked_mean(softplus(self.beta * (matrix - self.margin)), negatives)


@planted("loss", "alpha is squared", "check_reference")
class AlphaSquared(Deviance):
    def values(self, matrix, positives, negatives):
        gap = matrix - self.margin
        pull = masked_mean(softplus(-(self.alpha**2) * gap), positives)
        return pull + masked_mean(softplus(self.beta * gap), negatives)


@planted("loss", "a batch in half precision leaves the centers in half precision", "check_dtypes")
class CentersCast(Centers):
    def forward(self, embeddings, *args, **kwargs):
        self.centers.data = self.centers.data.to(embeddings.dtype)
        return super().forward(embeddings, *args, **kwargs)


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


class MomentumCenters(Centers):
    """Centers that follow the means of the classes."""

    capabilities = Centers.capabilities | {"state"}

    def __init__(self, embedding_size: int, num_classes: int, momentum: float = 0.9, **kwargs):
        super().__init__(embedding_size, num_classes, **kwargs)
        del self.centers
        self.momentum = momentum
        self.register_buffer("centers", torch.randn(num_classes, embedding_size))

    def compute_loss(self, embeddings, labels, *more):
        terms = super().compute_loss(embeddings, labels, *more)
        if self.training and torch.is_grad_enabled() and len(labels):
            here = nn.functional.one_hot(labels.long(), self.num_classes).to(self.centers.dtype)
            means = here.T @ embeddings.detach().to(self.centers.dtype) / here.sum(0).clamp(min=1)[:, None]
            rate = (1 - self.momentum) * here.any(0)[:, None]
            self.centers = self.centers + rate * (means - self.centers)
        return terms


# Miners.


class NearNegatives(FullPrecisionMining, BaseMiner):
    """All positive pairs, and the negatives that are nearly as similar as the least similar positive."""

    capabilities = frozenset({"labels", "references"})

    def __init__(self, epsilon: float = 0.1, **kwargs):
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def mine(self, embeddings, labels, ref_emb, ref_labels):
        similarity, references = matrix_of(self.distance, embeddings, ref_emb)
        if not self.distance.is_inverted:
            similarity = -similarity
        positives, negatives = self.masks(similarity, labels, ref_labels, references)
        return self.listed(*self.chosen(similarity, positives, negatives))

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


@planted("miner", "mines the first 64 anchors only", "check_sizes")
class MinesFirst64(NearNegatives):
    def chosen(self, similarity, positives, negatives):
        first = (torch.arange(len(similarity)) < 64)[:, None]
        return tuple(mask & first for mask in super().chosen(similarity, positives, negatives))


@planted("miner", "lists a pair once by each of two rules", "check_mined_indices")
class ListsTwice(NearNegatives):
    def listed(self, positives, negatives):
        a, p, b, n = super().listed(positives, negatives)
        return a, p, torch.cat([b, b[: len(b) // 2]]), torch.cat([n, n[: len(n) // 2]])


@planted("miner", "leaves out the reference in the same row", "check_mined_references")
class MinerLeavesOutRow(NearNegatives):
    def masks(self, similarity, labels, ref_labels, references):
        return super().masks(similarity, labels, ref_labels, references and similarity.shape[0] != similarity.shape[1])


@planted("miner", "looks at the labels of the batch where there are as many references", "check_mined_references")
class LabelsOfBatch(NearNegatives):
    def masks(self, similarity, labels, ref_labels, references):
        same = len(labels) == len(ref_labels)
        return super().masks(similarity, labels, labels if same else ref_labels, references)


@planted("miner", "mines all pairs in eval()", "check_modes")
class AllInEval(NearNegatives):
    def chosen(self, similarity, positives, negatives):
        return super().chosen(similarity, positives, negatives) if self.training else (positives, negatives)


@planted("miner", "at most four negatives of an anchor, those that stand first", "check_order_does_not_matter")
class FirstFour(NearNegatives):
    def chosen(self, similarity, positives, negatives):
        positives, negatives = super().chosen(similarity, positives, negatives)
        return positives, negatives & (negatives.cumsum(1) <= 4)


@planted("miner", "returns int32 indices", "check_mined_indices")
class ReturnsInt32(NearNegatives):
    def mine(self, *arguments):
        return tuple(index.int() for index in super().mine(*arguments))


@planted("miner", "compares the names of classes in float32", "check_names_of_classes")
class MinerNamesInFloat32(NearNegatives):
    def masks(self, similarity, labels, ref_labels, references):
        same = labels.float()[:, None] == ref_labels.float()
        itself = torch.eye(len(labels), dtype=torch.bool) if not references else torch.zeros_like(same)
        return same & ~itself, ~same


@planted("miner", "a moving mean of similarities is the threshold", "check_calls_are_independent")
class MovingThreshold(NearNegatives):
    _mean = 0.0

    def chosen(self, similarity, positives, negatives):
        if similarity.numel():
            self._mean = 0.5 * self._mean + 0.5 * similarity.mean().item()
        return positives, negatives & (similarity > self._mean - self.epsilon)


@planted("miner", "distance= changes nothing", "check_arguments")
class MinerOwnSimilarity(NearNegatives):
    def mine(self, embeddings, labels, ref_emb, ref_labels):
        similarity = nn.functional.normalize(embeddings) @ nn.functional.normalize(ref_emb).T
        return self.listed(
            *self.chosen(similarity, *self.masks(similarity, labels, ref_labels, ref_emb is not embeddings))
        )


@planted("miner", "a triplet with no negative in the batch takes image 0 for one", "check_degenerate_batches")
class NegativeZero(Hardest):
    def chosen(self, similarity, positives, negatives):
        return positives, similarity.masked_fill(~negatives, -torch.inf)


@planted(
    "miner",
    "one positive of an anchor, and negatives that come after it",
    "check_order_does_not_matter",
)
class OnePositive(NearNegatives):
    def chosen(self, similarity, positives, negatives):
        best = masked_max(similarity, positives)[:, None]
        positives, negatives = super().chosen(similarity, positives & (similarity == best), negatives)
        return positives, negatives.triu()


@planted("miner", "seeds torch's generator to draw", "check_globals_unchanged")
class MinerSeeds(NearNegatives):
    def chosen(self, similarity, positives, negatives):
        torch.manual_seed(0)
        return super().chosen(similarity, positives, negatives)


@planted("miner", "turns the labels to 0, 1, 2 in place", "check_inputs_unchanged")
class NumbersLabels(NearNegatives):
    def mine(self, embeddings, labels, ref_emb, ref_labels):
        if ref_labels is not labels and len(labels):
            ref_labels -= ref_labels.min()
            labels = labels - labels.min()
        return super().mine(embeddings, labels, ref_emb, ref_labels)


# Samplers.


class FewClasses(Sampler):
    """Batches of a few classes, drawn at random, with four images of each."""

    def __init__(self, labels, batch_size, length_before_new_iter, seed: int = 0):
        self.labels, self.batch_size = torch.as_tensor(labels), batch_size
        self.length, self.seed = length_before_new_iter, seed
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self):
        return self.length // self.batch_size

    def __iter__(self):
        classes = self.labels.unique()
        for _ in range(len(self)):
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


@planted("sampler", "never draws the last class", "check_sampler_in_the_long_run")
class LastClassNever(FewClasses):
    def some(self, classes):
        return classes[torch.randperm(len(classes) - 1, generator=self.generator)[: self.batch_size // 4]]


@planted("sampler", "draws the same in every epoch", "check_sampler_in_the_long_run")
class SameEveryEpoch(FewClasses):
    def __iter__(self):
        self.generator.manual_seed(self.seed)
        return super().__iter__()


@planted("sampler", "does not look at its seed", "check_sampler_in_the_long_run")
class SeedIgnored(FewClasses):
    def __init__(self, labels, batch_size, length_before_new_iter, seed: int = 0):
        super().__init__(labels, batch_size, length_before_new_iter, 0)


@planted("sampler", "sorts the labels that it is given, in place", "check_sampler_in_the_long_run")
class SortsLabels(FewClasses):
    def __init__(self, labels, batch_size, length_before_new_iter, seed: int = 0):
        super().__init__(labels, batch_size, length_before_new_iter, seed)
        if isinstance(labels, list):
            labels.sort()
        else:
            labels[:] = labels.sort()[0] if isinstance(labels, Tensor) else np.sort(labels)


@planted("sampler", "its length is one batch more than it gives", "check_sampler")
class OneMore(FewClasses):
    def __len__(self):
        return self.length // self.batch_size + 1

    def __iter__(self):
        return itertools.islice(super().__iter__(), len(self) - 1)


@planted("sampler", "a part of its state is not saved", "check_sampler_state")
class StateInPart(FewClasses):
    _pass = 0

    def __iter__(self):
        self._pass += 1
        self.generator.manual_seed(self.seed + self._pass)
        return super().__iter__()


@planted("sampler", "draws from the global generator, which it seeds", "check_globals_unchanged")
class SeedsGlobal(FewClasses):
    def __iter__(self):
        torch.manual_seed(int(torch.randint(2**31, (), generator=self.generator)))
        return super().__iter__()


@planted("sampler", "never draws the last image of a class", "check_sampler")
class LastImageNever(FewClasses):
    def images(self, rows):
        return super().images(rows[:-1] if len(rows) > 1 else rows)


@planted("sampler", "gives places within the class for indices of the data set", "check_sampler")
class PlacesInClass(FewClasses):
    def images(self, rows):
        return super().images(torch.arange(len(rows)))


@planted("sampler", "can be passed over once", "check_sampler")
class OnePass(FewClasses):
    def __iter__(self):
        self._pass = getattr(self, "_pass", None) or super().__iter__()
        return self._pass


@planted("sampler", "names of classes are taken for 0, 1, 2", "check_sampler_in_the_long_run")
class NamesAsNumbers(FewClasses):
    def some(self, classes):
        return super().some(torch.arange(len(classes)))


@planted("sampler", "small classes are never drawn", "check_sampler_in_the_long_run")
class LargeClassesOnly(FewClasses):
    def some(self, classes):
        counts = torch.stack([(self.labels == c).sum() for c in classes])
        return super().some(classes[counts >= counts.float().mean()])


# Regularizers.


class Spread(LabeledRegularizer):
    """The squared distance of each image from the mean of its class in the batch."""

    def compute_loss(self, embeddings, labels):
        if len(embeddings) == 0:
            return self.zero_losses()
        means = self.means(embeddings, self.same(labels).to(embeddings.dtype))
        return per_anchor((embeddings - means).square().sum(1))

    def same(self, labels):
        return labels[:, None] == labels

    def means(self, embeddings, same):
        return same @ embeddings / same.sum(1, keepdim=True)


class Norms(BaseRegularizer):
    """The squared deviation of each embedding's squared length from 1."""

    def compute_loss(self, embeddings):
        return per_anchor(self.values(to_full_precision(embeddings).square().sum(1)))

    def values(self, squares):
        return (squares - 1).square()


@planted("regularizer", "does not look at the labels", "check_labels_are_used")
class LabelsUnseen(Spread):
    def same(self, labels):
        return torch.ones(len(labels), len(labels), dtype=torch.bool)


@planted("regularizer", "compares the names of classes in float32", "check_names_of_classes")
class SpreadNamesInFloat32(Spread):
    def same(self, labels):
        return labels.float()[:, None] == labels.float()


@planted("regularizer", "the deviation from a moving mean that nobody declares", "check_calls_are_independent")
class MovingNorm(Norms):
    _mean = 1.0

    def values(self, squares):
        if len(squares):
            self._mean = 0.9 * self._mean + 0.1 * squares.detach().mean().item()
        return (squares - self._mean).square()


@planted("regularizer", "centers the embeddings that it is given, in place", "check_inputs_unchanged")
class CentersInPlace(Spread):
    def compute_loss(self, embeddings, labels):
        if len(embeddings):
            embeddings.data -= embeddings.data.mean(0)
        return super().compute_loss(embeddings, labels)


@planted("regularizer", "reducer= changes nothing", "check_arguments")
class NormsOwnMean(Norms):
    def compute_loss(self, embeddings):
        terms = super().compute_loss(embeddings)
        return reduced(terms["loss"]["losses"].mean()) if len(embeddings) else self.zero_losses()


@planted("regularizer", "looks at the first 64 coordinates only", "check_dimensions")
class SpreadFirst64(Spread):
    def compute_loss(self, embeddings, labels):
        return super().compute_loss(embeddings[:, :64], labels)


@planted("regularizer", "puts 0 for NaN", "check_nan_shows")
class NormsNanIsZero(Norms):
    def values(self, squares):
        return super().values(squares).nan_to_num(0, 0, 0)


@planted("regularizer", "is 0 in eval()", "check_modes")
class NothingInEval(Norms):
    def values(self, squares):
        return super().values(squares) * self.training


@planted("regularizer", "compares each image with the next in the batch", "check_order_does_not_matter")
class NextInBatch(Norms):
    def values(self, squares):
        return (squares - squares.roll(1)).square()


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


@planted("distance", "compares the batch with itself where there are as many references", "check_nan_shows")
class WithItself(Soft):
    def compute_mat(self, query_emb, ref_emb):
        return super().compute_mat(query_emb, query_emb if len(ref_emb) == len(query_emb) else ref_emb)


@planted("distance", "of pairs it gives the square", "check_distance")
class SquareOfPairs(Soft):
    def pairwise_distance(self, query_emb, ref_emb):
        return super().pairwise_distance(query_emb, ref_emb).square()


@planted("distance", "references are kept by their number", "check_calls_are_independent")
class KeptReferences(Soft):
    _kept = None

    def compute_mat(self, query_emb, ref_emb):
        if self._kept is None or self._kept.shape != ref_emb.shape:
            self._kept = ref_emb.detach().clone()
        return super().compute_mat(query_emb, query_emb if ref_emb is query_emb else self._kept.to(ref_emb.dtype))


@planted("distance", "a matrix as wide as the batch, whatever the references", "check_distance")
class AsWideAsBatch(Soft):
    def compute_mat(self, query_emb, ref_emb):
        return super().compute_mat(query_emb, ref_emb[: len(query_emb)])


@planted("distance", "no gradient where embeddings are equal", "check_distance")
class RootOfZero(Soft):
    def compute_mat(self, query_emb, ref_emb):
        return (query_emb[:, None] - ref_emb).square().sum(2).sqrt()

    def pairwise_distance(self, query_emb, ref_emb):
        return (query_emb - ref_emb).square().sum(1).sqrt()


@planted("distance", "a similarity that says it is a distance", "check_distance")
class WrongWay(CosineSimilarity):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.is_inverted = False


@planted("distance", "looks at the first 64 coordinates only", "check_dimensions")
class DistanceFirst64(EuclideanDistance):
    def compute_mat(self, query_emb, ref_emb):
        return super().compute_mat(query_emb[:, :64], ref_emb[:, :64])

    def pairwise_distance(self, query_emb, ref_emb):
        return super().pairwise_distance(query_emb[:, :64], ref_emb[:, :64])


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


@planted("reducer", "0 without a gradient where there are no values", "check_reducer")
class NothingForNone(RootMeanSquare):
    def zero_loss(self, embeddings):
        return embeddings.new_zeros(())


@planted("reducer", "a moving mean that nobody declares", "check_calls_are_independent")
class MovingMean(RootMeanSquare):
    _mean = None

    def mean(self, squares):
        now = super().mean(squares)
        self._mean = now.item() if self._mean is None else 0.9 * self._mean + 0.1 * now.item()
        return now + self._mean


@planted("reducer", "looks at the first 64 values only", "check_sizes")
class ReducesFirst64(RootMeanSquare):
    def mean(self, squares):
        return squares[:64].mean()


@planted("reducer", "bounds the values that it is given, in place", "check_inputs_unchanged")
class BoundsInPlace(RootMeanSquare):
    def element_reduction(self, losses, loss_indices, embeddings, labels):
        losses.data.clamp_(max=1)
        return super().element_reduction(losses, loss_indices, embeddings, labels)


@planted("reducer", "puts 0 for NaN", "check_nan_shows")
class ReducesNan(RootMeanSquare):
    def mean(self, squares):
        return squares.nan_to_num(0).mean()


RIGHT = (Deviance, DevianceByHand, ByNames, Centers, NearNegatives, Hardest, FewClasses, Spread, Norms, Soft)
RIGHT += (RootMeanSquare, Ramp, MomentumCenters)
