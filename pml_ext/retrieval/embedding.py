"""From images to embeddings: single images, and folders by way of the run's collection."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..devices import Precision, autocast, check_precision
from ..distributed import from_rank_0, from_ranks, num_processes, rank
from ..errors import ConfigError, DataError, UnwritableError, needs_extra
from ..files import write_atomically, writing
from ..network import Network
from .checks import StoreWarning
from .collection import Collection, Numbers, Owner, Vectors, class_of, path_bytes, why_unwritable
from .reading import Facts, Listing, as_tensor, check_workers, default_workers, list_folder, read_batches, several

Images = Any  # a path, a PIL image, an array, a tensor, a folder, or several images; `several` checks
COMPARED = 100  # images by which an exported network is compared
READ = 64  # images that a worker passes on at a time
WRITTEN, SECONDS = 1000, 30.0  # embeddings of a folder are written after as many, or as long
SEVERAL = 8  # new single files of a call that are written: fewer cost less than the transaction
Place = tuple[int, float]
"""The number of a vector, and the length of the embedding as the network gave it."""


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
        new: how many were embedded now; None where that is not known.
        ids: of images of an index, ``[N]``; an image keeps its id while its path stays, and no id is used again.
    """

    folder: Path
    paths: Sequence[str]
    embeddings: Tensor
    skipped: dict[str, str]
    sizes: Numbers | None = None
    times: Numbers | None = None
    new: int | None = None
    ids: Numbers | None = None

    @property
    def classes(self) -> Sequence[str]:
        """The first sub-folder of every image; "" for one that lies in the folder itself."""
        return [class_of(path) for path in self.paths]


@dataclasses.dataclass(frozen=True)
class Progress:
    """The progress of a pass over images.

    Args:
        done: images.
        images: to be embedded in all, by this process.
        rate: images per second since the pass began.
        seconds_left: at that rate.
    """

    done: int
    images: int
    rate: float
    seconds_left: float


Listener = Callable[[Progress], None]


@dataclasses.dataclass
class FolderPass:
    """A folder whose images are all embedded, while no other process passes over one."""

    collection: Collection
    paths: list[str]
    facts: list[Facts]
    places: list[Place]
    skipped: dict[str, str]
    new: int

    @property
    def numbers(self) -> Numbers:
        """The numbers of the vectors."""
        return np.array([number for number, _ in self.places], dtype=np.int64)

    def vectors(self) -> Vectors:
        """The vectors, ``[N, D]``; mapped from the file where they lie there in this order."""
        numbers = self.numbers
        with self.collection.transaction() as current:
            mapped, first = current.vectors(), int(numbers[0])
            if np.array_equal(numbers, np.arange(first, first + len(numbers))):
                return mapped[first : first + len(numbers)]
            return mapped[numbers]


@dataclasses.dataclass
class _Part:
    """The images that one process has embedded, by their numbers in the listing."""

    places: dict[int, Place] = dataclasses.field(default_factory=dict)
    unreadable: dict[int, str] = dataclasses.field(default_factory=dict)
    not_finite: list[int] = dataclasses.field(default_factory=list)


