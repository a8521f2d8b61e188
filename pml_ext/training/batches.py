"""Batches of an epoch: the part that a process trains on, the seed of each image's augmentation, and the reading."""

from __future__ import annotations

import atexit
import contextlib
import gc
import multiprocessing
import operator
import os
import pickle
import re
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, get_worker_info

from .. import registry
from ..data import LabeledImages
from ..distributed import from_rank_0, num_processes, rank
from ..distributed.processes import share_of
from ..errors import DataError, PmlExtError, TrainingError, one_line, shortened
from ..networks.modes import preserved_modes
from ..pairwise import ListedTuples
from .signals import ENDING
from .workers import worker_context

if TYPE_CHECKING:  # a query imports no losses
    from .engine import Batch

Item = tuple[int, int]  # the index of an image, and the seed of its augmentation
Batches = list[list[Item]]
Indices = tuple[Tensor, ...]  # the indices_tuple of a batch


def draw(sampler: Any, batch_size: int, iterations: int) -> list[list[int]]:
    """Return the first batches of one pass of a sampler of indices, or of batches with a size of their own.

    Of listed pairs or triplets, return their numbers. TrainingError for fewer batches, or numbers that are no indices.
    """
    if _listed(sampler) is not None:
        return [batch.tuples for batch in islice(sampler, iterations)]
    if isinstance(sampler, BatchSampler):
        batches = sampler
    else:
        batches = BatchSampler(sampler, batch_size, drop_last=True)
    drawn = [_indices(sampler, batch) for batch in islice(batches, iterations)]
    if len(drawn) < iterations:
        found = f"a pass of {type(sampler).__name__} gave {len(drawn)} batches of {batch_size} images"
        raise TrainingError(f"{found}, wanted {iterations}; give as many as len() says, or make iterations smaller")
    return drawn


def _indices(sampler: Any, batch: Iterable[Any]) -> list[int]:
    """Return a batch as integers; TrainingError for numbers that are no indices, which would be cut or counted back."""
    try:
        indices = list(map(operator.index, batch))
    except TypeError as error:
        raise TrainingError(f"{type(sampler).__name__} must give indices of images; {error}") from error
    if min(indices, default=0) < 0:
        raise TrainingError(f"{type(sampler).__name__} must give indices of images, from 0; it gave {min(indices)}")
    return indices


def _listed(sampler: Any) -> ListedTuples | None:
    """Return the tuples that a sampler of listed pairs or triplets draws; None for a sampler of images."""
    tuples = getattr(sampler, "tuples", None)
    return tuples if isinstance(tuples, ListedTuples) else None


def draw_for_all(
    sampler: Any, batch_size: int, iterations: int, seed: int, epoch: int, views: int = 1
) -> tuple[Batches, list[Indices] | None]:
    """Return the epoch's batches as drawn by rank 0; seed torch's generator differently on other ranks.

    Of listed pairs or triplets, return each joined batch's ``indices_tuple`` too; else None.
    """
    if rank() == 0:
        drawn = draw(sampler, batch_size, iterations)
    else:
        drawn = None
    if rank() > 0:
        torch.manual_seed(hash((seed, epoch, rank())))
    joined = from_rank_0(drawn)
    indices = None
    tuples = _listed(sampler)
    if tuples is not None:
        of_tuples = [tuples.batch(numbers) for numbers in joined]
        joined = [batch.items for batch in of_tuples]
        indices = [batch.indices_tuple for batch in of_tuples]
    return epoch_batches(joined, seed, epoch, rank(), num_processes(), views), indices


def with_indices(
    reading: Iterable[tuple[Tensor, Tensor]], indices: Sequence[Indices] | None, device: torch.device
) -> Iterator[Batch]:
    """Yield batches as they are read, or, with ``indices``, with an ``indices_tuple`` in place of their labels."""
    if indices is None:
        yield from reading
        return
    for (images, _), indices_tuple in zip(reading, indices, strict=True):
        yield images, None, tuple(index.to(device) for index in indices_tuple)


