"""Correct components, from which those with a bug derive."""

import torch
from pytorch_metric_learning.distances import CosineSimilarity
from torch import nn
from torch.utils.data import Sampler

from pml_ext.plugin import (
    BaseMetricLossFunction,
    BaseMiner,
    FullPrecisionForward,
    FullPrecisionMining,
    GramCosineSimilarity,
    PairLoss,
    masked_mean,
    masked_min,
    matrix_of,
    pair_masks,
    per_anchor,
)

softplus = nn.functional.softplus


def eye(matrix):
    """Return the mask of each image's pair with itself."""
    return torch.eye(*matrix.shape, dtype=torch.bool, device=matrix.device)


def loop(
    embeddings,
    labels,
    indices_tuple=None,
    ref_emb=None,
    ref_labels=None,
    alpha=2.0,
    beta=10.0,
    margin=0.5,
    weight=1.0,
    kind="plain",
    tile=4,
):
    """Return the deviance, one anchor after the other."""
    points = embeddings / embeddings.norm(dim=1, keepdim=True)
    others = points if ref_emb is None else ref_emb / ref_emb.norm(dim=1, keepdim=True)
    masks = pair_masks(points @ others.T, labels, indices_tuple, ref_labels, has_references=ref_emb is not None)
    total = 0 * embeddings.sum()
    for i in range(len(points)):
        near, far = (others[mask[i]] @ points[i] - margin for mask in masks)
        value = (1 + (-alpha * near).exp()).log().sum() / max(1, len(near))
        value = weight * (value + (1 + (beta * far).exp()).log().sum() / max(1, len(far)))
        total = total + (value**2 if kind == "square" else value)
    return total / len(points)


def near_negatives(embeddings, labels, epsilon=0.1, ref_emb=None, ref_labels=None):
    """Return the positive pairs, and the negative ones that NearNegatives chooses, one anchor after the other."""
    points = embeddings / embeddings.norm(dim=1, keepdim=True)
    references, names = (points, labels) if ref_emb is None else (ref_emb / ref_emb.norm(dim=1)[:, None], ref_labels)
    positives = set()
    negatives = set()
    for i, point in enumerate(points):
        near = [j for j in range(len(names)) if names[j] == labels[i] and (ref_emb is not None or i != j)]
        least = min((float(point @ references[j]) for j in near), default=float("inf"))
        far = [k for k in range(len(names)) if names[k] != labels[i]]
        positives |= {(i, j) for j in near}
        negatives |= {(i, k) for k in far if float(point @ references[k]) > least - epsilon}
    return positives, negatives


class Equation:
    """The binomial deviance of an anchor's similarities, and its settings."""

    def __init__(self, alpha: float = 2.0, beta: float = 10.0, margin: float = 0.5, **kwargs):
        super().__init__(**kwargs)
        self.alpha = alpha
        self.beta = beta
        self.margin = margin

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


class InHalf(Equation, BaseMetricLossFunction):
    """The equation without the base of pair losses, in the precision of the embeddings."""

    capabilities = frozenset({"labels", "indices_tuple", "references"})

    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        if len(embeddings) == 0 or len(ref_emb) == 0:
            return self.zero_losses()
        matrix, references = self.similarity(embeddings, ref_emb)
        masks = self.masks(matrix, labels, indices_tuple, ref_labels, references)
        return self.packed(self.values(matrix, *masks), labels)

    def similarity(self, embeddings, ref_emb):
        matrix, references = matrix_of(self.distance, embeddings, ref_emb)
        return matrix if self.distance.is_inverted else -matrix, references

    def masks(self, matrix, labels, indices_tuple, ref_labels, references):
        return pair_masks(matrix, labels, indices_tuple, ref_labels, has_references=references)

    def packed(self, values, labels):
        return per_anchor(values)

    def get_default_distance(self):
        return CosineSimilarity()


class ByHand(FullPrecisionForward, InHalf):
    """The equation without the base of pair losses, in full precision."""

    def get_default_distance(self):
        return GramCosineSimilarity()


