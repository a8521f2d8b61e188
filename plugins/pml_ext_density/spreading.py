"""Two regularizers that spread embeddings over the sphere; baselines of the paper."""

from typing import Any

from torch import Tensor

from pml_ext.plugin import (
    BaseDistance,
    BaseReducer,
    BaseRegularizer,
    GramCosineSimilarity,
    LabeledRegularizer,
    autocast_off,
    check_batch,
    check_number,
    check_tile_size,
    normalize,
    per_anchor,
    reduced,
    require_similarity,
    to_full_precision,
)

from .functional import nearest_distances


class EntropyRegularizer(BaseRegularizer):  # type: ignore[misc]
    r"""Regularizer that maximizes a nearest-neighbor estimate of the embeddings' entropy.

    .. math:: -\operatorname{mean}_i \log \min_{j \neq i} \|x_i - x_j\|

    Kozachenko and Leonenko's estimator (1987), up to constants and sign, on normalized embeddings: our reading of the
    "entropy regularizer" of Fig. 4, which has no formula. It also fits PML's ``embedding_regularizer``.

    *Cost:* one product of ``B x D x B``, without gradient, in tiles if the batch is large.

    Args:
        least_distance: lower bound of the Euclidean distances, above 0; nearer pairs have no gradient.
        tile_size: embeddings per tile; automatic by default.
        reducer: one of PML's; the mean by default.
        collect_stats: as in PML.

    *Source:* Li et al., 2019, https://arxiv.org/abs/1909.03909.
    """

    capabilities = frozenset[str]()

    def __init__(
        self,
        least_distance: float = 1e-6,
        reducer: BaseReducer | None = None,
        tile_size: int | None = None,
        collect_stats: bool | None = None,
    ) -> None:
        check_number(self, "least_distance", least_distance, above=0)
        check_tile_size(self, tile_size)
        super().__init__(reducer=reducer, collect_stats=collect_stats)
        self.least_distance = least_distance
        self.tile_size = tile_size

    def forward(self, embeddings: Tensor) -> Any:
        """The reduced value of embeddings ``[B, D]`` of any floating point dtype."""
        check_batch(embeddings)
        with autocast_off(embeddings.device):
            return super().forward(to_full_precision(embeddings, normalized=True))

    def compute_loss(self, embeddings: Tensor) -> dict[str, dict[str, Any]]:
        """One value per embedding."""
        if len(embeddings) < 2:
            return reduced(embeddings.sum() * 0)
        distances = nearest_distances(normalize(embeddings), self.tile_size)
        return per_anchor(-distances.clamp(min=self.least_distance).log())


class GlobalOrthogonalRegularizer(LabeledRegularizer):
    r"""Regularizer that spreads negative pairs like uniform points on the sphere (GOR).

    .. math:: \bar{s}^2 + \max\big(0, \overline{s^2} - 1/d\big)

    with the means of the cosine similarities of all negative pairs of the batch and of their squares; for uniform
    points in d dimensions they are 0 and 1/d.

    *Cost:* two products of ``B x D x B``, and a few ``B x B`` matrices; for large batches four, with memory linear in
    B.

    Args:
        distance: one of PML's similarities; cosine by default.
        tile_size: embeddings per tile; automatic by default.
        collect_stats: as in PML.

    *Source:* Zhang et al., 2017, https://arxiv.org/abs/1708.06320.
    """

    def __init__(
        self, distance: BaseDistance | None = None, tile_size: int | None = None, collect_stats: bool | None = None
    ) -> None:
        check_tile_size(self, tile_size)
        super().__init__(distance=distance, collect_stats=collect_stats)
        require_similarity(self, self.distance)
        self.tile_size = tile_size

    def compute_loss(self, embeddings: Tensor, labels: Tensor) -> dict[str, dict[str, Any]]:
        """One value for the whole batch."""

        def equation(similarity: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, ...]:
            mask = negatives.to(similarity.dtype)
            return (similarity * mask).sum(1), (similarity.square() * mask).sum(1), mask.sum(1)

        totals = self.over_pairs(equation, embeddings, labels, values=2, tile_size=self.tile_size)
        sums, squares, counts = (each.sum() for each in totals)
        count = counts.clamp(min=1)
        return reduced((sums / count).square() + (squares / count - 1 / embeddings.shape[1]).clamp(min=0))

    def get_default_distance(self) -> BaseDistance:
        """Cosine similarity."""
        return GramCosineSimilarity()
