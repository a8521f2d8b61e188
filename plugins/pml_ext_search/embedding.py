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

from pml_ext.distributed import Precision, autocast, check_precision
from pml_ext.errors import ConfigError, DataError, UnwritableError, shortened
from pml_ext_train.data import Steps
from pml_ext_train.files import FileStat, file_stat, path_bytes
from pml_ext_train.networks import By, Network, Preprocessing, use_channels_last
from pml_ext_train.retrieval import Vectors
from pml_ext_train.training import FeatureCache

from .class_folders import ClassFolders
from .collection import LAYOUT, Collection
from .problems import StoreWarning
from .reading import Images, as_images, as_tensor, default_workers, read_batches
from .transaction import Transaction

READ = 64  # images per batch of a reading worker
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
        network: Callable[[], Network],  # called when an image is embedded that the collection does not have
        preprocessing: Preprocessing,
        size: int,  # of an embedding
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
        self.preprocessing = preprocessing
        self.run = run
        self._load_network = network
        self.device = device
        self.replace = replace
        self._workers = workers
        self.listener = listener
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
        self.collection = Collection(place, run, identity, size, by)
        self._memory_format = torch.contiguous_format  # of images
        self._frozen = frozen and self.precision == "float32"

    @functools.cached_property
    def network(self) -> Network:
        """The network, loaded on first use; on a CPU, it decides the format of images."""
        network = self._load_network()
        if self.device.type == "cpu":
            self._memory_format = use_channels_last(network, self.channels, self.preprocessing.image_size)
        return network

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

    @property
    def caches_features(self) -> bool:
        """Whether the features of files are cached and shared by runs, since the trunk is frozen."""
        return self._features is not None

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
            raise self.not_finite(len(bad), len(rows), f"number {bad[0]}")
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
        known |= self.from_features(missing_files)

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

    # Files

    @property
    def identity(self) -> str:
        """A digest of weights, preprocessing and precision."""
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
        """Return a function from the path of an image to its class, for a folder that has these paths."""
        return ClassFolders.of_paths(paths, self.class_levels).class_of

    def warn_of_skipped(self, skipped: Mapping[str, str]) -> None:
        """Warn of files that were left out, once for each kind of reason; a reason begins with the file's path."""
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
        """Embed files (paths or open files) in batches; yield embeddings, or why a file is unreadable.

        ``with_progress`` is for files that are all of a pass, not some of more.
        """
        for batch in self.batches_of(files, batch_size, workers=workers, with_progress=with_progress):
            bad = []
            for place, row in batch.items():
                if not isinstance(row, str) and not np.isfinite(row).all():
                    bad.append(place)
            if bad:
                raise self.not_finite(len(bad), len(batch), str(files[min(bad)]))
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
            if with_progress and self.listener is not None:
                rate = done / max(time.perf_counter() - begun, 1e-9)
                seconds_left = (len(files) - done) / rate
                self.listener(Progress(done, len(files), rate, seconds_left))
            yield batch

    # The network

    def features_of(self, files: Sequence[Path]) -> Tensor:
        """Return the trunk's features of files ``[N, F]``, cached or computed; DataError for a bad file."""
        cached: dict[int, Vectors] = {}
        with self._features_may_fail():
            if self._features is not None:
                cached = self._features.of_files(list(files))
        missing = [place for place in range(len(files)) if place not in cached]
        rows = torch.empty(len(files), self.network.features, device=self.device)
        for place, row in cached.items():
            rows[place] = torch.from_numpy(np.array(row))
        for batch in _split_in_batches(missing, READ):
            images = torch.stack([self._image(files[place]) for place in batch])
            images = images.to(self.device, memory_format=self._memory_format)
            with torch.no_grad(), autocast(self.device, self.precision):
                rows[batch] = self.network.trunk(images).float()
        return rows

    def _image(self, image: Any) -> Tensor:
        return self.transform(as_tensor(image, self.channels, self.transform.smallest))  # type: ignore[no-any-return]

    @torch.no_grad()
    def _forward(self, images: Tensor, files: Mapping[Path, FileStat] | None = None) -> Tensor:
        """Return L2-normalized embeddings, ``[B, D]``, float32; cache the features of files if the trunk is frozen."""
        network = self.network
        images = images.to(self.device, memory_format=self._memory_format)
        with autocast(self.device, self.precision):
            if self._features is None or not files:
                embeddings: Tensor = network(images)
            else:
                features = network.trunk(images)
                with self._features_may_fail():
                    self._features.keep([*files], [*files.values()], features)
                embeddings = network.embedder(features)
        return nn.functional.normalize(embeddings.float())

    @torch.no_grad()
    def from_features(self, files: Mapping[Any, Path]) -> dict[Any, Tensor]:
        """Return the embeddings of files whose features are cached; none without a frozen trunk."""
        features: dict[int, Vectors] = {}
        with self._features_may_fail():
            if files and self._features is not None:
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

    def not_finite(self, bad: int, images: int, first: str) -> DataError:
        """Return the error of a network that gives NaN or infinity for some images, ``first`` before the others."""
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
