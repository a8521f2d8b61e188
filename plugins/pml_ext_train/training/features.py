"""Features of a frozen trunk, or activations before a cut: computed once and shared by runs.

``features/DIGEST`` in the user's cache belongs to a trunk with its weights, preprocessing and augmentation. Each
feature belongs to a file with size and time, or to pixels; to a box; and to a view with its own random numbers.
"""

import atexit
import contextlib
import functools
import itertools
import math
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pml_ext.distributed import from_rank_0, num_processes, rank
from pml_ext.distributed.processes import gather_objects, share_of
from pml_ext.errors import ConfigError, DataError, UnwritableError, one_line

from ..data import LabeledImages, cache_folder
from ..files import FileStat, locked_folder
from ..networks import Network
from .activations import DTYPES, Precision, TrunkCut
from .batches import embed_batches
from .feature_store import FeatureStore, Vectors, file_bytes, key_of, keys_of, seed_of, stat_of, trunk_digest
from .run_data import RunData

_PROBE = b"\0" * 4096  # written to see whether a folder's disk is full


class Features:
    """Features ``[N, F]`` of a split, or activations ``[N, *shape]``, mapped from a file."""

    def __init__(self, vectors: Tensor, numbers: Tensor, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)
        self._vectors = vectors
        self._numbers = numbers

    @classmethod
    def of_vectors(cls, vectors: Tensor) -> "Features":
        """Use a data set's vectors ``[N, F]`` as features."""
        return cls(vectors, torch.arange(len(vectors)), vectors.shape[1:])

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, rows: Any) -> Tensor:
        vectors = self._vectors[self._numbers[rows]]
        return vectors.view(*vectors.shape[:-1], *self.shape)


@dataclass(frozen=True)
class Remainder:
    """The rest of a trunk after a cut, and the cache of its features."""

    module: nn.Module
    cache: "FeatureCache"


