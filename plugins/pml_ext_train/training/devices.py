"""Device names, deterministic operators, and numbers read from a device."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def device_name(device: torch.device) -> str:
    """Return ``"cpu"`` or ``"cuda (NVIDIA H100)"``."""
    name = getattr(getattr(torch, device.type), "get_device_name", None)
    if name is not None:
        return f"{device.type} ({name(device)})"
    return str(device)


@contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Use torch's deterministic operators inside the block, if ``wanted``.

    Enter before the first product on a GPU, when cuBLAS reads its setting.
    """
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def read_numbers(values: Sequence[Any]) -> list[Any]:
    """Read numbers and one-element tensors, with one transfer from an accelerator."""
    numbers = list(values)
    for place, value in enumerate(values):
        if isinstance(value, Tensor) and value.is_cpu:
            numbers[place] = value.item()
    on_device = {place: value.detach() for place, value in enumerate(numbers) if isinstance(value, Tensor)}
    if on_device:
        is_mps = any(value.is_mps for value in on_device.values())
        wide = torch.float32 if is_mps else torch.float64  # MPS has no float64
        stacked = torch.stack([value.reshape(()).to(wide) for value in on_device.values()])
        for place, number in zip(on_device, stacked.tolist(), strict=True):
            numbers[place] = number
    return numbers
