"""The workers of data loaders: what they do with signals, and which image one had that died."""

from __future__ import annotations

import atexit
import gc
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data._utils import signal_handling

from ..data import LabeledImages
from ..errors import DataError, shortened

_open: weakref.WeakSet[Any] = weakref.WeakSet()  # iterators of loaders that may have workers


class Watched(Dataset[tuple[Tensor, int]]):
    """Images of which it is known which one each worker reads.

    Args:
        images: items are ``(image, label)``; with workers, :class:`LabeledImages` are read by
            :meth:`~LabeledImages.for_workers`, and :attr:`finish` does the rest.
        workers: how many read; 0 for none but this process.
    """

    def __init__(self, images: Dataset[tuple[Tensor, int]], workers: int) -> None:
        self.finish: Callable[[Tensor], Tensor] = lambda batch: batch
        if workers > 0 and isinstance(images, LabeledImages):
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
        reading: Any = None
        try:
            reading = iter(loader)
            if loader.num_workers > 0:
                _open.add(reading)
                if reading._worker_pids_set:
                    signal_handling._remove_worker_pids(id(reading))  # type: ignore[attr-defined]  # torch has no setting
                    reading._worker_pids_set = False
            yield from reading
        except (RuntimeError, EOFError, OSError) as error:
            # torch's own, or what is seen of a process that ended while it passed a batch on
            if isinstance(error, RuntimeError) and not str(error).startswith("DataLoader worker"):
                raise
            dead = self._dead(reading)
            if not dead and not isinstance(error, RuntimeError):
                raise
            how = "; ".join(dead) or shortened(error, 200)
            raise DataError(
                f"a data-loader worker died: {how}. If memory ran out, lower data.workers; else mend or remove the file"
            ) from error

    def _dead(self, reading: Any) -> list[str]:
        """What is known of each worker that has ended: its number, how, and the image that it had."""
        told = []
        for slot, process in enumerate(getattr(reading, "_workers", [])):
            process.join(timeout=0.1)
            if code := process.exitcode:
                how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                number = int(self._reading[slot, 1])
                image = self._name(number) if number >= 0 else "no image yet"
                told.append(f"process {process.pid}, {how}, while it read {image}")
        return told

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
