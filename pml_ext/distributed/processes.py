"""The processes of a run: their number, their ranks, and objects that they exchange."""

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
    """Return the number of processes: 1 where no process group was started."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return this process's number, from 0."""
    return dist.get_rank() if num_processes() > 1 else 0


@contextlib.contextmanager
def process_group(device: str) -> Iterator[None]:
    """Run a block in the group of processes that ``torchrun`` started, if it did; the group ends with the block.

    ``device`` is ``"cpu"`` (gloo), or an accelerator (NCCL for ``"cuda"``, and gloo for what lies on the CPU); a
    ConfigError names one that torch has nothing for.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield
        return
    backends = dist.Backend.default_device_backend_map
    if device not in backends:
        raise ConfigError(
            f"torch {torch.__version__} has no way for several processes to work together on {device}; "
            f"wanted --device {' or '.join(backends)}, or one process"
        )
    backend = "gloo" if device == "cpu" else f"cpu:gloo,{device}:{backends[device]}"
    # Rank 0 tests alone while the others wait; torchrun ends them should it fail.
    dist.init_process_group(backend, timeout=datetime.timedelta(days=2), **_meeting_place())
    yield
    dist.destroy_process_group()


def _meeting_place() -> dict[str, Any]:
    """Return torchrun's store with a prefix for each restart: a quick process would find the address of a dead one."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(*address, is_master=False)  # type: ignore[attr-defined]
    place = f"pml_ext/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    own = dist.PrefixStore(place, store)  # type: ignore[attr-defined]
    return {"store": own, "rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}


def from_rank_0(value: Any) -> Any:
    """Return rank 0's value, anything that can be pickled, in every process."""
    if num_processes() == 1:
        return value
    everyone = [value]
    dist.broadcast_object_list(everyone, src=0)
    return everyone[0]


def from_ranks(value: Any) -> list[Any]:
    """Return the values of all processes, by rank, in rank 0; an empty list in the others."""
    if num_processes() == 1:
        return [value]
    gathered = [None] * num_processes() if rank() == 0 else None
    dist.gather_object(value, gathered, dst=0)
    return gathered or []


def gather_objects(value: Any) -> list[Any]:
    """Return the values of all processes, anything that can be pickled, by rank, in each of them."""
    everyone: list[Any] = [value] * num_processes()
    if num_processes() > 1:
        dist.all_gather_object(everyone, value)
    return everyone


def most_of_ranks(number: int) -> int:
    """Return the greatest of the processes' numbers, in all of them."""
    if num_processes() == 1:
        return number
    greatest = torch.tensor(number)
    dist.all_reduce(greatest, dist.ReduceOp.MAX)
    return int(greatest)


def collective_device(device: torch.device) -> torch.device:
    """Return the device for tensors of a collective operation: the CPU with gloo alone."""
    return torch.device("cpu") if dist.get_backend() == "gloo" else device
