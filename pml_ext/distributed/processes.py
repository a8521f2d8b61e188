"""The processes of a run: number, ranks, process group, and exchange of objects."""

import contextlib
import datetime
import multiprocessing
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from ..errors import ConfigError


def num_processes() -> int:
    """The number of processes, 1 without a process group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return 1


def rank() -> int:
    """This process's rank, from 0."""
    return dist.get_rank() if num_processes() > 1 else 0


def share_of(count: int, number: int, processes: int) -> slice:
    """Share of ``count`` items for process ``number``; shares are almost equal."""
    return slice(count * number // processes, count * (number + 1) // processes)


@contextlib.contextmanager
def process_group(device: str) -> Iterator[None]:
    """Run a block in torchrun's process group; a single process needs none.

    After an error the group is left to torchrun, because destroying it would wait for the other processes. ``device``
    is ``"cpu"`` (gloo) or an accelerator (``"cuda"``: NCCL, and gloo for CPU tensors). ConfigError for a device without
    a backend in torch.
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
    # A long timeout, because other ranks wait while rank 0 tests. If rank 0 fails, torchrun ends the others.
    dist.init_process_group(backend, timeout=datetime.timedelta(days=2), **_meeting_place())
    yield
    dist.destroy_process_group()


def _meeting_place() -> dict[str, Any]:
    """Torchrun's store with a prefix per restart, so that no process reads an old address."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(*address, is_master=False)  # type: ignore[attr-defined]
    place = f"pml_ext/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    store_of_start = dist.PrefixStore(place, store)  # type: ignore[attr-defined]
    return {"store": store_of_start, "rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}


def from_rank_0(value: Any) -> Any:
    """Rank 0's value, a picklable object, in every process."""
    if num_processes() == 1:
        return value
    everyone = [value]
    dist.broadcast_object_list(everyone, src=0)
    return everyone[0]


def from_ranks(value: Any) -> list[Any]:
    """Picklable values of all processes, by rank, in rank 0; an empty list elsewhere."""
    if num_processes() == 1:
        return [value]
    gathered: list[Any] | None = [None] * num_processes() if rank() == 0 else None
    dist.gather_object(value, gathered, dst=0)
    return gathered or []


def gather_objects(value: Any) -> list[Any]:
    """Picklable values of all processes, by rank, in every process."""
    everyone: list[Any] = [value] * num_processes()
    if num_processes() > 1:
        dist.all_gather_object(everyone, value)
    return everyone


def wait_for_all_ranks() -> None:
    """Wait until every process is here."""
    gather_objects(None)


@contextlib.contextmanager
def rank_0_first() -> Iterator[None]:
    """Run the block in rank 0, then elsewhere; no collective operations inside.

    After an error in rank 0, the others wait until torchrun ends them.
    """
    if rank() > 0:
        wait_for_all_ranks()
    yield
    if rank() == 0:
        wait_for_all_ranks()


def max_over_ranks(number: int) -> int:
    """Maximum of an integer over all processes, in every process."""
    if num_processes() == 1:
        return number
    greatest = torch.tensor(number)
    dist.all_reduce(greatest, dist.ReduceOp.MAX)
    return int(greatest)


def collective_device(device: torch.device) -> torch.device:
    """Device for collective operations: the CPU if gloo is the only backend."""
    if dist.get_backend() == "gloo":
        return torch.device("cpu")
    return device


def end_with_the_parent() -> None:
    """In a thread: exit once the process that started this one has ended, even if killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
