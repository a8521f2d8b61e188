"""Tensors of all processes, joined in the order of the ranks; gradients go to each process's own rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .processes import collective_device, num_processes, rank

_DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)


def join(batch: dict[str, Tensor | None], indices_tuple: Sequence[Tensor] | None = None) -> dict[str, Any]:
    """Every tensor of all processes, joined in the order of their ranks.

    Args:
        batch: tensors by name, equal in dtype and in all but the first dimension in all processes, or None.
        indices_tuple: something that must be alike in all processes, or None.

    Returns:
        The joined tensors. Through this process's own floating point rows goes a gradient, times the number of
        processes.

    Raises:
        ValueError: processes differ in more than the number of rows; the text names the first such.
    """
    names = list(batch)
    headers = gathered(_header(batch, indices_tuple))
    _check_alike(names, headers)
    present = [name for name in names if batch[name] is not None]
    own = [batch[name] for name in present]
    parts = gather_bytes(
        [tensor.detach() for tensor in own if tensor is not None],
        [[_size(header, names.index(name)) for name in present] for header in headers],
    )
    joined: dict[str, Any] = dict.fromkeys(names)
    for number, (name, tensor) in enumerate(zip(present, own, strict=True)):
        assert tensor is not None
        each = [part[number] for part in parts]
        each[rank()] = _scale_gradient(tensor, len(headers)) if tensor.requires_grad else tensor
        joined[name] = torch.cat(each)
    return joined


_FIELDS = 3  # of a tensor's header: rows, columns (-1 where there is one dimension), dtype; -2 where there is none


def _header(batch: dict[str, Tensor | None], indices_tuple: Sequence[Tensor] | None) -> Tensor:
    numbers: list[int] = []
    device = torch.device("cpu")
    for tensor in batch.values():
        if tensor is None:
            numbers += [-2, -2, -2]
        else:
            device = tensor.device
            numbers += [len(tensor), tensor.shape[1] if tensor.ndim > 1 else -1, _DTYPES.index(tensor.dtype)]
    sums = [len(indices_tuple or ()), *(int(index.sum()) for index in indices_tuple or ())]
    numbers += (sums + [0] * 5)[:5]
    return torch.tensor(numbers, device=collective_device(device))


def _size(header: list[int], number: int) -> list[int]:
    rows, columns = header[_FIELDS * number : _FIELDS * number + 2]
    return [rows] if columns == -1 else [rows, columns]


def _check_alike(names: list[str], headers: list[list[int]]) -> None:
    for other, header in enumerate(headers[1:], start=1):
        for number, name in enumerate(names):
            (_, columns0, dtype0), (_, columns, dtype) = (
                each[_FIELDS * number : _FIELDS * (number + 1)] for each in (headers[0], header)
            )
            if (columns0, dtype0) != (columns, dtype):
                raise ValueError(
                    f"{name} must be alike in all processes but for the number of rows; rank 0 has "
                    f"{_described(columns0, dtype0)}, rank {other} {_described(columns, dtype)}"
                )
        if headers[0][-5:] != header[-5:]:
            raise ValueError(
                "indices_tuple must hold rows of the joined batch and be alike in all processes, but that of rank "
                f"{other} differs from that of rank 0; mine with DistributedMiner(miner)"
            )


def _described(columns: int, dtype: int) -> str:
    if columns == -2:
        return "none"
    return f"{_DTYPES[dtype]}" + (f" of {columns} columns" if columns >= 0 else "")


def gathered(header: Tensor) -> list[list[int]]:
    """The numbers of every process, by rank.

    Args:
        header: ``[N]``, of one dtype and length in all processes.
    """
    each = [torch.empty_like(header) for _ in range(num_processes())]
    dist.all_gather(each, header)
    return torch.stack(each).tolist()  # type: ignore[no-any-return]


def gather_bytes(own: list[Tensor], sizes: list[list[list[int]]]) -> list[list[Tensor]]:
    """The tensors of all processes, sent as bytes in one piece, padded to the longest."""
    lengths = [
        sum(torch.Size(size).numel() * tensor.element_size() for size, tensor in zip(each, own, strict=True))
        for each in sizes
    ]
    device = own[0].device
    collective = collective_device(device)
    payload = torch.zeros(max(lengths), dtype=torch.uint8, device=collective)
    if lengths[rank()]:
        payload[: lengths[rank()]] = torch.cat([_bytes(tensor) for tensor in own]).to(collective)
    received = [torch.empty_like(payload) for _ in sizes]
    dist.all_gather(received, payload)
    parts = []
    for data, each in zip(received, sizes, strict=True):
        offset, tensors = 0, []
        for size, like in zip(each, own, strict=True):
            length = torch.Size(size).numel() * like.element_size()
            piece = data[offset : offset + length].to(device).clone()  # of its own, so aligned for any dtype
            tensors.append(piece.view(like.dtype).reshape(size) if length else like.new_empty(size))
            offset += length
        parts.append(tensors)
    return parts


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def broadcast(tensors: list[Tensor], lengths: list[int], device: torch.device) -> tuple[Tensor, ...]:
    """Index tensors of rank 0, of these lengths, in all processes."""
    collective = collective_device(device)
    if rank() == 0:
        joined = torch.cat(tensors).to(collective, torch.long)
    else:
        joined = torch.empty(sum(lengths), dtype=torch.long, device=collective)
    dist.broadcast(joined, src=0)
    return torch.split(joined.to(device), lengths)


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: int) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad * ctx.factor, None


def _scale_gradient(x: Tensor, factor: int) -> Tensor:
    scaled: Tensor = _ScaleGradient.apply(x, factor)  # type: ignore[no-untyped-call]
    return scaled
