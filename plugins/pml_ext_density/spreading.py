"""The regularizers that the density paper compares with: both spread embeddings over the sphere."""

from __future__ import annotations

from typing import Any

import torch
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
    reduced,
    require_similarity,
    to_full_precision,
)

from .functional import global_orthogonal, nearest_distances, negative_sums


class EntropyRegularizer(BaseRegularizer):  # type: ignore[misc]
    r"""Spreads embeddings by a nearest-neighbor estimate of their entropy.

    .. math:: -\operatorname{mean}_i \log \min_{j \neq i} \|x_i - x_j\|

    This is Kozachenko and Leonenko's estimator of the entropy, up to constants and sign, on normalized embeddings. It
    is our reading of the "entropy regularizer" that the density paper compares with (Fig. 4); the paper prints no
    formula. It needs no labels, so it also fits PML's ``embedding_regularizer=`` slot. The reducer gets one value per
    embedding; between equal embeddings the distance counts as ``least_distance``, without a gradient.

    *Cost:* one product of ``B x D x B``, without gradient, in tiles where the batch is large.

    Args:
        least_distance: what smaller distances count as, above 0.
        tile_size: how many embeddings are compared with all at a time; None chooses.
        reducer: one of PML's; the mean by default. There is no ``distance``: the estimator is that of the Euclidean.
        collect_stats: as of PML's.

    Raises:
        ValueError: ``least_distance`` is not above 0.

    *Source:* Li et al., Deep Metric Learning with Density Adaptivity, 2019, https://arxiv.org/abs/1909.03909; the
    estimator is Kozachenko and Leonenko's, 1987.
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
        self.least_distance, self.tile_size = least_distance, tile_size

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
        losses = -distances.clamp(min=self.least_distance).log()
        indices = torch.arange(len(losses), device=losses.device)
        return {"loss": {"losses": losses, "indices": indices, "reduction_type": "element"}}


class GlobalOrthogonalRegularizer(LabeledRegularizer):
    r"""Spreads negative pairs as points spread evenly on the sphere (global orthogonal regularization, GOR).

    .. math:: \bar{s}^2 + \max\big(0, \overline{s^2} - 1/d\big)

    with the mean :math:`\bar{s}` of the cosine similarities of all negative pairs of the batch and the mean
    :math:`\overline{s^2}` of their squares; for points drawn evenly from the sphere in d dimensions these are 0 and
    1/d.

    *Cost:* one product of ``B x D x B`` forward and one backward, memory of a few ``B x B``; in tiles, which a large
    batch is computed in, four products and memory linear in B.

    Args:
        distance: a similarity of PML; cosine by default.
        tile_size: how many embeddings are compared with all at a time; None chooses.
        collect_stats: as of PML's. There is no ``reducer``: the value is one of the whole batch.

    Raises:
        ValueError: a distance that is no similarity.

    *Source:* Zhang et al., Learning Spread-out Local Feature Descriptors, 2017, https://arxiv.org/abs/1708.06320.
    """

    def __init__(
        self,
        distance: BaseDistance | None = None,
        tile_size: int | None = None,
        collect_stats: bool | None = None,
    ) -> None:
        check_tile_size(self, tile_size)
        super().__init__(distance=distance, collect_stats=collect_stats)
        require_similarity(self, self.distance)
        self.tile_size = tile_size

    def compute_loss(self, embeddings: Tensor, labels: Tensor) -> dict[str, dict[str, Any]]:
        """The value, reduced."""
        if len(embeddings) == 0:
            return reduced(embeddings.sum())
        sums, squares, counts = self.over_pairs(negative_sums, embeddings, labels, values=2, tile_size=self.tile_size)
        return reduced(global_orthogonal(sums, squares, counts, embeddings.shape[1]))

    def get_default_distance(self) -> BaseDistance:
        """Cosine similarity."""
        return GramCosineSimilarity()
