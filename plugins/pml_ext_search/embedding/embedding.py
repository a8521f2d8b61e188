"""Embedding of images and folders, with a collection as a cache."""

import contextlib
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
from pml_ext_train.data import AS_KEPT, FolderRules
from pml_ext_train.files import FileStat, file_stat, path_bytes
from pml_ext_train.networks import By
from pml_ext_train.retrieval import Vectors

from ..collection.class_folders import ClassFolders
from ..collection.collection import Collection
from ..collection.database import Transaction
from ..collection.problems import StoreWarning
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
        typed: FolderRules = AS_KEPT,  # which files of folders are read; by default as in the index,
        of_run: FolderRules = AS_KEPT,  # or as in the run
    ) -> None:
        self.computed = computed
        self.collection = collection
        self.replace = replace
        self._workers = workers
        self.listener = listener
        self.class_levels = class_levels
        self.typed = typed
        self._of_run = of_run
        self.channels = computed.channels
        self.device = computed.device

    # Single images

    @torch.no_grad()
    def embed(self, images: Images, batch_size: int = 256, current: Transaction | None = None) -> Tensor:
        """Embeddings of single images, ``[N, D]``; ``batch_size`` of them are held at a time.

        Files are looked up in the collection first, within the transaction ``current`` if given.
        """
        batches = []
        for batch in _split_in_batches(as_images(images), batch_size):
            inputs = [
                Path(image) if isinstance(image, (str, os.PathLike)) else self.computed.prepared(image)
                for image in batch
            ]
            batches.append(self._embed_batch(inputs, current))
        if not batches:
            raise DataError("no images to embed; wanted one or more")
        rows = torch.cat(batches)
        bad = (~rows.isfinite().all(1)).nonzero().flatten().tolist()
        if bad:
            raise self.computed.not_finite(len(bad), len(rows), f"number {bad[0]}")
        return rows

    def _embed_batch(self, images: Sequence[Path | Tensor], current: Transaction | None) -> Tensor:
        """An image's key is the path of its file, or its place in the batch."""
        stats: dict[bytes, FileStat] = {}
        keys: list[bytes | int] = []
        for place, image in enumerate(images):
            if isinstance(image, Path):
                path, stat = _key_and_stat(image)
                stats[path] = stat
                keys.append(path)
            else:
                keys.append(place)
        known: dict[bytes | int, Tensor] = {}
        if stats and self.collection.exists:
            known |= self._looked_up(stats, current)

        missing = {key: image for key, image in zip(keys, images, strict=True) if key not in known}
        files = {key: image for key, image in missing.items() if isinstance(image, Path)}
        known |= self.computed.from_features(files)

        inputs = {key: image for key, image in missing.items() if key not in known}
        if inputs:
            tensors = [
                image if isinstance(image, Tensor) else self.computed.prepared(image) for image in inputs.values()
            ]
            rows = self.computed.forward(joined(tensors))
            known |= zip(inputs, rows, strict=True)

        new = {path: stat for path, stat in stats.items() if path in files and known[path].isfinite().all()}
        self._keep(new, known)
        return torch.stack([known[key].to(self.device) for key in keys])

    def _looked_up(self, stats: Mapping[bytes, FileStat], current: Transaction | None) -> dict[bytes | int, Tensor]:
        """The collection's embeddings of files; a warning if it is damaged or another network's."""
        opened = self.collection.transaction() if current is None else contextlib.nullcontext(current)
        try:
            with opened as transaction:
                found, _ = self.collection.find_within(transaction, stats)
                return {path: torch.from_numpy(transaction.vectors[number].copy()) for path, number in found.items()}
        except DataError as error:
            warnings.warn(f"embeddings are computed again: {error}", StoreWarning, stacklevel=7)
            return {}

    def _keep(self, new: Mapping[bytes, FileStat], rows: Mapping[bytes | int, Tensor]) -> None:
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
    def rules(self) -> FolderRules:
        """Which files of a folder are read: as typed, else as in the index, else as in the run."""
        return self.typed.over(self.collection.rules_of_index()).over(self._of_run)

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
        """Embed paths or open files in batches; yield each embedding, or why it is unreadable."""
        for batch in self.batches_of(files, batch_size, workers=workers, with_progress=with_progress):
            rows = {place: row for place, row in batch.items() if not isinstance(row, str)}
            bad = [place for place, row in rows.items() if not np.isfinite(row).all()]
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
        """Embed files in batches, and report progress.

        With ``stats``, from before the files are read, features of a frozen trunk are cached.
        """
        if workers is None:
            workers = self._workers
        if workers is None:
            workers = default_workers(len(files))
        begun = time.perf_counter()
        done = 0
        steps = self.computed.transform
        for images, read, bad in read_batches(files, self.channels, steps, size, workers, self.device):
            batch: dict[int, Vectors | str] = dict(bad)
            if read:
                stats_by_file = {files[place]: stats[place] for place in read} if stats else {}
                rows = self.computed.forward(images, stats_by_file).cpu().numpy()
                batch |= zip(read, rows, strict=True)
            done += len(batch)
            if with_progress and self.listener is not None:
                rate = done / max(time.perf_counter() - begun, 1e-9)
                seconds_left = (len(files) - done) / rate
                self.listener(EmbeddingProgress(done, len(files), rate, seconds_left))
            yield batch


def _key_and_stat(file: Path) -> tuple[bytes, FileStat]:
    """A file's path without links, its size and time; DataError if it is missing."""
    size_and_mtime = file_stat(file)
    if size_and_mtime is None:
        raise DataError(f"{file}: no such file")
    path = os.path.join(os.path.realpath(file.parent), file.name)
    return path_bytes(path), size_and_mtime
