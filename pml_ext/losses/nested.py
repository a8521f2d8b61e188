"""A loss of the first dimensions of the embeddings, summed over several sizes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import pml
from ..pairwise import to_full_precision
from ..registry.components import capabilities
from ..settings import check_number, settings_repr
from .calling import (
    PassesPairs,
    WrapperCapabilities,
    call_loss,
    check_call,
    check_module,
)


class NestedLoss(PassesPairs, pml.BaseLossWrapper):  # type: ignore[misc]
    r"""A loss summed over several sizes, so that shortened embeddings work, too.

    .. math:: \mathcal{L} = \sum_s w_s \, \mathcal{L}_{loss}(x_{1..s})

    After training, the first ``s`` numbers of an embedding, normalized again, are an embedding. A memory goes around:
    ``CrossBatchMemory(NestedLoss(loss, sizes), ...)``. The sum is in float32 or float64.

    *Cost:* that of the loss for each size.

    Args:
        loss: a loss that compares embeddings with each other.
        sizes: numbers of dimensions, ascending; the last one is the size of the embeddings.
        weights: a number for each size; 1 by default.

    Raises:
        TypeError: a loss that is not a module, or that has parameters or a memory.
        ValueError: wrong sizes or weights, or embeddings of another size.

    Example:
        >>> from pml_ext import CBMLLoss
        >>> loss = NestedLoss(CBMLLoss(), sizes=(2, 4, 8))
        >>> loss(torch.randn(6, 8), torch.tensor([0, 0, 1, 1, 2, 2])).shape
        torch.Size([])

    *Source:* Kusupati et al., Matryoshka Representation Learning, 2022, https://arxiv.org/abs/2205.13147.
    """

    capabilities = WrapperCapabilities(
        {"labels", "indices_tuple", "references"}, lambda self: capabilities(self.loss) - {"state"}
    )

    def __init__(self, loss: torch.nn.Module, sizes: Sequence[int], weights: Sequence[float] | None = None) -> None:
        check_module(self, "loss", loss, "CBMLLoss()")
        for part in loss.modules():
            name = type(part).__name__
            if "state" in capabilities(part):
                raise TypeError(f"{name} keeps embeddings of one size; it goes around: {name}(NestedLoss(loss, sizes))")
        if next(loss.parameters(), None) is not None:
            raise TypeError(
                f"{type(loss).__name__} has parameters, which fit one embedding size; use a loss that only compares "
                "embeddings"
            )
        if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
            raise ValueError(f"sizes of NestedLoss must be ascending numbers from 1; got {sizes!r}")
        weights = [1.0] * len(sizes) if weights is None else list(weights)
        if len(weights) != len(sizes):
            raise ValueError(f"NestedLoss needs a weight for each size; got {len(weights)} for {len(sizes)} sizes")
        for weight in weights:
            check_number(self, "weights", weight)
        super().__init__(loss)
        self.loss = loss
        self.sizes = tuple(sizes)
        self.weights = tuple(weights)

    def forward(
        self,
        embeddings: Tensor,
        labels: Any = None,
        indices_tuple: Any = None,
        ref_emb: Tensor | None = None,
        ref_labels: Any = None,
    ) -> Tensor:
        """The weighted sum; arguments as for the loss."""
        labels, ref_labels = check_call(self.relation, embeddings, labels, indices_tuple, ref_emb, ref_labels)
        if embeddings.shape[1] != self.sizes[-1]:
            raise ValueError(
                f"the last size of NestedLoss must be that of the embeddings; got {self.sizes[-1]} for embeddings of "
                f"{embeddings.shape[1]} dimensions"
            )
        total = torch.zeros((), device=embeddings.device)
        for size, weight in zip(self.sizes, self.weights, strict=True):
            references = None
            if ref_emb is not None:
                references = ref_emb[:, :size]
            value = call_loss(self.loss, embeddings[:, :size], labels, indices_tuple, references, ref_labels)
            total = total + weight * to_full_precision(value)
        return total

    extra_repr = settings_repr