class FeatureCache:
    """Features or activations of images under a frozen trunk, on disk.

    ``about`` is everything else that they depend on, as JSON. A killed process loses at most one batch. ``tell``
    receives a line before images pass through the trunk.
    """

    def __init__(
        self,
        trunk: nn.Module,
        shape: int | Sequence[int],
        about: Any,
        device: torch.device,
        batch_size: int,
        workers: int = 0,
        tell: Callable[[str], None] = lambda text: None,
        dtype: type[np.floating[Any]] = np.float32,
    ) -> None:
        self._trunk = trunk
        self._shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self._device = device
        self._tell = tell
        self._batch_size = batch_size
        self._workers = workers
        self._dtype = dtype
        self.store = self._store_in(_writable_folder(trunk_digest(trunk, about)))

    def _store_in(self, folder: Path) -> FeatureStore:
        return FeatureStore(folder, math.prod(self._shape), self._dtype)

    def of(self, images: LabeledImages, view: int = 0, remainder: Remainder | None = None) -> Features:
        """Return the features of transformed images; compute those that the store lacks.

        Results also pass through a ``remainder``. Each process computes a part; other runs wait and reuse it. If the
        store cannot be written, a single process warns and uses a temporary one. Raises DataError for NaN or infinity.
        """
        self._share_store()
        keys = keys_of(images, view)
        try:
            return self._features_of(images, keys, remainder)
        except UnwritableError as error:
            if num_processes() > 1:  # the others wait for this process, or have features in the store
                raise
            temporary = _temporary_folder(self.store.folder.name)
            if self.store.folder == temporary:
                raise
            _warn_not_kept(error)
            self.store = self._store_in(temporary)
            return self._features_of(images, keys)

    def _share_store(self) -> None:
        """Use rank 0's store in all processes; ConfigError if one cannot see it."""
        if num_processes() == 1:
            return
        with contextlib.ExitStack() as stack:
            name = None
            if rank() == 0:
                file = stack.enter_context(tempfile.NamedTemporaryFile(dir=self.store.folder, prefix=".seen-"))
                name = file.name
            seen = Path(from_rank_0(name))
            seen_by_rank = gather_objects(seen.exists())
        if not all(seen_by_rank):
            raise ConfigError(
                f"model.freeze: process {seen_by_rank.index(False)} cannot see {seen.parent}, where process "
                "0 stores features. Set XDG_CACHE_HOME to a folder that all processes share"
            )
        self.store = self._store_in(seen.parent)

    def _features_of(
        self, images: LabeledImages, keys: Sequence[bytes], remainder: Remainder | None = None
    ) -> Features:
        with locked_folder(self.store.folder) if rank() == 0 else contextlib.nullcontext():
            numbers = self._numbers(images, keys, remainder)
            vectors = torch.from_numpy(self.store.vectors())
        return Features(vectors, torch.tensor([numbers[key] for key in keys]), self._shape)

    def _numbers(self, images: LabeledImages, keys: Sequence[bytes], remainder: Remainder | None) -> dict[bytes, int]:
        """Return the row of each key; each process computes a part of the missing ones."""
        paths = images.paths or itertools.repeat(None)
        stats = dict(zip(keys, map(stat_of, paths), strict=False))
        found: dict[bytes, int] = from_rank_0(self._found(stats) if rank() == 0 else None)
        first_places: dict[bytes, int] = {}  # equal images share a feature
        for place, key in enumerate(keys):
            first_places.setdefault(key, place)
        missing = [place for key, place in first_places.items() if key not in found]
        if missing and rank() == 0:
            self._tell(f"computing features of {len(missing):,} images with the frozen trunk")
        mine = missing[share_of(len(missing), rank(), num_processes())]
        for part in gather_objects(self._computed(images, mine, keys, stats, remainder)):
            found |= part
        return found

    def _found(self, stats: dict[bytes, FileStat]) -> dict[bytes, int]:
        try:
            rows, damaged = self.store.find(stats)
        except DataError as error:
            warnings.warn(f"features are computed again: {error}", UserWarning, stacklevel=2)
            self.store.clear()
            return {}
        if damaged:
            warnings.warn(f"{self.store.folder}: features of {damaged} images were damaged", UserWarning, stacklevel=2)
        return rows

    def of_files(self, paths: Sequence[Path]) -> dict[int, Vectors]:
        """Stored features of unchanged files, by index in the list."""
        keys = [key_of(file_bytes(path)) for path in paths]
        stats = {key: stat_of(path) for key, path in zip(keys, paths, strict=True)}
        found, _ = self.store.find(stats)
        vectors = self.store.vectors()
        return {place: vectors[found[key]] for place, key in enumerate(keys) if key in found}

    def keep(self, paths: Sequence[Path], stats: Sequence[FileStat], features: Tensor) -> None:
        """Write the finite features of files, ``[N, F]``, with ``stats`` from before they were read."""
        self.add([key_of(file_bytes(path)) for path in paths], stats, features)

    def add(self, keys: Sequence[bytes], stats: Sequence[FileStat], features: Tensor) -> None:
        """Write the finite features ``[B, F]`` of another pass."""
        rows = self._rows(features)
        finite = np.flatnonzero(np.isfinite(rows).all(1)).tolist()
        if finite:
            self.store.append([keys[place] for place in finite], [stats[place] for place in finite], rows[finite])

    def _rows(self, features: Tensor) -> Vectors:
        rows: Vectors = features.float().flatten(1).cpu().numpy()
        with np.errstate(over="ignore"):  # becomes infinite, which is an error
            return rows.astype(self.store.dtype, copy=False)

    def _computed(
        self,
        images: LabeledImages,
        indices: Sequence[int],
        keys: Sequence[bytes],
        files: dict[bytes, FileStat],
        remainder: Remainder | None,
    ) -> dict[bytes, int]:
        """Compute and write features batch by batch; return their rows."""
        numbers: dict[bytes, int] = {}
        if not indices:
            return numbers
        batches = [indices[start : start + self._batch_size] for start in range(0, len(indices), self._batch_size)]
        seeded = [[(index, seed_of(keys[index])) for index in batch] for batch in batches]
        rest = nn.Identity() if remainder is None else remainder.module
        embedding = embed_batches(self._trunk, rest, images, self._device, workers=self._workers, batches=seeded)
        for batch, each in zip(batches, embedding, strict=True):
            rows = self._rows(each.features)
            bad = np.flatnonzero(~np.isfinite(rows).all(1))
            if len(bad):
                where = images.images[batch[bad[0]]] if images.paths else f"image {batch[bad[0]]}"
                text = f"model.trunk gives NaN or infinity for {len(bad)} images, {where} first"
                if self.store.dtype == np.float16:
                    text += "; values above 65,504 do not fit: --set model.freeze.precision=float32"
                raise DataError(text)
            keys_of_batch = [keys[index] for index in batch]
            files_of_batch = [files[key] for key in keys_of_batch]
            numbers |= self.store.append(keys_of_batch, files_of_batch, rows)
            if remainder is not None:
                with contextlib.suppress(UnwritableError):  # they are computed again when they are needed
                    remainder.cache.add(keys_of_batch, files_of_batch, each.embeddings)
        return numbers