class ImageEmbedder:
    """A trained network with the preprocessing of its run."""

    def __init__(
        self,
        run: Path,
        network: Network,
        device: torch.device,
        weights: str,
        precision: Precision,
        place: Path,
        own: bool = True,
        workers: int | None = None,
        listener: Listener | None = None,
    ) -> None:
        self.run, self.network, self.device = run, network, device
        self._own, self._workers, self._listener = own, workers, listener
        self.channels = network.preprocessing.channels
        _, self.transform = network.preprocessing.transforms()
        self._memory_format: torch.memory_format | None = None  # known with the first batch
        self.precision = precision
        try:
            check_precision(device, precision)
        except ConfigError as error:
            self.precision = "float32"
            warnings.warn(f"{run} computes in float32: {error}", StoreWarning, stacklevel=4)
        facts = [weights, network.preprocessing.model_dump(), self.precision]
        self.identity = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
        self.collection = Collection(place, Owner(run, self.identity, network.embedding_size))
        self._state = _state_of(network)
        self._converting = threading.RLock()

    @property
    def is_changed(self) -> bool:
        """Whether weights of the network were changed or replaced since it was read."""
        with self._converting:
            return _state_of(self.network) != self._state

    # Single images

    @torch.no_grad()
    def embed(self, images: Images, normalize: bool, batch_size: int) -> Tensor:
        """Return embeddings of single images, ``[N, D]``; see :meth:`TrainedRun.embed`."""
        _check_batch_size(batch_size)
        new: dict[bytes, tuple[Facts, Vectors]] = {}
        inputs, batches = iter(map(self._input, several(images))), []
        try:
            while batch := [*itertools.islice(inputs, batch_size)]:
                batches.append(self._embed_batch(batch, new))
        finally:
            self._keep(new, SEVERAL)
        if not batches:
            raise DataError("no images to embed; wanted one or more")
        rows = torch.cat(batches)
        bad = (~rows.isfinite().all(1)).nonzero().flatten().tolist()
        if bad:
            raise self._not_finite(len(bad), len(rows), f"number {bad[0]}")
        return rows[:, :-1].contiguous() if normalize else rows[:, :-1] * rows[:, -1:]

    def _embed_batch(self, images: Sequence[Path | Tensor], new: dict[bytes, tuple[Facts, Vectors]]) -> Tensor:
        """Return vectors and lengths, ``[B, D + 1]``; those of files that the collection has are not computed."""
        files = {number: _facts_of(image) for number, image in enumerate(images) if isinstance(image, Path)}
        changed = self.is_changed
        known = {} if changed else self._known({key: facts for key, facts in files.values() if facts[0] >= 0})
        known |= {key: row for key, (_, row) in new.items()}
        keys = [files[number][0] if number in files else number for number in range(len(images))]
        first = {key: number for number, key in reversed([*enumerate(keys)]) if key not in known}
        rows = torch.empty(len(images), self.network.embedding_size + 1, device=self.device)
        if computed := sorted(first.values()):
            inputs = [
                image if isinstance(image := images[number], Tensor) else self._image(image) for number in computed
            ]
            rows[computed] = self._rows(torch.stack(inputs))
            for number in computed:
                if number in files and files[number][1][0] >= 0 and not changed and rows[number].isfinite().all():
                    new[files[number][0]] = files[number][1], rows[number].cpu().numpy()
        for number, key in enumerate(keys):
            if key in known:
                rows[number] = torch.from_numpy(known[key]).to(self.device)  # type: ignore[index]
            else:
                rows[number] = rows[first[key]]
        self._keep(new, WRITTEN)
        return rows

    def _known(self, files: dict[bytes, Facts]) -> dict[bytes, Vectors]:
        if not files or not self.collection.exists:
            return {}
        try:
            return self.collection.embeddings_of(files)
        except DataError as error:
            warnings.warn(f"embeddings are computed again: {error}", StoreWarning, stacklevel=6)
            return {}

    def _keep(self, new: dict[bytes, tuple[Facts, Vectors]], least: int) -> None:
        """Write new single files, if there are as many; a collection that is not of this network stays as it is."""
        if len(new) < least:
            return
        try:
            if not self.collection.exists:
                with writing(self.collection.place):
                    self.collection.place.mkdir(exist_ok=True)
                self.collection.create(replace=False)
            if self.collection.is_usable():
                facts, rows = zip(*new.values(), strict=True)
                self.collection.append([*new], facts, np.stack(rows))
        except (UnwritableError, DataError) as error:
            warnings.warn(f"embeddings are not kept: {error}", StoreWarning, stacklevel=6)
        new.clear()

    # Folders

    def embed_folder(self, folder: Path, normalize: bool, batch_size: int, workers: int | None = None) -> Embedded:
        """Return embeddings of all images below a folder; see :meth:`TrainedRun.embed_folder`."""
        with self.folder_pass(folder, batch_size, workers) as done:
            points = torch.from_numpy(done.vectors()).to(self.device)
            if not normalize:
                points = points * torch.tensor([length for _, length in done.places], device=self.device)[:, None]
            sizes, times = np.array(done.facts, dtype=np.int64).T.copy()
            return Embedded(folder, done.paths, points, done.skipped, sizes, times, done.new)

    @contextlib.contextmanager
    def folder_pass(self, folder: Path, batch_size: int, workers: int | None = None) -> Iterator[FolderPass]:
        """Embed what the collection does not have of a folder, and hold the collection while the block runs."""
        _check_batch_size(batch_size)
        workers = self._workers if workers is None else workers
        check_workers(workers)
        listing: Listing = from_rank_0(list_folder(folder) if rank() == 0 else None)
        root = path_bytes(str(folder.resolve())).rstrip(b"/") + b"/"
        keys = [root + path_bytes(name) for name in listing.names]
        with self._opened() as collection:
            files = dict(zip(keys, listing.facts, strict=True))
            found, gone = from_rank_0(collection.find(root, files) if rank() == 0 else None)
            missing = [number for number, key in enumerate(keys) if key not in found]
            own = missing[len(missing) * rank() // num_processes() : len(missing) * (rank() + 1) // num_processes()]
            parts = from_ranks(self._embed_missing(collection, listing, keys, own, batch_size, workers))
            places, skipped = from_rank_0(self._joined(listing, missing, parts) if rank() == 0 else None)
            new = len(places)
            places |= {number: found[key] for number, key in enumerate(keys) if key in found}
            kept = sorted(places)
            paths, facts = [listing.names[number] for number in kept], [listing.facts[number] for number in kept]
            yield FolderPass(collection, paths, facts, [places[number] for number in kept], skipped, new)
            if num_processes() == 1:
                collection.forget(gone)
                collection.compact()

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Collection]:
        """Open the run's collection, for this process alone; rank 0 does so for the others.

        A network that was changed, and a run whose collection cannot be written, have a temporary one.
        """
        changed = self.is_changed
        if changed and num_processes() > 1:
            raise ConfigError(
                f"{self.run}: its network was changed since it was read, and several processes "
                "share what they embed by the collection, which is of the run; use one"
            )
        if rank() > 0:
            from_rank_0(None)  # which raises the same where it cannot be had
            yield self.collection
            return
        place = self.collection.place
        if not changed and (why := why_unwritable(place)) is not None:
            if num_processes() > 1:
                raise ConfigError(
                    f"{place}: several processes share what they embed by this folder, which cannot be "
                    "written; wanted another one, type --store FOLDER"
                )
            text = f"{place}: cannot be written ({why}), so embeddings are not kept; --store FOLDER names another place"
            warnings.warn(f"{text} for them", StoreWarning, stacklevel=6)
            changed = True
        if changed:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
                collection = Collection(Path(temporary), self.collection.owner)
                collection.create(replace=True)
                yield collection
            return
        with self.collection.locked():
            self.collection.create(replace=self._own)
            from_rank_0(None)
            yield self.collection

    @torch.no_grad()
    def _embed_missing(
        self,
        collection: Collection,
        listing: Listing,
        keys: Sequence[bytes],
        numbers: Sequence[int],
        batch_size: int,
        workers: int | None,
    ) -> _Part:
        """Embed images and write them as they come; when something fails, the rest is written as well."""
        part, waiting = _Part(), dict[int, Vectors]()
        paths = [listing.folder / listing.names[number] for number in numbers]
        done = 0
        begun = last = time.perf_counter()

        def write() -> None:
            if waiting:
                rows, facts = np.stack([*waiting.values()]), [listing.facts[number] for number in waiting]
                first = collection.append([keys[number] for number in waiting], facts, rows)
                places = ((first + row, length) for row, length in enumerate(rows[:, -1].tolist()))
                part.places.update(zip(waiting, places, strict=True))
                waiting.clear()

        workers = default_workers(len(paths)) if workers is None else workers
        read = min(batch_size, READ)
        try:
            for images, numbers_read, why in read_batches(
                paths, self.channels, self.transform, read, workers, self.device
            ):
                part.unreadable |= {numbers[row]: text for row, text in why.items()}
                done += len(numbers_read) + len(why)
                if images is not None:
                    for place, row in zip(numbers_read, self._rows(images).cpu().numpy(), strict=True):
                        if np.isfinite(row).all():
                            waiting[numbers[place]] = row
                        else:
                            part.not_finite.append(numbers[place])
                if len(waiting) >= WRITTEN or time.perf_counter() - last >= SECONDS:
                    write()
                    last = time.perf_counter()
                if self._listener is not None:
                    rate = done / max(time.perf_counter() - begun, 1e-9)
                    self._listener(Progress(done, len(paths), rate, (len(paths) - done) / rate))
        except OSError:  # the disk is full, say: what was written stays
            raise
        except BaseException:
            with contextlib.suppress(OSError):  # the first error says more
                write()
            raise
        write()
        return part

    def _joined(
        self, listing: Listing, missing: Sequence[int], parts: Sequence[_Part]
    ) -> tuple[dict[int, Place], dict[str, str]]:
        """Return the places of new images and the files that were left out, with a warning for each."""
        skipped = dict(listing.others)
        places: dict[int, Place] = {}
        not_finite: list[int] = []
        for part in parts:
            places |= part.places
            not_finite += part.not_finite
            skipped |= {listing.names[number]: why for number, why in part.unreadable.items()}
        for why in skipped.values():
            warnings.warn(f"skipped {why}", SkippedImage, stacklevel=4)
        if not_finite:
            raise self._not_finite(len(not_finite), len(places) + len(not_finite), listing.names[min(not_finite)])
        if len(missing) == len(listing.names) and not places:
            first = f"; the first: {next(iter(skipped.values()))}" if skipped else ""
            files = len(listing.names) + len(listing.others)
            raise DataError(f"{listing.folder}: no readable image among {files} files{first}")
        return places, skipped

    def noise(self) -> Tensor:
        """Return transformed images of noise to compare networks by, ``[100, C, S, S]``, the same each time."""
        shape = (COMPARED, self.channels, *[self.network.preprocessing.image_size] * 2)
        noise = torch.randint(256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        return torch.stack([self.transform(image) for image in noise])

    # The network

    def _input(self, image: Any) -> Path | Tensor:
        """Return a file as its path, since the collection may have it; anything else transformed: it may be large."""
        return Path(image) if isinstance(image, (str, os.PathLike)) else self._image(image)

    def _image(self, image: Any) -> Tensor:
        return self.transform(as_tensor(image, self.channels, self.transform.smallest))  # type: ignore[no-any-return]

    def _rows(self, images: Tensor) -> Tensor:
        """Return embeddings of length 1 and the lengths that the network gave them, ``[B, D + 1]``."""
        raw = self._forward(images)
        return torch.cat([nn.functional.normalize(raw), raw.norm(dim=1, keepdim=True)], 1)

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
            f"{self.run}: its network gives NaN or infinity for {bad} of {images} images, {first} first; "
            "train it again, with a lower optimizer.lr"
        )


