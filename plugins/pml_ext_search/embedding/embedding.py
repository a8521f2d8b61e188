"""Embedding of images and folders, with a collection as a cache."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pml_ext.errors import DataError, UnwritableError
from pml_ext_train.files import FileStat, file_stat, path_bytes
from pml_ext_train.networks import By
from pml_ext_train.retrieval import Vectors

from ..collection.class_folders import ClassFolders
from ..collection.collection import Collection
from ..collection.problems import StoreWarning
from ..collection.transaction import Transaction
from .batch_embedder import BatchEmbedder
from .reading import READ, Images, as_images, default_workers, joined, read_batches

SEVERAL = 8  # minimum new files of a batch to store; for fewer, the transaction costs more


class SkippedImage(UserWarning):
    """A file of a folder was left out; the text has its path and the reason."""


@dataclasses.dataclass(frozen=True)
class EmbeddingProgress:
    """The progress of a pass over images."""

    done: int
    images: int  # total number that this process embeds
    rate: float  # images per second since the pass began
    seconds_left: float


OnProgress = Callable[[EmbeddingProgress], None]


Batch = Mapping[int, Vectors | str]
"""By an image's place: its embedding, or why it cannot be read."""


def _split_in_batches(images: Iterable[Any], size: int) -> Iterator[list[Any]]:
    remaining = iter(images)
    while batch := list(itertools.islice(remaining, size)):
        yield batch