class KeptFeatures:
    """Features of a run's splits, and activations before its cuts.

    ``new_cache(trunk, shape, about)`` returns a :class:`FeatureCache`.
    """

    def __init__(self, data: RunData, network: Network, new_cache: Callable[..., FeatureCache]) -> None:
        self._data = data
        self._network = network
        self._new_cache = new_cache
        self._features: dict[tuple[Any, ...], Features] = {}
        self._caches: dict[tuple[Any, ...], FeatureCache] = {}

    def of(
        self,
        split: str,
        view: int = 0,
        cut: TrunkCut | None = None,
        precision: Precision | None = None,
        remainder: Remainder | None = None,
    ) -> Features:
        """A split's features under the frozen trunk, or its activations before a cut.

        Views above 0 are augmented. Vectors are features already.
        """
        if self._data.has_vectors:
            return Features.of_vectors(self._data.images(split).vectors)
        if cut is not None and precision is None:
            precision = cut.table.precision
        key = (cut, split, view, precision)
        if key not in self._features:
            images = self._data.training_images if view else self._data.images(split)
            augmentation = repr(images.transform) if view else ""
            shared = (cut, precision, augmentation)
            if shared not in self._caches:
                self._caches[shared] = self._cache(*shared)
            self._features[key] = self._caches[shared].of(images, view, remainder)
        return self._features[key]

    def features_now(self, split: str) -> Features:
        """A split's features before the trunk trains; other runs share them."""
        return self._cache(None, None, "").of(self._data.images(split))

    def compute_both(self, cut: TrunkCut, split: str) -> None:
        """Compute a split's activations and, in a single process, its present features."""
        remainder = Remainder(cut.rest, self._cache(None, None, "")) if num_processes() == 1 else None
        self.of(split, cut=cut, remainder=remainder)

    def _cache(self, cut: TrunkCut | None, precision: Precision | None, augmentation: str) -> FeatureCache:
        about: list[Any] = [self._data.preprocessing.model_dump(), augmentation]
        if cut is None or precision is None:
            return self._new_cache(self._network.trunk, self._network.features, about)
        return self._new_cache(cut.stem, cut.shape, [*about, precision], dtype=DTYPES[precision])


def _writable_folder(name: str) -> Path:
    """A folder of the user's cache, or a temporary one with a warning."""
    try:
        folder = cache_folder("features") / name
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:  # permissions say nothing of a read-only or full disk
            file.write(_PROBE)
        return folder
    except OSError as error:  # UnwritableError is one
        _warn_not_kept(error)
        return _temporary_folder(name)


def _warn_not_kept(error: OSError) -> None:
    warnings.warn(
        f"features are not cached for other runs: {one_line(error)}; set XDG_CACHE_HOME to a writable folder",
        UserWarning,
        stacklevel=4,
    )


@functools.cache
def _temporary_folder(name: str) -> Path:
    """Return a folder that is deleted with this process."""
    parent = tempfile.TemporaryDirectory(prefix="pml-ext-features-")
    atexit.register(parent.cleanup)
    folder = Path(parent.name) / name
    folder.mkdir()
    return folder
