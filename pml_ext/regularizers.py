"""Base of regularizers with labels; :class:`pml_ext.RegularizedLoss` adds one to a loss."""

from collections.abc import Callable, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor

from .distances import TiledDistance
from .pairwise import (
    PairsOfRows,
    autocast_off,
    check_batch,
    in_tiles,
    normalizes,
    pair_masks,
    rows_per_tile,
    tiles_of_rows,
    to_full_precision,
    with_bad_input,
)
from .pml import BaseRegularizer, RegularizerSettings
from .reducers import has_uniform_weights
from .settings import check_keywords


class LabeledRegularizer(BaseRegularizer):  # type: ignore[misc]
    """Base of regularizers with labels; define ``compute_loss(embeddings, labels)``.

    Calls return the reduced value, in float32 or float64. Settings are PML's.
    """

    capabilities = frozenset({"labels"})

    def __init__(self, **kwargs: Unpack[RegularizerSettings]) -> None:
        check_keywords(self, kwargs)
        super().__init__(**kwargs)

    def compute_loss(self, embeddings: Tensor, labels: Tensor) -> dict[str, dict[str, Any]]:
        """PML's loss dictionary for embeddings ``[B, D]`` and labels ``[B]``."""
        raise NotImplementedError

    def over_pairs(
        self,
        equation: Callable[[Tensor, Tensor, Tensor], Sequence[Tensor]],
        embeddings: Tensor,
        labels: Tensor,
        *,
        values: int = 1,
        tile_size: int | None = None,
    ) -> Sequence[Tensor]:
        """An equation's tensors ``[B]`` for the anchors of a batch, in tiles if it is large.

        ``equation`` maps a distance matrix, ``[T, B]``, and the masks of positive and negative pairs to tensors
        ``[T]``. The first ``values`` of them have a gradient.
        """
        size = rows_per_tile(tile_size, len(embeddings), len(embeddings), embeddings.device)
        if size is None:
            matrix = self.distance(embeddings)
            return equation(matrix, *pair_masks(matrix, labels))
        points = self.distance.maybe_normalize(embeddings)
        rule = PairsOfRows(points.device, labels, None, None, has_references=False, rows=len(points))
        tile_matrix = TiledDistance(self.distance, points, points)

        def part(rows: slice, anchors: tuple[Tensor, ...], columns: tuple[Tensor, ...]) -> Sequence[Tensor]:
            matrix = tile_matrix.of(anchors[0], columns[0])
            return equation(matrix, *rule.masks(matrix, rows))

        results = in_tiles(
            part,
            (points,),
            (points,),
            tiles_of_rows(len(points), size),
            list(self.distance.parameters()),
            values=values,
            at_once=has_uniform_weights(self.reducer, points.device),
        )
        tile_matrix.finish()
        return results

    def forward(self, embeddings: Tensor, labels: Tensor | None = None) -> Any:
        """The reduced value of embeddings ``[B, D]``, of any float dtype, and labels ``[B]``."""
        if labels is None:
            name = type(self).__name__
            raise TypeError(
                f"{name} needs labels, and PML's embedding_regularizer= slot passes none. "
                f"Type: RegularizedLoss(your_loss, {name}(...), weight=1.0), with RegularizedLoss from pml_ext"
            )
        check_batch(embeddings, labels)
        self.reset_stats()
        with autocast_off(embeddings.device):
            embeddings = to_full_precision(embeddings, normalizes(self))
            labels = labels.to(embeddings.device, torch.long)
            value = self.reducer(self.compute_loss(embeddings, labels), embeddings, labels)
            return with_bad_input(value, embeddings)
