"""The workers of data loaders: what they do with signals, and which image one had that died."""

from __future__ import annotations

import atexit
import contextlib
import gc
import re
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data._utils import signal_handling

from ..data import LabelledImages
from ..errors import DataError, shortened

_open: weakref.WeakSet[Any] = weakref.WeakSet()  # iterators of loaders that may have workers
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

    def batches(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """One pass of a loader of these images, whose workers' deaths are told here and nowhere else.

        Torch tells of them by an exception in this process wherever it is: while a file is written, or while another
        exception is shown. Who waits for a batch looks for dead workers every five seconds anyway; that is left.

        Args:
            loader: of these images.

        Raises:
            DataError: a worker died; the text has the image that it had.
        """
        with self._naming(()):
            reading: Any = iter(loader)
        if loader.num_workers > 0:
            _open.add(reading)
            if reading._worker_pids_set:
                signal_handling._remove_worker_pids(id(reading))  # type: ignore[attr-defined]  # torch has no setting
                reading._worker_pids_set = False
        while True:
            with self._naming(processes_of(reading)):
                batch = next(reading, None)
            if batch is None:
                return
            yield batch

    @contextlib.contextmanager
    def _naming(self, workers: Sequence[int]) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            match = _DEAD.search(str(error))
            if match is None:
                raise
            dead = [int(number) for number in match[1].split(",") if number.strip()]
            numbers = [int(self._reading[slot, 1]) for slot, process in enumerate(workers) if process in dead]
            names = ", ".join(self._name(number) for number in numbers if number >= 0) or "no image yet"
            how = shortened(match[2], 100).rstrip(".") or "ended"
            raise DataError(
                f"a data-loader worker (process {', '.join(map(str, dead))}) died: {how}; it read {names}. If memory "
                "ran out, lower data.workers; else mend or remove the file"
            ) from error

    def _name(self, number: int) -> str:
        paths = getattr(self._images, "paths", None)
        return str(paths[number]) if paths is not None else f"image {number}"


def processes_of(reading: Any) -> list[int]:
    """The numbers of the processes that a data loader's iterator has started, in the order of the workers."""
    return [process.pid for process in getattr(reading, "_workers", [])]


@atexit.register
def _end_all() -> None:
    """Before multiprocessing ends what is left by one SIGTERM, for which workers stay, and waits for it without end."""
    for reading in list(_open):
        reading._shutdown_workers()


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