def _state_of(network: nn.Module) -> tuple[tuple[int, int], ...]:
    """Return which tensors a network has, and how often each was written to."""
    return tuple((id(each), each._version) for each in itertools.chain(network.parameters(), network.buffers()))


def _memory_format(network: Network, image: Tensor) -> torch.memory_format:
    """Bring a network on the CPU into the channels-last format, if it works with that; return the images' format."""
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


def _facts_of(file: Path) -> tuple[bytes, Facts]:
    """Return the path without links but for its own name, and size and time; -1 of a file that cannot be looked at."""
    try:
        about = file.stat()
        return path_bytes(os.path.join(os.path.realpath(file.parent), file.name)), (about.st_size, about.st_mtime_ns)
    except (OSError, ValueError):  # a path with a zero byte is a ValueError
        return os.fsencode(str(file)), (-1, -1)


def names_of(images: Images) -> list[str]:
    """Return the path of every image, "" for one that is no file; a generator is used up."""
    if isinstance(images, Tensor):
        return [""] * (1 if images.ndim == 3 else len(images))
    return [os.fspath(image) if isinstance(image, (str, os.PathLike)) else "" for image in several(images)]


@contextlib.contextmanager
def forward_warnings() -> Iterator[list[str]]:
    """Collect the texts of :class:`SkippedImage` warnings; others are shown as ever."""
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


