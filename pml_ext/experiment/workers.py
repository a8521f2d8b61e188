"""The workers of data loaders: what they do with signals, and which image one had that died."""

from __future__ import annotations

import contextlib
import gc
import re
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from ..data import LabelledImages
from ..errors import DataError, shortened

_DEAD = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) ?(.*)", re.DOTALL)


class Watched(Dataset[tuple[Tensor, int]]):
    """Images of which it is known which one each worker reads.

    Args:
        images: items are ``(image, label)``; with workers, :class:`LabelledImages` are read by
            :meth:`~LabelledImages.for_workers`, and :attr:`finish` does the rest.
        workers: how many read; 0 for none but this process.
    """

    def __init__(self, images: Dataset[tuple[Tensor, int]], workers: int) -> None:
        self.finish: Callable[[Tensor], Tensor] = lambda batch: batch
        if workers > 0 and isinstance(images, LabelledImages):
            images, self.finish = images.for_workers()
        self._images = images
        self._reading = torch.full((max(workers, 1), 2), -1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return len(self._images)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        worker = get_worker_info()
        if worker is not None:
            self._reading[worker.id, 1] = index
        return self._images[index]

    @contextlib.contextmanager
    def naming(self, workers: Any) -> Iterator[None]:
        """Around what reads by workers: the death of one is told with the image that it had.

        Args:
            workers: gives the process of each, in their order.

        Raises:
            DataError: one died.
        """
        try:
            yield
        except RuntimeError as error:
            match = _DEAD.search(str(error))
            if match is None:
                raise
            dead = [int(number) for number in match[1].split(",") if number.strip()]
            slots = [slot for slot, process in enumerate(workers()) if process in dead]
            numbers = [int(self._reading[slot, 1]) for slot in slots]
            names = ", ".join(self._name(number) for number in numbers if number >= 0) or "no image yet"
            how = shortened(match[2], 100).rstrip(".") or "ended"
            raise DataError(
                f"a data-loader worker (process {', '.join(map(str, dead))}) died: {how}; it read {names}. If memory "
                "ran out, lower data.workers; else mend or remove the file"
            ) from error

    def _name(self, number: int) -> str:
        paths = getattr(self._images, "paths", None)
        return str(paths[number]) if paths is not None else f"image {number}"


def processes_of(loader: Any) -> list[int]:
    """The numbers of the processes that a data loader or its iterator has started, in the order of the workers."""
    iterator = getattr(loader, "_iterator", loader)
    return [process.pid for process in getattr(iterator, "_workers", [])]


def begin(_worker: int) -> None:
    """What a worker does first: its run decides when it ends, whomever a signal is sent to.

    Schedulers signal every process of a job. A worker that ended then would break the iteration that its run finishes;
    the second SIGTERM, from its run, ends it.
    """
    gc.freeze()  # what the run has left to be collected is not collected here: loaders end workers when they are
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGINT", "SIGHUP"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, _: signal.signal(number, signal.SIG_DFL))
