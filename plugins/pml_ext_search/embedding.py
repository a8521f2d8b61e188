"""Embedding of single images and of folders, with the run's collection as a cache."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pml_ext.tool import (
    By,
    ConfigError,
    DataError,
    FeatureCache,
    FileStat,
    Network,
    Precision,
    Preprocessing,
    Steps,
    UnwritableError,
    Vectors,
    autocast,
    check_precision,
    check_writable,
    file_stat,
    from_rank_0,
    from_ranks,
    num_processes,
    path_bytes,
    rank,
    share_of,
    shortened,
    use_channels_last,
    write_atomically,
)

from .collection import (
    LAYOUT,
    ClassFolders,
    Collection,
    Embedded,
    StoreWarning,
    Transaction,
    is_below,
)
from .reading import Images, Listing, as_images, as_tensor, default_workers, list_folder, read_batches

READ = 64  # images per batch of a reading worker
WRITTEN = 1000  # embeddings of a folder are written after this many images
SECONDS = 30.0  # or after this time
SEVERAL = 8  # minimum new files of a batch to store; for fewer, the transaction costs more


class SkippedImage(UserWarning):
    """Warning that a file of a folder was left out; the text has its path and the reason."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """The progress of a pass over images."""

    done: int
    images: int  # total number that this process embeds
    rate: float  # images per second since the pass began
    seconds_left: float


Listener = Callable[[Progress], None]


Batch = Mapping[int, Vectors | str]
"""By an image's place: its embedding, or why it cannot be read."""
_NOT_FINITE = ""  # in place of a reason, for an image whose embedding has NaN or infinity


