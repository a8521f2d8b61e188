"""Concatenation of all processes' tensors in rank order, and shared tiles."""

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..pairwise import shared
from .processes import collective_device, gather_objects, num_processes, rank, share_of

_Kind = tuple[str, list[int]] | None  # dtype and shape of a row; None without a tensor


def join(batch: dict[str, Tensor | None], indices_tuple: Sequence[Tensor] | None = None) -> dict[str, Any]:
    """Each tensor, concatenated over all processes in rank order.

    The gradient of this process's rows is multiplied by the number of processes. ValueError if ``indices_tuple``, a
    dtype or a number of columns differs between processes.
    """
    kinds: dict[str, _Kind] = {}
    lengths: dict[str, int] = {}
    for name, x in batch.items():
        kinds[name] = None if x is None else (str(x.dtype), list(x.shape[1:]))
        lengths[name] = 0 if x is None else len(x)
    indices = [(len(index), int(index.sum())) for index in indices_tuple or ()]
    everyone = gather_objects((kinds, indices, lengths))
    kinds_of_0, indices_of_0, _ = everyone[0]
    for other, (kinds_there, indices_there, _) in enumerate(everyone):
        for name, kind in kinds_of_0.items():
            if kinds_there[name] != kind:
                raise ValueError(
                    f"{name} must be alike in all processes except for the number of rows; rank 0 has "
                    f"{_described(kind)}, rank {other} {_described(kinds_there[name])}"
                )
        if indices_there != indices_of_0:
            raise ValueError(
                "indices_tuple must hold rows of the joined batch and be alike in all processes, but that of rank "
                f"{other} differs from that of rank 0; mine with DistributedMiner(miner)"
            )
    joined: dict[str, Any] = {}
    for name, x in batch.items():
        if x is None:
            joined[name] = None
            continue
        parts = gather_rows(x.detach(), [lengths_there[name] for _, _, lengths_there in everyone])
        parts[rank()] = x
        if x.requires_grad:
            parts[rank()] = _ScaledGradient.apply(x, len(everyone))  # type: ignore[no-untyped-call]
        joined[name] = torch.cat(parts)
    return joined


def _described(kind: _Kind) -> str:
    if kind is None:
        return "none"
    dtype, shape = kind
    return dtype + "".join(f" of {columns} columns" for columns in shape)


def gather_rows(x: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """The rows of every process, by rank, sent as padded bytes, which every backend supports."""
    if max(lengths) == 0:
        return [x] * len(lengths)
    width = torch.Size(x.shape[1:]).numel() * x.element_size()
    sent = torch.zeros(max(lengths), width, dtype=torch.uint8, device=collective_device(x.device))
    if len(x):
        sent[: len(x)].view(-1).view(x.dtype).view(x.shape).copy_(x)
    received = [torch.empty_like(sent) for _ in lengths]
    dist.all_gather(received, sent)
    rows = []
    for padded, length in zip(received, lengths, strict=True):
        stored = padded[:length].to(x.device).reshape(-1)
        rows.append(stored.view(x.dtype).view(length, *x.shape[1:]))
    return rows


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: int) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad * ctx.factor, None


class SharedTiles:
    """Tiles that the processes of a group share; see :class:`pml_ext.pairwise.Sharing`."""

    def part(self, count: int) -> slice:
        """This process's slice of ``count`` tiles."""
        return share_of(count, rank(), num_processes())

    def gathered(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[int]]:
        """Each tensor concatenated in rank order, and the row where this process's part begins."""
        lengths_by_rank = gather_objects([len(x) for x in tensors])
        joined = []
        starts = []
        for number, x in enumerate(tensors):
            lengths = [lengths_there[number] for lengths_there in lengths_by_rank]
            joined.append(torch.cat(gather_rows(x.detach(), lengths)))
            starts.append(sum(lengths[: rank()]))
        return joined, starts

    def summed(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Each tensor summed over the processes."""
        totals = [x.contiguous().to(collective_device(x.device), copy=True) for x in tensors]
        for total in totals:
            dist.all_reduce(total)
        return [total.to(x.device) for total, x in zip(totals, tensors, strict=True)]


def tiles_shared(*tensors: Tensor | None) -> AbstractContextManager[None]:
    """Context in which processes share tiles, if all need the same gradients."""
    needed = [x is not None and x.requires_grad for x in tensors]
    needed_by_rank = gather_objects([torch.is_grad_enabled(), *needed])
    if all(each == needed_by_rank[0] for each in needed_by_rank):
        return shared(SharedTiles())
    return contextlib.nullcontext()