class Weighted(ByHand):
    """Settings that act, and one that changes how and not what."""

    def __init__(self, weight: float = 1.0, kind: str = "plain", tile: int = 4, **kwargs):
        super().__init__(**kwargs)
        self.weight = weight
        self.kind = kind
        self.tile = tile

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


class Ramp(Deviance):
    """A weight that grows with the steps of training, which are counted and saved."""

    capabilities = Deviance.capabilities | {"state"}

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def values(self, *matrices):
        self.steps = self.steps + self.counts()
        return super().values(*matrices) * (self.steps / 1000).clamp(max=1)

    def counts(self):
        return self.training and torch.is_grad_enabled()


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
        return pair_masks(similarity, labels, None, ref_labels, has_references=references)

    def chosen(self, similarity, positives, negatives):
        near = similarity > masked_min(similarity, positives)[:, None] - self.epsilon
        return positives, negatives & near

    def listed(self, positives, negatives):
        return (*torch.where(positives), *torch.where(negatives))

    def get_default_distance(self):
        return GramCosineSimilarity()


class Moving(NearNegatives):
    """Near negatives, by a similarity that moves with those of training, and is saved."""

    capabilities = NearNegatives.capabilities | {"state"}

    def __init__(self, **kwargs):
        BaseMiner.__init__(self, **kwargs)
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))

    def chosen(self, similarity, positives, negatives):
        if self.moves():
            moved = 0.5 * self.mean + 0.5 * similarity.mean().detach()
            self.mean = moved.to(self.mean.dtype)
        return positives, negatives & (similarity > self.mean)

    def moves(self):
        return self.training


class Falling(NearNegatives):
    """Near negatives, by a slack that falls with the calls in training: its settings act from the second call."""

    capabilities = NearNegatives.capabilities | {"state"}

    def __init__(self, epsilon: float = 0.4, fall: float = 0.1, **kwargs):
        super().__init__(epsilon, **kwargs)
        self.fall = fall
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def chosen(self, similarity, positives, negatives):
        slack = self.epsilon - self.fall * self.calls
        if self.training:
            self.calls = self.calls + 1
        near = similarity > masked_min(similarity, positives)[:, None] - slack
        return positives, negatives & near


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


class FewClasses(Sampler):
    """Batches of a few classes, drawn at random, with four images of each."""

    def __init__(self, labels, batch_size, length_before_new_iter, seed: int = 0):
        self.labels = self.read(labels)
        self.batch_size = batch_size
        self.length = length_before_new_iter
        self.seed = seed
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


class Indices(FewClasses):
    """The sampler of single indices, for a data loader that makes the batches, of classes from a shuffled queue."""

    def __init__(self, labels, batch_size, length_before_new_iter, seed: int = 0):
        super().__init__(labels, batch_size, length_before_new_iter, seed)
        self.queue: list[int] = []

    def __len__(self):
        return self.length // self.batch_size * self.batch_size

    def __iter__(self):
        for batch in super().__iter__():
            yield from batch

    def some(self, classes):
        drawn: list[int] = []
        while len(drawn) < min(self.batch_size // 4, len(classes)):
            if not self.queue:
                self.queue = classes[torch.randperm(len(classes), generator=self.generator)].tolist()
            label = self.queue.pop()
            if label not in drawn:
                drawn.append(label)
        return drawn

    def state_dict(self):
        return super().state_dict() | {"queue": list(self.queue)}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.queue = list(state.get("queue", ()))


class Parameter(ByHand):
    """A loss with a learned weight."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def values(self, *matrices):
        return self.weight() * super().values(*matrices)

    def weight(self):
        return self.scale


class Tuples(ByHand):
    """The loss by hand, with a step in which a miner's tuple passes."""

    def masks(self, matrix, labels, indices_tuple, *more):
        if indices_tuple is not None and labels is not None:
            indices_tuple = self.mined(indices_tuple, labels[:, None] == labels)
        return super().masks(matrix, labels, indices_tuple, *more)