class ImageEmbedder:
    """An embedder of images, with the collection that keeps its embeddings."""

    def __init__(
        self,
        computed: BatchEmbedder,
        collection: Collection,
        replace: bool = True,  # whether to replace a collection of other weights in the same folder
        workers: int | None = None,
        listener: OnProgress | None = None,
        class_levels: int | None = 1,  # how many sub-folders of an image name its class; None: all
    ) -> None:
        self.computed = computed
        self.collection = collection
        self.replace = replace
        self._workers = workers
        self.listener = listener
        self.class_levels = class_levels
        self.channels = computed.channels
        self.device = computed.device

    # Single images

    @torch.no_grad()
    def embed(self, images: Images, batch_size: int = 256, current: Transaction | None = None) -> Tensor:
        """Embeddings of single images, ``[N, D]``; see :meth:`TrainedRun.embed`.

        Files are looked up in the collection first, within the transaction ``current`` if it is given. At most
        ``batch_size`` other images are held at a time.
        """
        batches = []
        for batch in _split_in_batches(as_images(images), batch_size):
            inputs: list[Path | Tensor] = []
            for image in batch:
                if isinstance(image, (str, os.PathLike)):
                    inputs.append(Path(image))
                else:
                    inputs.append(self.computed.prepared(image))
            batches.append(self._embed_batch(inputs, current))
        if not batches:
            raise DataError("no images to embed; wanted one or more")
        rows = torch.cat(batches)
        bad = (~rows.isfinite().all(1)).nonzero().flatten().tolist()
        if bad:
            raise self.computed.not_finite(len(bad), len(rows), f"number {bad[0]}")
        return rows

    def _embed_batch(self, images: Sequence[Path | Tensor], current: Transaction | None) -> Tensor:
        """Embeddings of a batch: from the collection, from cached features, or new.

        An image's key is the path of its file, or its place in the batch.
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
        known |= self.computed.from_features(missing_files)

        inputs: dict[bytes | int, Tensor] = {}  # of the network
        for key, image in missing.items():
            if key not in known:
                inputs[key] = image if isinstance(image, Tensor) else self.computed.prepared(image)
        if inputs:
            rows = self.computed.forward(joined(list(inputs.values())))
            known |= zip(inputs, rows, strict=True)

        new: dict[bytes, FileStat] = {}
        for key in missing:
            if isinstance(key, bytes) and known[key].isfinite().all():
                new[key] = stats[key]
        self._keep(new, known)
        return torch.stack([known[key].to(self.device) for key in keys])

    def _looked_up(self, stats: Mapping[bytes, FileStat], current: Transaction | None) -> dict[bytes | int, Tensor]:
        """The collection's embeddings of files; a warning if it is damaged or belongs to another network."""
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
        """Store new single files, if there are enough; a collection of another network stays unchanged."""
        if len(new) < SEVERAL:
            return
        try:
            if not self.collection.exists:
                self.collection.create(replace=False)
            vectors = torch.stack([rows[key] for key in new]).cpu().numpy()
            self.collection.append(list(new), list(new.values()), vectors)
        except (UnwritableError, DataError) as error:
            warnings.warn(f"embeddings could not be kept: {error}", StoreWarning, stacklevel=6)

    # Files

    @property
    def identity(self) -> str:
        """Digest of weights, preprocessing and precision."""
        return self.collection.identity

    @property
    def by(self) -> By:
        """``"embeddings"``, or ``"features"``."""
        return self.collection.by

    @property
    def size(self) -> int:
        """The length of an embedding."""
        return self.collection.size

    def class_namer(self, paths: Iterable[str]) -> Callable[[str], str]:
        """A function from an image's path to its class, for a folder with these paths."""
        return ClassFolders.of_paths(paths, self.class_levels).class_of

    def warn_of_skipped(self, skipped: Mapping[str, str]) -> None:
        """Warn of skipped files, once for each kind of reason; reasons begin with the file's path."""
        kinds: dict[str, list[str]] = {}
        for name, why in skipped.items():
            kind = why.partition(name)[2].partition(" (")[0]
            kinds.setdefault(kind, []).append(why)
        for reasons in kinds.values():
            many = f"{len(reasons)} files, the first " if len(reasons) > 1 else ""
            warnings.warn(f"skipped {many}{reasons[0]}", SkippedImage, stacklevel=4)

    def embed_files(
        self, files: Sequence[Any], batch_size: int = READ, workers: int | None = None, with_progress: bool = True
    ) -> Iterator[list[Vectors | str]]:
        """Embed paths or open files in batches; yield the embedding of each, or why it is unreadable.

        ``with_progress`` is for the files of a whole pass.
        """
        for batch in self.batches_of(files, batch_size, workers=workers, with_progress=with_progress):
            bad = []
            for place, row in batch.items():
                if not isinstance(row, str) and not np.isfinite(row).all():
                    bad.append(place)
            if bad:
                raise self.computed.not_finite(len(bad), len(batch), str(files[min(bad)]))
            yield [batch[place] for place in sorted(batch)]

    def batches_of(
        self,
        files: Sequence[Any],
        size: int,
        stats: Sequence[FileStat] = (),
        workers: int | None = None,
        with_progress: bool = True,
    ) -> Iterator[Batch]:
        """Embed files in batches, and report progress to the listener.

        With ``stats``, sizes and times from before the files are read, features of a frozen trunk are cached.
        """
        if workers is None:
            workers = self._workers
        if workers is None:
            workers = default_workers(len(files))
        begun = time.perf_counter()
        done = 0
        transform = self.computed.transform
        for images, read, bad in read_batches(files, self.channels, transform, size, workers, self.device):
            batch: dict[int, Vectors | str] = dict(bad)
            if read:
                stats_by_file = {}
                if stats:
                    stats_by_file = {files[place]: stats[place] for place in read}
                rows = self.computed.forward(images, stats_by_file).cpu().numpy()
                batch |= zip(read, rows, strict=True)
            done += len(batch)
            if with_progress and self.listener is not None:
                rate = done / max(time.perf_counter() - begun, 1e-9)
                seconds_left = (len(files) - done) / rate
                self.listener(EmbeddingProgress(done, len(files), rate, seconds_left))
            yield batch


def _key_and_stat(file: Path) -> tuple[bytes, FileStat]:
    """A file's path in its resolved folder, its size and time; DataError if it is missing."""
    size_and_mtime = file_stat(file)
    if size_and_mtime is None:
        raise DataError(f"{file}: no such file")
    path = os.path.join(os.path.realpath(file.parent), file.name)
    return path_bytes(path), size_and_mtime
