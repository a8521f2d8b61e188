"""The base of regularizers that need labels; a loss gets one by :class:`pml_ext.RegularizedLoss`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .pairwise import autocast_off, check_batch, to_full_precision
from .pml import BaseRegularizer


class LabeledRegularizer(BaseRegularizer):  # type: ignore[misc]
    """Base of regularizers that need labels. Subclasses write ``compute_loss(embeddings, labels)``.

    It is called ``regularizer(embeddings, labels)``, which gives the reduced value, in float32 or float64 whatever the
    inputs. PML's ``embedding_regularizer=`` slot passes no labels; use :class:`RegularizedLoss`.

    Args:
        kwargs: as in PML's regularizers: ``reducer``, ``distance``, ``collect_stats``.
    """

    capabilities = frozenset({"labels"})

    def compute_loss(self, embeddings: Tensor, labels: Tensor) -> dict[str, dict[str, Any]]:
        """PML's loss dictionary: losses, their indices, their reduction type.

        Args:
            embeddings: ``[B, D]``, float32 or float64.
            labels: ``[B]``, on the device of the embeddings.
        """
        raise NotImplementedError

    def forward(self, embeddings: Tensor, labels: Tensor | None = None) -> Any:
        """The reduced value.

        Args:
            embeddings: ``[B, D]``, any floating point dtype.
            labels: ``[B]``, integers.

        Raises:
            TypeError: labels are missing, as they are in PML's own slot, or of a wrong type.
            ValueError: a wrong shape.
        """
        if labels is None:
            name = type(self).__name__
            raise TypeError(
                f"{name} needs labels, and PML's embedding_regularizer= slot passes none. "
                f"Type: RegularizedLoss(your_loss, {name}(...), weight=1.0), with RegularizedLoss from pml_ext"
            )
        check_batch(embeddings, labels)
        self.reset_stats()
        with autocast_off(embeddings.device):
            embeddings, labels = to_full_precision(embeddings), labels.to(embeddings.device, torch.long)
            return self.reducer(self.compute_loss(embeddings, labels), embeddings, labels)


LabelledRegularizer = LabeledRegularizer  # the name of before
