"""Processes that share the tiles of a loss: each computes the rows of a part of the anchors."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from torch import Tensor

from ..pairwise import shared
from .gather import gather_bytes, gathered
from .processes import collective_device, num_processes, rank


class SharedTiles:
    """How the processes of a group share tiles; see :class:`pml_ext.pairwise.Sharing`."""

    def part(self, count: int) -> slice:
        """This process's tiles: the next of equal parts, in the order of the ranks."""
        return slice(rank() * count // num_processes(), (rank() + 1) * count // num_processes())

    def gathered(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[int]]:
        """Every tensor, joined in the order of the ranks, and where its own part begins."""
        own = [tensor.detach() for tensor in tensors]
        header = torch.tensor([len(tensor) for tensor in own], device=collective_device(own[0].device))
        lengths = gathered(header)
        parts = gather_bytes(own, [[[length] for length in each] for each in lengths])
        joined = [torch.cat(each) for each in zip(*parts, strict=True)]
        starts = [sum(each[number] for each in lengths[: rank()]) for number in range(len(own))]
        return joined, starts

    def summed(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Every tensor, added up over the processes; all of one dtype in one operation."""
        totals: list[Tensor] = list(tensors)
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            numbers = [number for number, tensor in enumerate(tensors) if tensor.dtype == dtype]
            flat = torch.cat([tensors[number].reshape(-1) for number in numbers])
            sent = flat.to(collective_device(flat.device))
            dist.all_reduce(sent)
            sizes = [tensors[number].numel() for number in numbers]
            for number, total in zip(numbers, torch.split(sent.to(flat.device), sizes), strict=True):
                totals[number] = total.view(tensors[number].shape)
        return totals


def tiles_shared(*tensors: Tensor | None) -> AbstractContextManager[None]:
    """A block in which the processes share tiles, if all of them want the same gradients; else each computes all.

    Args:
        tensors: what may want a gradient.
    """
    wanted = [tensor is not None and tensor.requires_grad for tensor in tensors]
    device = next(tensor.device for tensor in tensors if tensor is not None)
    flags = torch.tensor([torch.is_grad_enabled(), *wanted], dtype=torch.long, device=collective_device(device))
    each = gathered(flags)
    return shared(SharedTiles()) if all(other == each[0] for other in each) else contextlib.nullcontext()
