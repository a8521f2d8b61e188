"""Devices (the CPU, or torch's accelerator: CUDA, MPS, XPU) and precisions."""

import os
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch

from ..errors import ConfigError
from ..pairwise.generators import accelerator as accelerator

CHOICES = ("auto", "cpu", "cuda", "mps", "xpu")
Precision = Literal["float32", "bfloat16", "float16"]


def choose_device(name: str) -> str:
    """Torch's name of a device in :data:`CHOICES`; ConfigError if it is unavailable.

    ``"auto"`` is the accelerator if available, else the CPU. Under ``torchrun``, each rank has its own: ``"cuda:1"``.
    """
    available = accelerator()
    if name not in CHOICES and name != available:
        raise ConfigError(f"--device {name}: wanted {', '.join(CHOICES[:-1])} or {CHOICES[-1]}")
    if name not in ("auto", "cpu", available):
        raise ConfigError(f"--device {name}: this torch sees no {name} device; type --device {available or 'cpu'}")
    if name == "cpu" or available is None:
        return "cpu"
    if "LOCAL_RANK" not in os.environ:
        return available
    place = int(os.environ["LOCAL_RANK"])
    count = torch.accelerator.device_count()
    if place >= count:
        lacking = f"process {place} of this machine has no {available} device of its own ({count} seen)"
        raise ConfigError(f"{lacking}; type --nproc-per-node {count}, or --device cpu")
    return f"{available}:{place}"


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    """Torch's autocast to a precision; ``"float32"`` changes nothing."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, getattr(torch, precision))


def check_precision(device: torch.device, precision: Precision) -> None:
    """Test a precision with a small product; ConfigError if unsupported."""
    try:
        with warnings.catch_warnings(), autocast(device, precision):
            warnings.simplefilter("ignore")  # torch warns and falls back to float32, which is an error here
            dtype = (torch.ones(4, 4, device=device) @ torch.ones(4, 4, device=device)).dtype
        reason = ""
        if dtype != getattr(torch, precision):
            reason = f"torch computes in {dtype} there"
    except (RuntimeError, TypeError, NotImplementedError) as error:
        reason = str(error).strip().split("\n")[0]
    if reason:
        found = f"found {precision!r}, which this {device.type} device does not have ({reason})"
        raise ConfigError(f"engine.precision: {found}; wanted 'float32'")
