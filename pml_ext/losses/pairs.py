"""The pairs that an equation gets, and the terms that it returns."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..pairwise import AllPairsExceptSelf as AllPairsExceptSelf, all_entries, places_in
from ..pml import BaseReducer, reducers
from ..reducers import SumOverDivisorReducer

# PML's loss dictionary, with the number of elements as "divisor". Sums of several values each have the number of these
# values as "count"; see CompiledLoss.weighs_equally.
Terms = dict[str, dict[str, Any]]
Triplets = tuple[Tensor, Tensor, Tensor]


@dataclasses.dataclass
class Pairs:
    """The pairs of T anchors, as matrices ``[T, R]``."""

    matrix: Tensor  # similarities or distances, by the loss's distance
    masks: Tensor  # of the positive and of the negative pairs, [2, T, R]
    weights: Tensor | None  # of the positive pairs, above 0 and up to 1, where the relation is graded
    embeddings: Tensor  # the anchors, [T, D], float32 or float64, not normalized
    ref_emb: Tensor  # the columns, [R, D], likewise
    points: Tensor  # the anchors as the distance takes them, [T, D]: normalized, if it normalizes
    columns: Tensor  # the columns as the distance takes them, [R, D]
    compare: Callable[[Tensor, Tensor], Tensor]  # gives the matrix of two such tensors
    has_references: bool  # whether the columns are references and not the batch itself
    labels: Tensor | None = None  # of the anchors, if pairs follow only from the batch's labels
    triplets: Triplets | None = None  # of an indices_tuple of triplets; anchors are rows of the tile
    first: int = 0  # the first anchor's row in the batch
    whole_classes: bool = False  # the tile has all members of its classes; columns are the batch in the same order
    counts: tuple[Tensor, Tensor] | None = None  # how often an indices_tuple lists each pair; see counts_repeats
    lists_all: bool = False  # listed has every entry of the matrix; see PairLoss.compilation

    @property
    def positives(self) -> Tensor:
        """The mask of the positive pairs."""
        return self.masks[0]

    @property
    def negatives(self) -> Tensor:
        """The mask of the negative pairs."""
        return self.masks[1]

    @property  # not cached: a cached_property takes a lock, which torch.compile cannot trace
    def listed(self) -> tuple[Tensor, Tensor]:
        """Anchors and partners of the positive pairs, ``[P]`` each, in row-major order.

        A GPU is synchronized to find P. With ``counts``, a pair appears as often as it is listed. With ``lists_all``,
        all entries are listed, and :func:`per_pair` masks them.
        """
        if self.lists_all:
            return all_entries(self.positives)
        return self._listed

    @functools.cached_property
    def _listed(self) -> tuple[Tensor, Tensor]:
        anchors, partners = places_in(self.positives)
        if self.counts is not None:
            times = self.counts[0][anchors, partners].long()
            anchors = anchors.repeat_interleave(times)
            partners = partners.repeat_interleave(times)
        return anchors, partners

    def between(self, partners: Tensor) -> tuple[Tensor, Tensor]:
        """Matrix ``[U, R]`` of the distinct partners with all columns, and each partner's row in it."""
        if self.whole_classes:
            return self.matrix, partners - self.first
        used, rows = torch.unique(partners, return_inverse=True)
        if len(used) == 0:  # a padded matrix of pairs looks at the first row
            used = partners.new_zeros(1)
        return self.compare(self.columns[used], self.columns), rows


def per_anchor(losses: Tensor, divisor: Tensor | float | None = None) -> Terms:
    """Terms with one value per anchor, ``[T]``; a mean divides by ``divisor``, T by default."""
    return _term(losses, torch.arange(len(losses), device=losses.device), "element", divisor)


def per_pair(losses: Tensor, pairs: Pairs, divisor: Tensor | float | None = None) -> Terms:
    """Terms with one finite value per positive pair, ``[P]``, in the order of ``pairs.listed``.

    A mean divides by ``divisor``, P by default.
    """
    if not pairs.lists_all:
        return _term(losses, pairs.listed, "pos_pair", divisor)
    mask = pairs.positives.flatten()
    count = mask.sum()
    if divisor is None:
        divisor = count
    terms = _term(torch.where(mask, losses, 0), None, "pos_pair", divisor)
    terms["loss"]["count"] = count
    return terms


def per_triplet(losses: Tensor, triplets: Triplets, divisor: Tensor | float | None = None) -> Terms:
    """Terms with one value per triplet, ``[T]``."""
    return _term(losses, triplets, "triplet", divisor)


def reduced(value: Tensor | int) -> Terms:
    """Terms with one value for the whole batch."""
    return {"loss": {"losses": value, "indices": None, "reduction_type": "already_reduced"}}


def _term(losses: Tensor, indices: Any, kind: str, divisor: Tensor | float | None) -> Terms:
    if divisor is None:
        divisor = len(losses)
    return {"loss": {"losses": losses, "indices": indices, "reduction_type": kind, "divisor": divisor}}


def reduce(reducer: BaseReducer, terms: Terms, embeddings: Tensor, labels: Tensor | None) -> Any:
    """Apply a reducer; the usual ones skip PML's checks, which take longer than the mean of a small batch."""
    info = terms.get("loss")
    usual = type(reducer) in (reducers.MeanReducer, SumOverDivisorReducer) and not reducer.collect_stats
    if not usual or len(terms) > 1 or info is None or not isinstance(info["losses"], Tensor):
        return reducer(terms, embeddings, labels)
    losses = info["losses"]
    if info["reduction_type"] == "already_reduced":
        return losses
    if type(reducer) is reducers.MeanReducer:
        return losses.mean()
    return reducer.element_reduction(losses, None, embeddings, labels, info.get("divisor", 1))