def _split_in_batches(images: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield lists of at most ``size`` images, read one after the other."""
    remaining = iter(images)
    while batch := list(itertools.islice(remaining, size)):
        yield batch


class ImageEmbedder:
    """A trained network with the preprocessing of its run, and the collection of its embeddings.

    With ``by="features"``, the network is one without a head.
    """

    def __init__(
        self,
        run: Path,
        network: Network,
        device: torch.device,
        weights: str,  # digest of the weights
        precision: Precision,
        place: Path,
        replace: bool = True,  # whether to replace a collection of other weights in the same folder
        workers: int | None = None,
        listener: Listener | None = None,
        frozen: bool = False,  # whether the trunk is frozen: its features are cached and shared by runs
        by: By = "embeddings",
        class_levels: int | None = 1,  # how many sub-folders of an image name its class; None: all
    ) -> None:
        assert isinstance(network.preprocessing, Preprocessing)  # vectors are for VectorEmbedder
        self.preprocessing = network.preprocessing
        self.run = run
        self.network = network
        self.device = device
        self.replace = replace
        self._workers = workers
        self._listener = listener
        self.class_levels = class_levels
        self.channels = self.preprocessing.channels
        self.precision = precision
        try:
            check_precision(device, precision)
        except ConfigError as error:
            self.precision = "float32"
            warnings.warn(f"{run} computes in float32: {error}", StoreWarning, stacklevel=4)
        identified_by = [LAYOUT, weights, self.preprocessing.model_dump(), self.precision]
        if by != "embeddings":
            identified_by.append(by)
        identity = hashlib.sha256(json.dumps(identified_by).encode()).hexdigest()[:16]
        self.collection = Collection(place, run, identity, network.embedding_size, by)
        self._memory_format = torch.contiguous_format  # of images
        if device.type == "cpu":
            self._memory_format = use_channels_last(network, self.channels, self.preprocessing.image_size)
        self._frozen = frozen and self.precision == "float32"

    @functools.cached_property
    def transform(self) -> Steps:
        """The steps from a stored image to the network's input; imports torchvision."""
        return self.preprocessing.transforms()[1]

    @functools.cached_property
    def _features(self) -> FeatureCache | None:
        """The feature cache that runs share; None unless the trunk is frozen."""
        if not self._frozen:
            return None
        about = [self.preprocessing.model_dump(include=set(Preprocessing.model_fields)), ""]
        return FeatureCache(self.network.trunk, self.network.features, about, self.device, READ)

    # Single images

    @torch.no_grad()
    def embed(self, images: Images, batch_size: int, current: Transaction | None = None) -> Tensor:
        """Return embeddings of single images, ``[N, D]``; see :meth:`TrainedRun.embed`.

        Files are looked up in the collection first; within the transaction ``current``, if it is given. At most
        ``batch_size`` other images are held at a time.
        """
        batches = []
        for batch in _split_in_batches(as_images(images), batch_size):
            inputs: list[Path | Tensor] = []
            for image in batch:
                if isinstance(image, (str, os.PathLike)):
                    inputs.append(Path(image))
                else:
                    inputs.append(self._image(image))
            batches.append(self._embed_batch(inputs, current))
        if not batches:
            raise DataError("no images to embed; wanted one or more")
        rows = torch.cat(batches)
        bad = (~rows.isfinite().all(1)).nonzero().flatten().tolist()
        if bad:
            raise self._not_finite(len(bad), len(rows), f"number {bad[0]}")
        return rows

    def _embed_batch(self, images: Sequence[Path | Tensor], current: Transaction | None) -> Tensor:
        """Return a batch's embeddings: those of the collection, those from cached features, and new ones.

        An image's key is the path of its file, or its place in the batch. New embeddings of files may be stored.
        """
        stats: dict[bytes, FileStat] = {}
        keys: list[bytes | int] = []
        for place, image in enumerate(images):
            if isinstance(image, Path):
                path, size_and_mtime = _key_and_stat(image)
                stats[path] = size_and_mtime
                keys.append(path)
            else:
                keys.append(place)
        known: dict[bytes | int, Tensor] = {}
        if stats and self.collection.exists:
            known |= self._looked_up(stats, current)

        missing: dict[bytes | int, Path | Tensor] = {}
        missing_files: dict[bytes | int, Path] = {}
        for key, image in zip(keys, images, strict=True):
            if key not in known:
                missing[key] = image
                if isinstance(image, Path):
                    missing_files[key] = image
        known |= self._from_features(missing_files)

        inputs: dict[bytes | int, Tensor] = {}  # of the network
        for key, image in missing.items():
            if key not in known:
                inputs[key] = image if isinstance(image, Tensor) else self._image(image)
        if inputs:
            rows = self._forward(torch.stack(list(inputs.values())))
            known |= zip(inputs, rows, strict=True)

        new: dict[bytes, FileStat] = {}
        for key in missing:
            if isinstance(key, bytes) and known[key].isfinite().all():
                new[key] = stats[key]
        self._keep(new, known)
        return torch.stack([known[key].to(self.device) for key in keys])

    def _looked_up(self, stats: Mapping[bytes, FileStat], current: Transaction | None) -> dict[bytes | int, Tensor]:
        """Return the collection's embeddings of files; none, with a warning, if it is damaged or of another network."""
        try:
            if current is None:
                found, _, vectors = self.collection.find(stats)
            else:
                found, _ = self.collection.find_within(current, stats)
                vectors = current.vectors
            rows: dict[bytes | int, Tensor] = {}
            for path, number in found.items():
                rows[path] = torch.from_numpy(vectors[number].copy())
            return rows
        except DataError as error:
            warnings.warn(f"embeddings are computed again: {error}", StoreWarning, stacklevel=7)
            return {}

    def _keep(self, new: Mapping[bytes, FileStat], rows: Mapping[bytes | int, Tensor]) -> None:
        """Store at least eight new single files; leave the collection of another network unchanged."""
        if len(new) < SEVERAL:
            return
        try:
            if not self.collection.exists:
                self.collection.create(replace=False)
            vectors = torch.stack([rows[key] for key in new]).cpu().numpy()
            self.collection.append(list(new), list(new.values()), vectors)
        except (UnwritableError, DataError) as error:
            warnings.warn(f"embeddings are not kept: {error}", StoreWarning, stacklevel=6)

    # Folders

    @contextlib.contextmanager
    def folder_pass(self, folder: Path, batch_size: int = 256) -> Iterator[Embedded]:
        """Embed a folder's new images, and lock the collection while the block runs."""
        first = rank() == 0
        listing: Listing = from_rank_0(list_folder(folder) if first else None)
        root = path_bytes(str(folder.resolve())).rstrip(b"/") + b"/"
        keys = [root + path_bytes(name) for name in listing.names]
        if first:
            check_writable("--store", self.collection.place)
        with self.collection.locked(self.replace) if first else contextlib.nullcontext():
            found, gone = from_rank_0(self._find_listed(listing, keys, root) if first else None)
            missing = [number for number, key in enumerate(keys) if key not in found]
            results: dict[int, int | str] = {}
            mine = missing[share_of(len(missing), rank(), num_processes())]
            for part in from_ranks(self._embed_missing(listing, keys, mine, batch_size)):
                results |= part
            vectors, skipped = from_rank_0(self._joined(listing, results) if first else None)

            new = len(vectors)
            for number, key in enumerate(keys):
                if key in found:
                    vectors[number] = found[key]
            if not vectors:
                why = f"; the first: {next(iter(skipped.values()))}" if skipped else ""
                raise DataError(f"{folder}: no readable image among {len(skipped)} files{why}")
            yield self._embedded_folder(folder, listing, vectors, skipped, new)
            if num_processes() == 1:
                self.collection.compact(gone)

    def _find_listed(
        self, listing: Listing, keys: Sequence[bytes], root: bytes
    ) -> tuple[dict[bytes, int], list[bytes]]:
        """Return the vector numbers of unchanged files, and the files that are gone.

        A file below a folder that could not be looked at counts as present.
        """
        files = dict(zip(keys, listing.stats, strict=True))
        found, absent, _ = self.collection.find(files, root)
        unlisted = frozenset(listing.unlisted)
        gone = []
        for key in absent:
            relative_path = os.fsdecode(key[len(root) :])
            if not is_below(relative_path, unlisted):
                gone.append(key)
        return found, gone

    def _embedded_folder(
        self, folder: Path, listing: Listing, vectors: Mapping[int, int], skipped: dict[str, str], new: int
    ) -> Embedded:
        """Return the images whose vectors are in the collection, in the order of the listing."""
        paths = []
        stats = []
        numbers = []
        for place in sorted(vectors):
            paths.append(listing.names[place])
            stats.append(listing.stats[place])
            numbers.append(vectors[place])
        numbers_of_vectors = np.array(numbers, dtype=np.int64)
        return Embedded(
            folder,
            paths=paths,
            embeddings=torch.from_numpy(self.collection.vectors_of(numbers_of_vectors)).to(self.device),
            skipped=skipped,
            stats=np.array(stats, dtype=np.int64),
            new=new,
            numbers=numbers_of_vectors,
            unlisted=listing.unlisted,
            class_folders=ClassFolders.of_paths(paths, self.class_levels),
        )

    def embed_files(
        self, files: Sequence[Any], workers: int | None = None, with_progress: bool = True
    ) -> Iterator[list[Vectors | str]]:
        """Embed files (paths or open files) in batches of 64; yield embeddings, or why a file is unreadable.

        ``with_progress`` is for files that are all of a pass, not some of more.
        """
        for batch in self._embedded(files, READ, workers=workers, with_progress=with_progress):
            bad = []
            for place, row in batch.items():
                if not isinstance(row, str) and not np.isfinite(row).all():
                    bad.append(place)
            if bad:
                raise self._not_finite(len(bad), len(batch), str(files[min(bad)]))
            yield [batch[place] for place in sorted(batch)]

    def _embedded(
        self,
        files: Sequence[Any],
        size: int,
        stats: Sequence[FileStat] = (),
        workers: int | None = None,
        with_progress: bool = True,
    ) -> Iterator[Batch]:
        """Embed files in batches, and report progress to the listener.

        With ``stats``, sizes and times from before the files are read, the features of a frozen trunk are cached.
        """
        if workers is None:
            workers = self._workers
        if workers is None:
            workers = default_workers(len(files))
        begun = time.perf_counter()
        done = 0
        for images, read, bad in read_batches(files, self.channels, self.transform, size, workers, self.device):
            batch: dict[int, Vectors | str] = dict(bad)
            if images is not None:
                stats_by_file = {}
                if stats:
                    stats_by_file = {files[place]: stats[place] for place in read}
                rows = self._forward(images, stats_by_file).cpu().numpy()
                batch |= zip(read, rows, strict=True)
            done += len(batch)
            if with_progress and self._listener is not None:
                rate = done / max(time.perf_counter() - begun, 1e-9)
                seconds_left = (len(files) - done) / rate
                self._listener(Progress(done, len(files), rate, seconds_left))
            yield batch

    @torch.no_grad()
    def _embed_missing(
        self, listing: Listing, keys: Sequence[bytes], numbers: Sequence[int], batch_size: int
    ) -> dict[int, int | str]:
        """Embed images and write the vectors; return each vector's number, or the reason for a failure.

        Images are known by their places in the listing. What is embedded when an error occurs is written too.
        """
        results = dict[int, int | str]()
        waiting = dict[int, Vectors]()
        last = time.perf_counter()

        def write() -> None:
            if not waiting:
                return
            paths = [keys[number] for number in waiting]
            stats = [listing.stats[number] for number in waiting]
            written = self.collection.append(paths, stats, np.stack(list(waiting.values())))
            results.update(zip(waiting, written.values(), strict=True))
            waiting.clear()

        try:
            for batch in self._batches(listing, numbers, min(batch_size, READ)):
                for number, row in batch.items():
                    if isinstance(row, str):
                        results[number] = row
                    elif np.isfinite(row).all():
                        waiting[number] = row
                    else:
                        results[number] = _NOT_FINITE
                if len(waiting) >= WRITTEN or time.perf_counter() - last >= SECONDS:
                    write()
                    last = time.perf_counter()
        except BaseException:
            with contextlib.suppress(OSError):  # save finished embeddings; raise the original error
                write()
            raise
        write()
        return results

    def _batches(self, listing: Listing, numbers: Sequence[int], size: int) -> Iterator[Batch]:
        """Yield embeddings by number, first of images whose features are cached."""
        files = {number: listing.folder / listing.names[number] for number in numbers}
        if self._features is not None:
            for start in range(0, len(numbers), WRITTEN):
                some = {number: files[number] for number in numbers[start : start + WRITTEN]}
                cached = self._from_features(some)
                yield {number: row.cpu().numpy() for number, row in cached.items()}
                for number in cached:
                    del files[number]
        remaining = list(files)
        stats = [listing.stats[number] for number in remaining]
        for batch in self._embedded(list(files.values()), size, stats):
            yield {remaining[place]: row for place, row in batch.items()}

    def _joined(self, listing: Listing, results: Mapping[int, int | str]) -> tuple[dict[int, int], dict[str, str]]:
        """Return the vector numbers of new images and the skipped files; warn about each skipped file."""
        vectors = {}
        not_finite = []
        skipped = dict(listing.others)
        for number, result in results.items():
            if isinstance(result, int):
                vectors[number] = result
            elif result == _NOT_FINITE:
                not_finite.append(number)
            else:
                skipped[listing.names[number]] = result
        warn_of_skipped(skipped)
        if not_finite:
            raise self._not_finite(len(not_finite), len(vectors) + len(not_finite), listing.names[min(not_finite)])
        return vectors, skipped

    # The network

    def _image(self, image: Any) -> Tensor:
        return self.transform(as_tensor(image, self.channels, self.transform.smallest))  # type: ignore[no-any-return]

    @torch.no_grad()
    def _forward(self, images: Tensor, files: Mapping[Path, FileStat] | None = None) -> Tensor:
        """Return L2-normalized embeddings, ``[B, D]``, float32; cache the features of files if the trunk is frozen."""
        images = images.to(self.device, memory_format=self._memory_format)
        with autocast(self.device, self.precision):
            if self._features is None or not files:
                embeddings: Tensor = self.network(images)
            else:
                features = self.network.trunk(images)
                with self._features_may_fail():
                    self._features.keep([*files], [*files.values()], features)
                embeddings = self.network.embedder(features)
        return nn.functional.normalize(embeddings.float())

    @torch.no_grad()
    def _from_features(self, files: Mapping[Any, Path]) -> dict[Any, Tensor]:
        """Return the embeddings of files whose features are cached; none without a frozen trunk."""
        features: dict[int, Vectors] = {}
        with self._features_may_fail():
            if self._features is not None and files:
                features = self._features.of_files(list(files.values()))
        if not features:
            return {}
        rows = torch.from_numpy(np.stack(list(features.values()))).to(self.device)
        keys = list(files)
        embeddings = nn.functional.normalize(self.network.embedder(rows).float())
        return {keys[place]: row for place, row in zip(features, embeddings, strict=True)}

    @contextlib.contextmanager
    def _features_may_fail(self) -> Iterator[None]:
        """Warn and continue without the shared feature cache if it cannot be read or written."""
        try:
            yield
        except (DataError, UnwritableError, OSError) as error:
            warnings.warn(f"features are computed, and not kept: {shortened(error)}", StoreWarning, stacklevel=6)
            self._features = None

    def _not_finite(self, bad: int, images: int, first: str) -> DataError:
        return DataError(
            f"{self.run}: its network gives NaN or infinity for {bad} of {images} images, {first} first; "
            "train it again, with a lower optimizer.lr"
        )


def _key_and_stat(file: Path) -> tuple[bytes, FileStat]:
    """Return a file's path in its resolved folder, its size and modification time; raise DataError if it is missing."""
    size_and_mtime = file_stat(file)
    if size_and_mtime is None:
        raise DataError(f"{file}: no such file")
    path = os.path.join(os.path.realpath(file.parent), file.name)
    return path_bytes(path), size_and_mtime


def warn_of_skipped(skipped: Mapping[str, str]) -> None:
    """Warn of each skipped file; the reason contains its path."""
    for why in skipped.values():
        warnings.warn(f"skipped {why}", SkippedImage, stacklevel=4)


def save_embeddings(embedded: Embedded, path: Path) -> None:
    """Write embeddings, paths and classes to an ``.npz`` file."""
    points = embedded.embeddings.cpu().numpy()
    paths = np.array(embedded.paths)
    classes = np.array(embedded.classes)

    def save(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez(file, embeddings=points, paths=paths, classes=classes)

    write_atomically(path, save)
