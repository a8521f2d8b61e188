"""Image reading by worker processes, which record the image that they are reading."""

import contextlib
import gc
import multiprocessing
import os
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

from pml_ext import registry
from pml_ext.distributed.processes import end_with_the_parent
from pml_ext.errors import DataError, PmlExtError, one_line, shortened

from ..data import LabeledImages
from .signals import ENDING
from .workers import STARTED, worker_context

Item = tuple[int, int]  # the index of an image, and the seed of its augmentation


def data_loader(images: "WorkerDataset", workers: int, device: torch.device, **settings: Any) -> DataLoader[Any]:
    """A loader that draws nothing from torch's generator; its workers ignore signals."""
    settings |= {"worker_init_fn": init_worker, "generator": torch.Generator()}
    if workers > 0:
        settings["multiprocessing_context"] = worker_context()
    return _Loader(images, num_workers=workers, pin_memory=device.type in ("cuda", "xpu"), **settings)


class _Loader(DataLoader[Any]):
    def __iter__(self) -> Any:
        if self.num_workers == 0:
            return super().__iter__()
        others = multiprocessing.active_children()
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Got pickle error")
                return super().__iter__()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            images = type(self.dataset._images).__name__  # type: ignore[attr-defined]
            raise DataError(
                f"{images} or their transform cannot be pickled for data-loader workers "
                f"({one_line(error)}). Define functions and classes at the top of a module, open files on "
                "first use, or set data.workers = 0"
            ) from error
        except RuntimeError as error:
            if "shared memory" not in str(error):
                raise
            raise DataError(
                f"images in memory do not fit into /dev/shm ({one_line(error)}); enlarge it (docker run "
                "--shm-size), or set data.workers = 0"
            ) from error
        finally:
            STARTED.update(child for child in multiprocessing.active_children() if child not in others)


def init_worker(worker: int) -> None:
    """Start a worker that ignores a scheduler's first signals."""
    get_worker_info().dataset.reading[worker, 0] = os.getpid()  # type: ignore[union-attr]
    threading.Thread(target=end_with_the_parent, daemon=True).start()
    gc.freeze()  # garbage of the run is not collected here: loaders in it would end the run's workers
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: signal.signal(number, signal.SIG_DFL))


class WorkerDataset(Dataset[tuple[Tensor, int]]):
    """Images ``(image, label)``, and a table of the image that each worker reads.

    An item is an index, or an index and its augmentation seed; torch's generator is restored. :attr:`finish` applies
    the batch steps of :class:`LabeledImages`.
    """

    def __init__(self, images: Dataset[tuple[Tensor, int]], workers: int) -> None:
        self.finish: Callable[[Tensor], Tensor] = nn.Identity()
        if isinstance(images, LabeledImages):
            images, self.finish = images.divided()
        self._images = images
        # per worker: its process id, and the index of the image that it reads
        self.reading = torch.full((max(workers, 1), 2), -1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return len(self._images)  # type: ignore[arg-type]

    def __getitem__(self, item: int | Item) -> tuple[Tensor, int]:
        return self.__getitems__([item])[0]

    def __getitems__(self, items: Sequence[int | Item]) -> list[tuple[Tensor, int]]:
        """Return a whole batch, called by torch's data loader."""
        worker = get_worker_info()
        state = torch.get_rng_state()
        read = []
        try:
            for item in items:
                index, seed = item if isinstance(item, tuple) else (item, None)
                if worker is not None:
                    self.reading[worker.id, 1] = index
                if seed is not None:
                    torch.default_generator.manual_seed(seed)
                read.append(self._read(index))
            return read
        finally:
            torch.set_rng_state(state)

    def _read(self, index: int) -> tuple[Tensor, int]:
        """Return an image and its label; DataError if its code fails."""
        try:
            return self._images[index]
        except PmlExtError:
            raise
        except (Exception, SystemExit) as error:
            origin = registry.origin_of(error)
            where = "" if origin is None else f", in {origin.place}"
            raise DataError(f"{self._name(index)} cannot be read: {one_line(error)}{where}") from error

    def _name(self, index: int) -> str:
        """Return the path of an image, or its number."""
        paths = getattr(self._images, "paths", None)
        return f"image {index}" if paths is None or index >= len(paths) else str(paths[index])

    @contextlib.contextmanager
    def naming_images(self) -> Iterator[None]:
        """Translate errors about a dead worker into a DataError that names its image."""
        try:
            yield
        except (EOFError, ConnectionError) as error:  # a batch of a worker that is ending
            dead = self._ended_workers()
            if not dead:
                raise
            raise self._worker_died(dead, error) from error
        except RuntimeError as error:
            if not str(error).startswith("DataLoader worker"):
                raise
            raise self._worker_died(self._ended_workers(), error) from error

    def _ended_workers(self) -> set[int]:
        """Ids of workers that have ended, after at most five seconds."""
        started = {process for process, _ in self.reading.tolist() if process >= 0}
        deadline = time.monotonic() + 5
        while True:
            ended = started - {child.pid for child in multiprocessing.active_children()}
            if ended or not started or time.monotonic() > deadline:
                return ended
            time.sleep(0.1)

    def _worker_died(self, dead: set[int], error: Exception) -> DataError:
        images = [self._name(image) for process, image in self.reading.tolist() if process in dead and image >= 0]
        text = "before it read an image"
        remedy = "Move the script's code below 'if __name__ == \"__main__\":', or set data.workers = 0"
        if images:
            text = f"while it read {', '.join(images)}"
            remedy = "If memory ran out, lower data.workers; otherwise repair or remove the file"
        reason = shortened(str(error) or type(error).__name__, 80)
        return DataError(f"a data-loader worker died {text} ({reason}). {remedy}")
