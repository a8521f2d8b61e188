"""From images to embeddings: single ones, and folders with what had to be left out."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..devices import Precision, autocast, check_precision
from ..distributed import from_rank_0, from_ranks, num_processes, rank
from ..errors import ConfigError, DataError
from ..experiment.progress import Pace
from ..network import Network
from .kept import KeptFiles
from .listing import Listing, list_folder
from .reading import as_tensor, check_workers, default_workers, read_batches, several
from .store import EmbeddingStore, Numbers, Places, StoreWarning, opened_store
from .waiting import Waiting

Images = Any  # a path, a PIL image, an array, a tensor, a folder, or several images; `several` checks
COMPARED = 100  # images by which an exported network is compared
READ = 64  # images that a worker passes on at a time


class SkippedImage(UserWarning):
    """A file of a folder was left out; the text has its path and why."""


@dataclasses.dataclass(frozen=True)
class Embedded:
    """Images of a folder and their embeddings.

    Args:
        folder: where they lie.
        paths: relative to the folder.
        embeddings: ``[N, D]``, normalized.
        skipped: ``{path: why}`` of files that are no readable images.
        sizes: of the files in bytes, ``[N]``; None where they are not known.
        times: of their last modification, in nanoseconds since 1970, ``[N]``; None where they are not known.
        new: how many were embedded now, the others before; None where that is not known.
    """

    folder: Path
    paths: Sequence[str]
    embeddings: Tensor
    skipped: dict[str, str]
    sizes: NDArray[np.int64] | None = None
    times: NDArray[np.int64] | None = None
    new: int | None = None

    @property
    def classes(self) -> Sequence[str]:
        """The first sub-folder of every image; "" for one that lies in the folder itself."""
        return [class_of(path) for path in self.paths]


def class_of(path: str) -> str:
    """The first sub-folder of a path; "" where it has none."""
    return path.partition("/")[0] if "/" in path else ""


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a pass over images is.

    Args:
        done: images.
        images: to be embedded in all, by this process.
        rate: images per second since it began.
        seconds_left: at that rate.
    """

    done: int
    images: int
    rate: float
    seconds_left: float


Listener = Callable[[Progress], None]


@dataclasses.dataclass(frozen=True)
class HowToRead:
    """How the images of folders are read and their embeddings kept.

    Args:
        store: the folder of the embeddings.
        own: whether that is the run's own.
        workers: processes that read; None for :func:`default_workers`.
        listener: called after each batch.
    """

    store: Path
    own: bool = True
    workers: int | None = None
    listener: Listener | None = None


@dataclasses.dataclass
class _Pass:
    """What one process has embedded."""

    written: list[tuple[str, Numbers]] = dataclasses.field(default_factory=list)
    unreadable: dict[int, str] = dataclasses.field(default_factory=dict)
    not_finite: list[int] = dataclasses.field(default_factory=list)
    done: int = 0


