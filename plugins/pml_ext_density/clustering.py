"""The structured clustering loss, a baseline of the density paper (Table I)."""

import math
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch.nn.functional import one_hot, relu

from pml_ext.plugin import (
    BaseMetricLossFunction,
    FullPrecisionForward,
    LossSettings,
    check_count,
    check_number,
    euclidean_distances,
    normalize,
    reduced,
    run_eagerly,
)


class ClusteringLoss(FullPrecisionForward, BaseMetricLossFunction):  # type: ignore[misc]
    r"""Structured clustering loss by facility location: the true classes should score highest.

    .. math::
        \Big[ \max_{|S| = |Y|} \big( F(X, S) + \gamma \, (1 - \mathrm{NMI}(g(S), y)) \big) - \tilde F(X, y) \Big]_+,
        \quad F(X, S) = -\sum_i \min_{j \in S} \|x_i - x_j\|_2, \quad
        \tilde F = \sum_k \max_{j: y_j = k} -\sum_{i: y_i = k} \|x_i - x_j\|_2

    for normalized embeddings x. S has one medoid per class of the batch; :math:`g(S)` assigns each embedding to its
    nearest medoid. Medoids are chosen greedily, then swapped within clusters. Only the distances to the medoids have
    gradients.

    *Cost:* one product of ``B x D x B``; for the search, at most one of ``B x B x B`` per class and per round.

    *Pair with:* several images per class, a few hundred per batch; no miner.

    Args:
        margin: :math:`\gamma`, 0 or more, in units of F, a sum of distances (0 to 2); the paper gives no value.
        refinements: rounds of swaps, 1 or more; 5 in the authors' code.
        kwargs: as in PML's losses.

    Raises:
        ValueError: in a call, missing labels, references or an ``indices_tuple``.

    Example:
        >>> ClusteringLoss()(torch.eye(4), torch.tensor([0, 0, 1, 1])).shape
        torch.Size([])

    *Source:* Song et al., 2017, https://arxiv.org/abs/1612.01213.
    """

    capabilities = frozenset({"labels"})
    expected_failed_checks: ClassVar[dict[str, str]] = {
        "check_reducers": "the loss is one number for the batch",
        "check_no_loop_over_anchors": "medoids are chosen greedily, one after another",
        "check_no_host_sync": "the members of clusters are listed, and classes are counted",
        "check_settings": "refinements changes the medoids only where an exchange improves them",
    }

    def __init__(self, margin: float = 1.0, refinements: int = 5, **kwargs: Unpack[LossSettings]) -> None:
        check_number(self, "margin", margin, least=0)
        check_count(self, "refinements", refinements)
        if "distance" in kwargs:
            raise ValueError("ClusteringLoss is one of Euclidean distances, so it takes no distance; leave it out")
        super().__init__(**kwargs)
        self.margin = margin
        self.refinements = refinements
        self.add_to_recordable_attributes(list_of_names=["margin"], is_stat=False)

    def compute_loss(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: Any, ref_emb: Any, ref_labels: Any
    ) -> dict[str, dict[str, Any]]:
        """One value for the batch."""
        # Shapes depend on the data, so this runs outside of the compiled graph.
        return reduced(run_eagerly(self._value, embeddings, labels))

    def _value(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        if len(embeddings) == 0:
            return embeddings.sum()
        distances = euclidean_distances(normalize(embeddings))
        _, classes = torch.unique(labels.to(distances.device), return_inverse=True)
        with torch.no_grad():
            found = facility_locations(distances, classes, self.margin, self.refinements)
            true = class_medoids(distances, classes)
            nearest = distances[found].argmin(0)
            moved = torch.zeros(1, len(classes), dtype=distances.dtype, device=distances.device)
            penalty = 1 - nmi_after_moves(moved, nearest, classes)[0]
        places = torch.arange(len(classes), device=distances.device)
        predicted = distances[places, found[nearest]].sum()
        wanted = distances[places, true[classes]].sum()
        return relu(self.margin * penalty - predicted + wanted)


def class_medoids(distances: Tensor, classes: Tensor) -> Tensor:
    """The member of each class with the least sum of distances to the rest, ``[K]``."""
    members = one_hot(classes).T.bool()
    sums = (distances * (classes[:, None] == classes)).sum(0)
    return torch.where(members, sums, torch.inf).argmin(1)


def facility_locations(distances: Tensor, classes: Tensor, margin: float, refinements: int) -> Tensor:
    """K medoids, ``[K]``, that approximately maximize F + margin (1 - NMI).

    Distances are ``[B, B]``; classes are ``[B]``, from 0 to K - 1. *Source:* Algorithms 1 and 2 of the paper.
    """
    number = int(classes.max()) + 1
    nearest = torch.full_like(distances[0], torch.inf)
    owner = torch.zeros_like(classes)
    chosen: list[Tensor] = []
    blocked = torch.zeros_like(distances[0])  # minus infinity for chosen medoids
    for place in range(number):
        moved = (distances < nearest).to(distances.dtype)
        score = margin * (1 - nmi_after_moves(moved, owner, classes)) - torch.minimum(distances, nearest).sum(1)
        best = (score + blocked).argmax()
        chosen.append(best)
        blocked = blocked.index_fill(0, best, -torch.inf)
        owner = torch.where(distances[best] < nearest, place, owner)
        nearest = torch.minimum(nearest, distances[best])
    medoids = torch.stack(chosen)
    for _ in range(refinements if number > 1 else 0):
        before = medoids.clone()
        clusters = distances[medoids].argmin(0)
        for place in range(number):
            members = (clusters == place).nonzero()[:, 0]
            if len(members) == 0:  # an earlier medoid has an equal embedding
                continue
            rest = distances[medoids]
            rest[place] = torch.inf
            nearest, owner = rest.min(0)
            near = distances[members]
            moved = torch.where(owner < place, near < nearest, near <= nearest).to(distances.dtype)
            score = margin * (1 - nmi_after_moves(moved, owner, classes)) - near[:, members].sum(1)
            medoids[place] = members[score.argmax()]
        if torch.equal(medoids, before):
            break
    return medoids


def nmi_after_moves(moved: Tensor, clusters: Tensor, classes: Tensor) -> Tensor:
    r"""NMI of classes and clusters after each of C moves into a new cluster, ``[C]``.

    .. math:: \frac{2 I}{H(clusters) + H(classes)}, \quad I = H(clusters) + H(classes) - H(both)

    ``moved``, ``[C, B]``, is 1 for a point that moves, else 0. ``clusters`` and ``classes``, ``[B]``, count from 0.
    """
    size = moved.shape[1]
    width = int(classes.max()) + 1
    _, both = torch.unique(clusters * width + classes, return_inverse=True)

    def entropy(counts: Tensor) -> Tensor:
        return math.log(size) - torch.xlogy(counts, counts).sum(-1) / size

    def after(groups: Tensor, new: Tensor) -> Tensor:
        members = one_hot(groups).to(moved.dtype)
        return torch.cat([members.sum(0) - moved @ members, new], dim=1)

    members = one_hot(classes).to(moved.dtype)
    by_cluster = entropy(after(clusters, moved.sum(1, keepdim=True)))
    by_both = entropy(after(both, moved @ members))
    by_class = entropy(members.sum(0))
    total = by_cluster + by_class
    value = 2 * (total - by_both) / torch.where(total > 0, total, 1)
    return torch.where(total > 1e-12, value, 1).clamp(0, 1)
