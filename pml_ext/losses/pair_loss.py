"""The base of losses over pairs and triplets: what each of them does besides its equation."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..distances import EuclideanDistance, GramCosineSimilarity, matrix_of, require_distance, require_similarity
from ..pairwise import FullPrecisionForward, pair_masks
from ..pml import BaseDistance, BaseMetricLossFunction
from ..settings import number_settings, own_settings

Terms = dict[str, dict[str, Any]]
Triplets = tuple[Tensor, Tensor, Tensor]


@dataclasses.dataclass
class Pairs:
    """What a pair loss sees of a batch.

    Args:
        matrix: similarities or distances ``[B, R]``, by the loss's distance.
        positives: mask of the positive pairs, ``[B, R]``.
        negatives: mask of the negative pairs, ``[B, R]``.
        embeddings: the batch, ``[B, D]``, float32 or float64, not normalized.
        ref_emb: what the columns are, ``[R, D]``: the same object as ``embeddings`` without references.
        distance: the loss's distance.
        labels: ``[B]`` where the pairs follow from the labels of the batch alone; else None.
        triplets: the listed triplets of an ``indices_tuple`` of three, or None.
    """

    matrix: Tensor
    positives: Tensor
    negatives: Tensor
    embeddings: Tensor
    ref_emb: Tensor
    distance: BaseDistance
    labels: Tensor | None = None
    triplets: Triplets | None = None

    @property
    def references(self) -> bool:
        """Whether the columns are references and not the batch itself."""
        return self.ref_emb is not self.embeddings

    @functools.cached_property
    def listed(self) -> tuple[Tensor, Tensor]:
        """Anchors and partners of the positive pairs, each ``[P]``, in row-major order; a GPU waits for P."""
        anchors, partners = torch.where(self.positives)
        return anchors, partners

    @functools.cached_property
    def between_columns(self) -> Tensor:
        """The matrix of the columns among themselves, ``[R, R]``: the matrix itself without references."""
        return self.distance(self.ref_emb) if self.references else self.matrix  # type: ignore[no-any-return]


class PairLoss(FullPrecisionForward, BaseMetricLossFunction):  # type: ignore[misc]
    """Base of losses over the pairs or triplets of a batch. A subclass writes its settings and its equation.

    .. code-block:: python

        class HingeLoss(PairLoss):
            recorded = ("violating",)

            def __init__(self, margin: float = 0.5, **kwargs):
                super().__init__(**kwargs)
                self.margin = margin

            def equation(self, pairs):
                hinges = (pairs.matrix - self.margin).clamp(min=0)
                self.record(violating=(hinges > 0)[pairs.negatives].float().mean())
                return per_anchor((hinges * pairs.negatives).sum(1))

    What the base does: it checks the batch, leaves autocast and half precision, computes the matrix of the distance and
    the masks of positive and negative pairs (from labels, or an ``indices_tuple``, with references or without), answers
    an empty batch with 0, and shows the settings in ``repr``.

    Class attributes:
        nearer: ``"larger"`` where the equation is written for similarities (the default distance is then the cosine
            similarity), ``"smaller"`` where it is written for distances (then the Euclidean distance of normalized
            embeddings).
        recorded: names of the statistics that :meth:`record` sets with ``collect_stats``.

    Args:
        kwargs: PML's keyword arguments of losses: ``distance``, ``reducer``, ``embedding_regularizer``,
            ``embedding_reg_weight``, ``collect_stats``.

    Raises:
        TypeError: a distance that is none of PML's.
        ValueError: a distance where the equation needs a similarity, or the other way round.
    """

    capabilities = frozenset({"labels", "indices_tuple", "references"})
    nearer: ClassVar[str] = "larger"
    recorded: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        (require_similarity if self.nearer == "larger" else require_distance)(self, self.distance)
        self.add_to_recordable_attributes(list_of_names=number_settings(type(self)), is_stat=False)
        self.add_to_recordable_attributes(list_of_names=list(self.recorded), is_stat=True)

    def equation(self, pairs: Pairs) -> Terms:
        """The loss's values, unreduced: :func:`per_anchor`, :func:`per_pair` or :func:`per_triplet`."""
        raise NotImplementedError

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor | None,
    ) -> Terms:
        """PML's loss dictionary: the equation on the pairs of the batch."""
        if len(embeddings) == 0 or len(ref_emb) == 0:
            return self.zero_losses()  # type: ignore[no-any-return]
        matrix, references = matrix_of(self.distance, embeddings, ref_emb)
        positives, negatives = pair_masks(matrix, labels, indices_tuple, ref_labels, references=references)
        alone = not references and indices_tuple is None
        triplets = _triplets(indices_tuple, matrix.device)
        batch = embeddings, ref_emb, self.distance, labels if alone else None, triplets
        return self.equation(Pairs(matrix, positives, negatives, *batch))

    def record(self, **statistics: Tensor) -> None:
        """Sets recorded statistics, where they are wanted.

        Args:
            statistics: values by name; of a tensor of several values, the mean.
        """
        if self.collect_stats:
            for name, value in statistics.items():
                setattr(self, name, value.detach().mean())

    def get_default_distance(self) -> BaseDistance:
        """Cosine similarity, or the Euclidean distance of normalized embeddings."""
        return GramCosineSimilarity() if self.nearer == "larger" else EuclideanDistance()

    def extra_repr(self) -> str:
        """The settings."""
        return ", ".join(f"{name}={value!r}" for name, value in own_settings(self).items())


def per_anchor(losses: Tensor) -> Terms:
    """Terms of one value per anchor, ``[B]``."""
    return _term(losses, torch.arange(len(losses), device=losses.device), "element", len(losses))


def per_pair(losses: Tensor, pairs: Pairs, divisor: Tensor | int | None = None) -> Terms:
    """Terms of one value per positive pair.

    Args:
        losses: ``[P]``, in the order of ``pairs.listed``.
        pairs: the batch.
        divisor: how many elements the values stand for, where that is not P: a sum over triplets per pair, say.
    """
    return _term(losses, pairs.listed, "pos_pair", len(losses) if divisor is None else divisor)


def per_triplet(losses: Tensor, triplets: Triplets, divisor: Tensor | float | None = None) -> Terms:
    """Terms of one value per triplet.

    Args:
        losses: ``[T]``.
        triplets: anchors, positives and negatives, each ``[T]``.
        divisor: how many elements the values stand for, where that is not T.
    """
    return _term(losses, triplets, "triplet", len(losses) if divisor is None else divisor)


def reduced(value: Tensor) -> Terms:
    """Terms of one value for the whole batch."""
    return {"loss": {"losses": value, "indices": None, "reduction_type": "already_reduced"}}


def _term(losses: Tensor, indices: Any, kind: str, divisor: Tensor | float) -> Terms:
    if len(losses) == 0:
        return {"loss": {"losses": 0, "indices": None, "reduction_type": "already_reduced"}}
    return {"loss": {"losses": losses, "indices": indices, "reduction_type": kind, "divisor": divisor}}


def _triplets(indices_tuple: tuple[Tensor, ...] | None, device: torch.device) -> Triplets | None:
    if indices_tuple is None or len(indices_tuple) != 3:
        return None
    a, p, n = (index.to(device, torch.long) for index in indices_tuple)
    return a, p, n