class ImageEmbedder:
    """A trained network with the preprocessing of its run.

    Args:
        name: of the run, for errors.
        network: in evaluation mode.
        device: where the network is.
        weights: the identity of the network's weights.
        precision: in which the network computes; float32, with a warning, on a device that does not have it.
        how: how folders are read.
    """

    def __init__(
        self, name: str, network: Network, device: torch.device, weights: str, precision: Precision, how: HowToRead
    ) -> None:
        self.name, self.network, self.device, self.how = name, network, device, how
        self.channels = network.preprocessing.channels  # what files are read as
        _, self.transform = network.preprocessing.transforms()
        self._memory_format: torch.memory_format | None = None  # known with the first batch
        self.precision = precision
        try:
            check_precision(device, precision)
        except ConfigError as error:
            self.precision = "float32"
            warnings.warn(f"{name} computes in float32: {error}", StoreWarning, stacklevel=4)
        facts = [weights, network.preprocessing.model_dump(), self.precision]
        self.identity = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
        self._files = KeptFiles(EmbeddingStore(how.store, self.identity, network.embedding_size))
        self._state = _state_of(network)
        self._converting = threading.RLock()

    @property
    def is_changed(self) -> bool:
        """Whether weights of the network were changed or replaced since it was read: what is kept is not of it."""
        with self._converting:
            return _state_of(self.network) != self._state

    @torch.no_grad()
    def embed(self, images: Images, normalize: bool, batch_size: int) -> Tensor:
        """Embeddings of single images, ``[N, D]``; see :meth:`TrainedRun.embed`."""
        _check_batch_size(batch_size)
        with self._files.asked() as asked:
            inputs = _batches(map(self._input, several(images)), batch_size)
            batches = [self._embed_some(batch, asked.embeddings) for batch in inputs]
        if not batches:
            raise DataError("no images to embed; wanted one or more")
        embeddings = torch.cat(batches)
        bad = (~embeddings.isfinite().all(1)).nonzero().flatten().tolist()
        if bad:
            raise self._not_finite(len(bad), len(embeddings), f"number {bad[0]}")
        return nn.functional.normalize(embeddings) if normalize else embeddings

    def _embed_some(self, images: Sequence[Path | Tensor], of_files: Callable[..., NDArray[np.float32]]) -> Tensor:
        """A batch of files and of transformed images; files by way of the store, while the network is the run's."""
        files = {number: image for number, image in enumerate(images) if isinstance(image, Path)}
        others = {number: image for number, image in enumerate(images) if isinstance(image, Tensor)}
        parts = []
        if files:
            paths = [*files.values()]
            rows = self._embed_files(paths) if self.is_changed else of_files(paths, self._embed_files)
            parts.append(torch.from_numpy(rows).to(self.device))
        if others:
            parts.append(self._forward(torch.stack([*others.values()])))
        return torch.cat(parts)[np.argsort([*files, *others])]

    def _embed_files(self, files: Sequence[Path]) -> NDArray[np.float32]:
        return self._forward(torch.stack([self._image(path) for path in files])).cpu().numpy()

    @torch.no_grad()
    def embed_folder(self, folder: Path, normalize: bool, batch_size: int, workers: int | None = None) -> Embedded:
        """Embeddings of all images below a folder; see :meth:`TrainedRun.embed_folder`."""
        _check_batch_size(batch_size)
        workers = self.how.workers if workers is None else workers
        check_workers(workers)
        listing = from_rank_0(list_folder(folder) if rank() == 0 else None)
        with self._store() as store:
            places: Places = from_rank_0(store.find(listing) if rank() == 0 else None)
            missing = places.missing()
            own = missing[len(missing) * rank() // num_processes() : len(missing) * (rank() + 1) // num_processes()]
            passes = from_ranks(self._embed_missing(store, listing, own, batch_size, workers))
            places, skipped = from_rank_0(self._joined(listing, places, passes) if rank() == 0 else None)
            kept, embeddings = store.read(places)
            from_ranks(None)  # none reads any more
            if rank() == 0:
                store.compact(places)
            from_rank_0(None)
        points = torch.from_numpy(embeddings).to(self.device)
        new = sum(len(numbers) for each in passes for _, numbers in each.written)
        return Embedded(
            folder,
            [listing.names[number] for number in kept],
            nn.functional.normalize(points, out=points) if normalize else points,
            skipped,
            listing.sizes[kept],
            listing.times[kept],
            new,
        )

    def some_images(self, folder: Path | None) -> Tensor:
        """Transformed images to compare networks by, ``[100, C, S, S]`` at most, on the CPU.

        Args:
            folder: whose first images they are; None for images of noise, the same each time.

        Raises:
            DataError: no readable image in the folder.
        """
        if folder is None:
            shape = (COMPARED, self.channels, *[self.network.preprocessing.image_size] * 2)
            noise = torch.randint(256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
            return torch.stack([self.transform(image) for image in noise])
        paths = [folder / name for name in list_folder(folder).names[:COMPARED]]
        batches = read_batches(paths, self.channels, self.transform, READ, 0, torch.device("cpu"))
        images = [images for images, _, _ in batches if images is not None]
        if not images:
            raise DataError(f"{folder}: no readable image to compare by")
        return torch.cat(images)

    @contextlib.contextmanager
    def _store(self) -> Iterator[EmbeddingStore]:
        """The store: rank 0 has it for itself and for the others."""
        place, size = self.how.store, self.network.embedding_size
        if self.is_changed:
            if num_processes() > 1:
                raise ConfigError(
                    f"{self.name}: its network was changed since it was read, and several processes "
                    "share what they embed by the store, which is of the run; use one"
                )
            yield EmbeddingStore(None, self.identity, size)
            return
        if rank() > 0:
            from_rank_0(None)  # which raises the same where it cannot be had
            yield EmbeddingStore(place, self.identity, size)
            return
        with opened_store(place, self.identity, size, self.how.own) as store:
            if num_processes() > 1 and store.place is None:
                raise ConfigError(
                    f"{place}: several processes share what they embed by this folder, which cannot be "
                    "written; wanted another one, type --store FOLDER"
                )
            from_rank_0(None)
            yield store

    def _embed_missing(
        self, store: EmbeddingStore, listing: Listing, numbers: Numbers, batch_size: int, workers: int | None
    ) -> _Pass:
        """Embeds images and writes them as it goes; what is not written when something fails is written then."""
        result, waiting = _Pass(), Waiting(store, listing)
        result.written = waiting.written
        pace = Pace(0, len(numbers))
        begun = time.perf_counter()
        paths = [listing.folder / listing.names[number] for number in numbers]
        workers = default_workers(len(paths)) if workers is None else workers
        try:
            for images, places, unreadable in read_batches(
                paths, self.channels, self.transform, min(batch_size, READ), workers, self.device
            ):
                result.unreadable |= {int(numbers[place]): why for place, why in unreadable.items()}
                result.done += len(places) + len(unreadable)
                if images is not None:
                    self._take(images, numbers[places], waiting, result)
                if self.how.listener is not None:
                    rate = result.done / max(time.perf_counter() - begun, 1e-9)
                    self.how.listener(Progress(result.done, len(paths), rate, pace.seconds_left(result.done)))
        except OSError:  # the disk is full, say: what was written stays
            raise
        except BaseException:
            with contextlib.suppress(OSError):  # the first error says more
                waiting.write()
            raise
        waiting.write()
        return result

    def _take(self, images: Tensor, numbers: Numbers, waiting: Waiting, result: _Pass) -> None:
        embeddings = self._forward(images)
        good = embeddings.isfinite().all(1).cpu().numpy()
        result.not_finite += numbers[~good].tolist()
        waiting.add(numbers[good].tolist(), embeddings.cpu().numpy()[good])

    def _joined(self, listing: Listing, places: Places, passes: Sequence[_Pass]) -> tuple[Places, dict[str, str]]:
        """Where everything is now, and what was left out; each file of that is warned of."""
        skipped = dict(listing.others)
        not_finite: list[int] = []
        for each in passes:
            not_finite += each.not_finite
            skipped |= {listing.names[number]: why for number, why in each.unreadable.items()}
            for name, numbers in each.written:
                places.add(name, numbers)
        for why in skipped.values():
            warnings.warn(f"skipped {why}", SkippedImage, stacklevel=4)
        if not_finite:
            images = sum(each.done - len(each.unreadable) for each in passes)
            raise self._not_finite(len(not_finite), images, listing.names[min(not_finite)])
        if len(places.missing()) == len(listing.names):
            first = f"; the first: {next(iter(skipped.values()))}" if skipped else ""
            files = len(listing.names) + len(listing.others)
            raise DataError(f"{listing.folder}: no readable image among {files} files{first}")
        return places, skipped

    def _input(self, image: Any) -> Path | Tensor:
        """A file as its path, since it may be in the store; anything else transformed, since it may be large."""
        return Path(image) if isinstance(image, (str, os.PathLike)) else self._image(image)

    def _image(self, image: Any) -> Tensor:
        return self.transform(as_tensor(image, self.channels, self.transform.smallest))  # type: ignore[no-any-return]

    @torch.no_grad()
    def _forward(self, images: Tensor) -> Tensor:
        images = images.to(self.device)
        with self._converting:
            if self._memory_format is None:
                is_changed = self.is_changed
                self._memory_format = _memory_format(self.network, images[:1])
                self._state = () if is_changed else _state_of(self.network)
        with autocast(self.device, self.precision):
            embeddings: Tensor = self.network(images.to(memory_format=self._memory_format))
        return embeddings.float()

    def _not_finite(self, bad: int, images: int, first: str) -> DataError:
        return DataError(
            f"{self.name}: its network gives NaN or infinity for {bad} of {images} images, {first} first; "
            "train it again, with a lower optimizer.lr"
        )


def _state_of(network: nn.Module) -> tuple[tuple[int, int], ...]:
    """Which tensors a network has, and how often each was written to."""
    return tuple((id(each), each._version) for each in itertools.chain(network.parameters(), network.buffers()))


def _memory_format(network: Network, image: Tensor) -> torch.memory_format:
    """How images and weights lie in memory: on the CPU with the channels last, which convolutions like.

    The network is brought into that form; one that does not work with it stays as it is.
    """
    if image.device.type != "cpu":
        return torch.contiguous_format
    try:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        network(image.to(memory_format=torch.channels_last))
    except RuntimeError:  # a module that takes a view of what is not contiguous
        network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return torch.contiguous_format
    return torch.channels_last


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise ConfigError(f"batch_size {batch_size}: wanted 1 or more")


def names_of(images: Images) -> list[str]:
    """The path of every image, "" for one that is no file.

    Args:
        images: as of :func:`several`; a generator is used up.
    """
    if isinstance(images, Tensor):
        return [""] * (1 if images.ndim == 3 else len(images))
    return [os.fspath(image) if isinstance(image, (str, os.PathLike)) else "" for image in several(images)]


def _batches(images: Iterable[Path | Tensor], size: int) -> Iterator[list[Path | Tensor]]:
    rest = iter(images)
    while batch := [*itertools.islice(rest, size)]:
        yield batch


@contextlib.contextmanager
def heard() -> Iterator[list[str]]:
    """Collects what :class:`SkippedImage` warnings say, for the command line."""
    texts: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", SkippedImage)
        shown = warnings.showwarning

        def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, SkippedImage):
                texts.append(str(message))
            else:
                shown(message, category, *where, **more)

        warnings.showwarning = show
        yield texts
