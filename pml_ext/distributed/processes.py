"""The processes of a run: how many, which one, and what they tell each other."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from ..errors import ConfigError


def num_processes() -> int:
    """How many processes there are: 1 where no process group was started."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process's number, from 0."""
    return dist.get_rank() if num_processes() > 1 else 0


@contextlib.contextmanager
def process_group(device: str) -> Iterator[None]:
    """The group of the processes that ``torchrun`` started, if it did; it ends with the block, unless that fails.

    Args:
        device: ``"cpu"`` (gloo), or an accelerator: what torch has for it (NCCL for ``"cuda"``), and gloo for what
            lies on the CPU.

    Raises:
        ConfigError: torch has no way for several processes to work together on that device.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield
        return
    backends = dist.Backend.default_device_backend_map
    if device not in backends:
        raise ConfigError(f"torch {torch.__version__} has no way for several processes to work together on {device}; "
                          f"wanted --device {' or '.join(backends)}, or one process")  # fmt: skip
    backend = "gloo" if device == "cpu" else f"cpu:gloo,{device}:{backends[device]}"
    # Rank 0 tests alone while the others wait; torchrun ends them should it fail.
    dist.init_process_group(backend, timeout=datetime.timedelta(days=2))
    yield
    dist.destroy_process_group()


def from_rank_0(value: Any) -> Any:
    """What rank 0 passes, in every process.

    Args:
        value: anything that can be pickled; that of the other ranks is not looked at.
    """
    if num_processes() == 1:
        return value
    everyone = [value]
    dist.broadcast_object_list(everyone, src=0)
    return everyone[0]


def from_ranks(value: Any) -> list[Any]:
    """What every process passes, in the order of their numbers, in rank 0; nothing in the others.

    Args:
        value: anything that can be pickled.
    """
    if num_processes() == 1:
        return [value]
    gathered = [None] * num_processes() if rank() == 0 else None
    dist.gather_object(value, gathered, dst=0)
    return gathered or []


def most_of_ranks(number: int) -> int:
    """The greatest of the numbers that the processes pass, in all of them.

    Args:
        number: of this process.
    """
    if num_processes() == 1:
        return number
    greatest = torch.tensor(number)
    dist.all_reduce(greatest, dist.ReduceOp.MAX)
    return int(greatest)


def collective_device(device: torch.device) -> torch.device:
    """Where the tensors of a collective operation lie: gloo alone wants them on the CPU."""
    return torch.device("cpu") if dist.get_backend() == "gloo" else device