def epoch_batches(
    joined: list[list[int]], seed: int, epoch: int, rank: int = 0, processes: int = 1, views: int = 1
) -> Batches:
    """Return an epoch's batches, of which rank r of W processes gets the r-th of W consecutive parts.

    Each image is there ``views`` times, one after the other. The augmentation of an image depends on the seed, the
    epoch, the place in it and the view only, not on the number of processes or workers. The seeds of the views of an
    image are consecutive numbers, so that of K views that a cache keeps they select different ones.
    """
    generator = np.random.default_rng((seed, epoch))
    seeds = generator.integers(2**63 - (views - 1), size=sum(map(len, joined))).tolist()
    batches = []
    first = 0  # of the batch's seeds
    for images in joined:
        whole: list[Item] = []
        for image, first_seed in zip(images, seeds[first : first + len(images)], strict=True):
            for view in range(views):
                whole.append((image, first_seed + view))
        first += len(images)
        batches.append(whole[share_of(len(whole), rank, processes)])
    return batches


def indices_of(batch: list[Item]) -> Tensor:
    """Return the images of a batch, ``[B]``, int64."""
    return torch.tensor([index for index, _ in batch], dtype=torch.int64)


class BatchReader:
    """Reader of the batches of epochs, by worker processes that live as long as the reader."""

    def __init__(
        self,
        images: Dataset[tuple[Tensor, int]],
        workers: int,
        device: torch.device,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self._device = device
        self._memory_format = memory_format
        self._now: Batches = []  # the batches that the loader reads next
        self.images = WorkerDataset(images, workers)
        self.naming_images = self.images.naming_images
        self._loader = data_loader(
            self.images, workers, device, batch_sampler=self._now, persistent_workers=workers > 0
        )

    def read(self, batches: Batches, labels: NDArray[np.int64] | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Return an iterator over the batches of an epoch: images ``[B, C, H, W]`` and labels ``[B]``, on the device.

        ``labels`` of all images, ``[N]``, stand in place of their own. One number is drawn from torch's generator, as
        a loader made for the epoch draws it. Take the batches inside of :meth:`naming_images`.
        """
        self._loader.generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
        self._now[:] = batches
        pinned = self._loader.pin_memory

        def on_device(number: int, images: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
            if labels is not None:
                own = torch.from_numpy(labels[indices_of(batches[number]).numpy()])
            images = images.to(self._device, non_blocking=pinned, memory_format=self._memory_format)
            return self.images.finish(images), own.to(self._device, non_blocking=pinned)

        return (on_device(number, *batch) for number, batch in enumerate(self._loader))

    def close(self) -> None:
        """Terminate the workers."""
        del self._loader


def data_loader(images: WorkerDataset, workers: int, device: torch.device, **settings: Any) -> DataLoader[Any]:
    """Return a loader whose workers leave signals to their run, and which draws nothing from torch's generator."""
    settings |= {"worker_init_fn": init_worker, "generator": torch.Generator()}
    if workers > 0:
        settings["multiprocessing_context"] = worker_context()
    return _Loader(images, num_workers=workers, pin_memory=device.type in ("cuda", "xpu"), **settings)


class _Loader(DataLoader[Any]):
    """A data loader that says what to do about images which cannot be passed to workers."""

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
                f"{images}: these images or their transform cannot be passed to data-loader workers, since they are "
                f"not picklable ({one_line(error)}). Define functions and classes at the top of a module and open "
                "files on first use, or read without workers: data.workers = 0"
            ) from error
        except RuntimeError as error:
            if "shared memory" not in str(error):
                raise
            remedy = (
                "make it larger, by docker run --shm-size in a container, or read without workers: data.workers = 0"
            )
            raise DataError(f"images in memory do not fit into /dev/shm ({one_line(error)}); {remedy}") from error
        finally:
            _workers.update(child for child in multiprocessing.active_children() if child not in others)


@torch.no_grad()
def embed_batches(
    trunk: nn.Module,
    embedder: nn.Module,
    images: Dataset[tuple[Tensor, int]],
    device: torch.device,
    batch_size: int = 256,
    workers: int = 0,
    batches: Batches | None = None,
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Yield images, features ``[B, F]``, embeddings ``[B, D]`` and labels, on the device: of all images, or of batches.

    Both modules are in evaluation mode for each batch, and as they were when the pass ends.
    """
    dataset = WorkerDataset(images, workers)
    if batches is None:
        loader = data_loader(dataset, workers, device, batch_size=batch_size)
    else:
        loader = data_loader(dataset, workers, device, batch_sampler=batches)
    with preserved_modes(trunk, embedder), dataset.naming_images():
        for batch, labels in loader:
            trunk.eval()
            embedder.eval()
            batch = dataset.finish(batch.to(device, non_blocking=loader.pin_memory))
            features = trunk(batch)
            yield batch, features, embedder(features), labels.to(device, non_blocking=loader.pin_memory)


_workers: weakref.WeakSet[BaseProcess] = weakref.WeakSet()  # workers that this process has started


class WorkerDataset(Dataset[tuple[Tensor, int]]):
    """Images ``(image, label)`` with a table of the image that each worker reads.

    An item is an index, or an index and the seed of its random transforms; torch's generator stays as it was. Workers
    read :class:`LabeledImages` by :meth:`~LabeledImages.for_workers`, and :attr:`finish` does the rest to a batch.
    """

    def __init__(self, images: Dataset[tuple[Tensor, int]], workers: int) -> None:
        self.finish: Callable[[Tensor], Tensor] = nn.Identity()
        if workers > 0 and isinstance(images, LabeledImages):
            images, self.finish = images.for_workers()
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
                if isinstance(item, tuple):
                    index, seed = item
                else:
                    index = item
                    seed = None
                if worker is not None:
                    self.reading[worker.id, 1] = index
                if seed is not None:
                    torch.default_generator.manual_seed(seed)
                read.append(self._read(index))
            return read
        finally:
            torch.set_rng_state(state)

    def _read(self, index: int) -> tuple[Tensor, int]:
        """Return an image and its label; DataError, with the image's number, if the data set's own code fails."""
        try:
            return self._images[index]
        except PmlExtError:
            raise
        except (Exception, SystemExit) as error:
            origin = registry.origin_of(error)
            where = "" if origin is None else f", in {origin.place}"
            raise DataError(f"{self._name(index)} cannot be read: {one_line(error)}{where}") from error

    def _name(self, index: int) -> str:
        """Return the path of an image, or its number where it has none."""
        paths = getattr(self._images, "paths", None)
        if paths is None or index >= len(paths):
            return f"image {index}"
        return str(paths[index])

    @contextlib.contextmanager
    def naming_images(self) -> Iterator[None]:
        """Turn torch's error about a worker that died into a DataError with the image that it read."""
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
            processes = {int(number) for number in re.findall(r"\d+", str(error))}
            raise self._worker_died(processes, error) from error

    def _ended_workers(self) -> set[int]:
        """Return the process ids of the workers that have ended, or end within five seconds."""
        started = {process for process, _ in self.reading.tolist() if process >= 0}
        ended = set[int]()
        for _ in range(50):
            ended = started - {child.pid for child in multiprocessing.active_children()}
            if ended:
                break
            time.sleep(0.1)
        return ended

    def _worker_died(self, dead: set[int], error: Exception) -> DataError:
        """Return the error that names the images of dead workers."""
        images = []
        for process, image in self.reading.tolist():
            if process in dead and image >= 0:
                images.append(self._name(image))
        if images:
            text = f"while it read {', '.join(images)}"
            remedy = "If memory ran out, lower data.workers; else mend or remove the file"
        else:
            text = "before it read an image"
            remedy = (
                "Each worker imports the program's script again: let its work stand below "
                "'if __name__ == \"__main__\":', or read without workers: data.workers = 0"
            )
        reason = str(error) or type(error).__name__
        return DataError(f"a data-loader worker died {text} ({shortened(reason, 200)}). {remedy}")


@atexit.register
def _end_workers() -> None:
    """Kill workers before multiprocessing sends them a single SIGTERM, which they ignore, and waits forever."""
    left = [child for child in multiprocessing.active_children() if child in _workers]
    if left and hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises errors about workers that end
    for child in left:
        child.kill()


def init_worker(worker: int) -> None:
    """Start a worker that ignores a scheduler's signals, since its run ends it; a second SIGTERM ends it too."""
    get_worker_info().dataset.reading[worker, 0] = os.getpid()  # type: ignore[union-attr]
    threading.Thread(target=_end_with_the_run, daemon=True).start()
    gc.freeze()  # garbage of the run is not collected here: loaders in it would end the run's workers
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: signal.signal(number, signal.SIG_DFL))


def _end_with_the_run() -> None:
    """End this worker when its run is killed; torch looks at the parent alone, which may be a fork server."""
    run = multiprocessing.parent_process()
    if run is not None:
        run.join()
        os._exit(1)
