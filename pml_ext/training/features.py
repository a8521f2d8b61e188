"""Features of a frozen trunk: computed once for each image, and kept in a collection that runs share.

A collection belongs to one trunk with its weights, one preprocessing and one augmentation, whose digest is the name of
its folder, ``features/DIGEST`` in the user's cache. A feature belongs to a file, with its size and time of change, or
to the pixels of an image in memory; to its box; and to a view, each of which is augmented by random numbers of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pml_ext_search.collection import MISSING, Collection, FileStat, Vectors, file_stat, path_bytes

from ..data import LabeledImages, cache_folder
from ..distributed import from_rank_0, from_ranks, num_processes, rank
from ..errors import DataError
from .batches import Batches, embed_batches, preserved_modes

_PLAIN = b"\0\0" + b"0"  # of a whole image, not augmented; see _keys() and the view in FeatureCache.of()


class Features:
    """Features of a split, ``[N, F]``, float32, mapped from a file: indexing reads rows."""

    def __init__(self, vectors: Tensor, numbers: Tensor) -> None:
        self._vectors, self._numbers = vectors, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, rows: Any) -> Tensor:
        return self._vectors[self._numbers[rows]]


class FeatureCache:
    """The features ``[F]`` of images under a frozen trunk, on the disk.

    ``about`` is all else that features depend on, as JSON has it. A process that is killed loses the features of one
    batch. ``tell`` is called with a line before images go through the trunk.
    """

    def __init__(
        self,
        trunk: nn.Module,
        size: int,
        about: Any,
        device: torch.device,
        batch_size: int,
        workers: int = 0,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._trunk, self._device, self._tell = trunk, device, tell
        self._batch_size, self._workers = batch_size, workers
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        for name, tensor in trunk.state_dict().items():
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        identity = digest.hexdigest()[:16]
        place = cache_folder("features") / identity
        self.collection = Collection(place, place, identity, size)

    def of(self, images: LabeledImages, view: int = 0) -> Features:
        """Return the features of transformed images; compute those that the collection lacks.

        Several processes compute a part each; another run waits and takes what the first has computed. DataError for
        a feature that is NaN or infinite.
        """
        keys = [key + b"\0%d" % view for key in _keys(images)]
        files = dict(zip(keys, map(_stat_of, images.paths or itertools.repeat(None)), strict=False))
        collection = self.collection
        with collection.locked(replace=True) if rank() == 0 else contextlib.nullcontext():
            if rank() == 0:
                collection.compact()
            found = from_rank_0(collection.find(files)[0] if rank() == 0 else None)
            first = {key: index for index, key in reversed([*enumerate(keys)])}  # equal images share one feature vector
            missing = sorted(first[key] for key in files if key not in found)
            own = missing[len(missing) * rank() // num_processes() : len(missing) * (rank() + 1) // num_processes()]
            if missing and rank() == 0:
                self._tell(f"computing features of {len(missing):,} images by the frozen trunk")
            for part in from_ranks(self._computed(images, own, keys, files)):
                found |= part
            with collection.transaction() as current:
                vectors = torch.from_numpy(current.vectors)
        return Features(vectors, torch.tensor([found[key] for key in keys]))

    def of_files(self, paths: Sequence[Path]) -> dict[int, Vectors]:
        """Return the features of the unchanged files in the collection, by index in the list."""
        if not self.collection.exists:
            return {}
        keys = [_file_key(path) + _PLAIN for path in paths]
        found, _, vectors = self.collection.find({key: _stat_of(path) for key, path in zip(keys, paths, strict=True)})
        return {place: vectors[found[key]] for place, key in enumerate(keys) if key in found}

    def keep(self, paths: Sequence[Path], features: Tensor) -> None:
        """Write the features of files, ``[N, F]``, without those that are NaN or infinite."""
        rows = features.float().cpu().numpy()
        finite = np.flatnonzero(np.isfinite(rows).all(1)).tolist()
        if finite:
            if not self.collection.exists:
                self.collection.create(replace=False)
            files = [paths[place] for place in finite]
            self.collection.append([_file_key(path) + _PLAIN for path in files], [*map(_stat_of, files)], rows[finite])

    def _computed(
        self, images: LabeledImages, indices: Sequence[int], keys: Sequence[bytes], files: dict[bytes, FileStat]
    ) -> dict[bytes, int]:
        """Compute features and write them batch by batch; return the numbers of their vectors."""
        numbers: dict[bytes, int] = {}
        if not indices:
            return numbers
        batches = [indices[start : start + self._batch_size] for start in range(0, len(indices), self._batch_size)]
        seeds = {index: int.from_bytes(hashlib.sha256(keys[index]).digest()[:7]) for index in indices}
        seeded = [[(index, seeds[index]) for index in batch] for batch in batches]
        embedding = embed_batches(
            self._trunk, nn.Identity(), images, self._device, workers=self._workers, batches=seeded
        )
        for batch, (_, features, _, _) in zip(batches, embedding, strict=True):
            rows = features.float().cpu().numpy()
            bad = np.flatnonzero(~np.isfinite(rows).all(1))
            if len(bad):
                where = images.images[batch[bad[0]]] if images.paths else f"image {batch[bad[0]]}"
                raise DataError(f"model.trunk gives NaN or infinity for {len(bad)} images, {where} first")
            own = [keys[index] for index in batch]
            numbers |= self.collection.append(own, [files[key] for key in own], rows)
        return numbers


def _keys(images: LabeledImages) -> list[bytes]:
    """Return the key of each image: its file, or the digest of its pixels, and its box."""
    if images.paths is None:
        pixels: Any = images.images
        keys = [hashlib.sha256(image.contiguous().numpy().data).digest() for image in pixels]
    else:
        keys = [_file_key(path) for path in images.paths]
    boxes = [b""] * len(keys) if images.boxes is None else [repr(box.tolist()).encode() for box in images.boxes]
    return [key + b"\0" + box for key, box in zip(keys, boxes, strict=True)]


def _file_key(path: str | Path) -> bytes:
    return path_bytes(os.path.realpath(path))


def _stat_of(path: Path | None) -> FileStat:
    """Return size and time of a file, which is embedded, or refused, if it is missing; of pixels always the same."""
    return (0, 0) if path is None else file_stat(Path(path)) or MISSING


@torch.no_grad()
def with_features(
    passing: Iterator[tuple[Tensor, Tensor, Tensor, Tensor]], features: Features, embedder: nn.Module
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Yield the batches of :func:`~.batches.embed_batches` with cached features, and their embeddings."""
    start = 0
    with preserved_modes(embedder):
        for images, _, _, labels in passing:
            embedder.eval()
            rows = features[start : start + len(labels)].to(labels.device)
            start += len(labels)
            yield images, rows, embedder(rows), labels


class FeatureReader:
    """Reader of batches of features instead of images; see :class:`~.batches.BatchReader`."""

    def __init__(self, views: Sequence[Features], labels: NDArray[np.int64], device: torch.device) -> None:
        self.views, self.labels, self._device = views, torch.as_tensor(labels), device

    def read(self, batches: Batches, labels: NDArray[np.int64] | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield features ``[B, F]`` and labels ``[B]``; an image's view follows from the seed of its augmentation."""
        own = self.labels if labels is None else torch.from_numpy(labels)
        torch.empty((), dtype=torch.int64).random_()  # as a reader of images does: random numbers stay the same
        for batch in batches:
            indices, seeds = torch.tensor(batch, dtype=torch.int64).T
            features = self.views[0][indices]
            for number, view in enumerate(self.views[1:], start=1):
                seen = seeds % len(self.views) == number
                features[seen] = view[indices[seen]]
            yield features.to(self._device), own[indices].to(self._device)

    naming_images = staticmethod(contextlib.nullcontext)  # no workers read images

    def close(self) -> None:
        """Do nothing."""