def save_embeddings(embedded: Embedded, path: Path) -> None:
    """Write embeddings, paths and classes to an ``.npz`` or ``.parquet`` file."""
    points = embedded.embeddings.cpu().numpy()
    if path.suffix != ".parquet":

        def save_npz(temporary: Path) -> None:
            with temporary.open("wb") as file:
                np.savez(file, embeddings=points, paths=np.array(embedded.paths), classes=np.array(embedded.classes))

        write_atomically(path, save_npz)
        return
    with needs_extra("train", "a .parquet file"):
        import pyarrow as pa
        import pyarrow.parquet as pq

    def texts(names: Sequence[str]) -> Any:
        try:
            return pa.array(names, pa.string())
        except UnicodeEncodeError:
            return pa.array([os.fsencode(name) for name in names], pa.binary())

    columns = {"path": texts(embedded.paths), "class": texts(embedded.classes)}
    if embedded.sizes is not None and embedded.times is not None:
        columns |= {"size": pa.array(embedded.sizes), "modified_ns": pa.array(embedded.times)}
    columns["embedding"] = pa.FixedSizeListArray.from_arrays(pa.array(points.reshape(-1)), points.shape[1])
    write_atomically(path, lambda temporary: pq.write_table(pa.table(columns), temporary, use_dictionary=["class"]))
