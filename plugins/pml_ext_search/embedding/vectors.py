"""Embedding of vectors by a trained head, with a collection."""

import contextlib
import dataclasses
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pml_ext.errors import DataError
from pml_ext_train.data import VectorFile, read_vectors
from pml_ext_train.files import check_writable
from pml_ext_train.results import LoadedRun
from pml_ext_train.retrieval import Numbers

from ..collection.collection import Collection, identity_of
from ..collection.embedded import Embedded
from ..collection.state import Image

_BLOCK = 1 << 15  # vectors that go through the head together


class VectorEmbedder:
    """A trained head, and the collection of its embeddings."""

    def __init__(self, run: LoadedRun, place: Path, replace: bool = True, cut: int | None = None) -> None:
        self.run = run.folder
        self.network = run.network
        self.device = run.device
        self.replace = replace  # whether to replace a collection of other weights in the same folder
        about: list[object] = [run.identity, self.network.preprocessing.model_dump()]
        if cut is not None:
            about.append(cut)
        self.size = cut or self.network.embedding_size
        self.collection = Collection(place, run.folder, identity_of(*about), self.size, source="FILE", cut=cut)

    def read(self, path: Path) -> VectorFile:
        """Read a file of vectors; DataError if their length is not the head's."""
        file = read_vectors(path)
        self._check_size(file.embeddings.shape[1], str(path))
        return file

    @torch.no_grad()
    def embed(self, vectors: Any, ids: NDArray[np.str_] | None = None) -> Tensor:
        """Embeddings ``[N, E]`` of length 1 of vectors ``[N, D]`` or ``[D]``.

        DataError names the first vector with a NaN or infinite embedding.
        """
        rows = torch.as_tensor(vectors, dtype=torch.float32)
        if rows.ndim == 1:
            rows = rows[None]
        if rows.ndim != 2:
            raise DataError(f"vectors have the shape {list(rows.shape)}; wanted [N, D]")
        self._check_size(rows.shape[1], "the vectors")
        embeddings = torch.empty(len(rows), self.size, device=self.device)
        for start in range(0, len(rows), _BLOCK):
            block = self.network(rows[start : start + _BLOCK].to(self.device))
            embeddings[start : start + _BLOCK] = nn.functional.normalize(block.float()[:, : self.size])
        bad = (~embeddings.isfinite().all(1)).nonzero().flatten().tolist()
        if bad:
            first = f"number {bad[0]}" if ids is None else ids[bad[0]]
            raise DataError(
                f"{self.run}: its head gives NaN or infinity for {len(bad)} of {len(rows)} vectors, {first} first; "
                "make their numbers smaller, or train it again with a lower optimizer.lr"
            )
        return embeddings

    def _check_size(self, size: int, place: str) -> None:
        wanted = self.network.features
        if size != wanted:
            raise DataError(f"{place}: found vectors of {size} numbers; {self.run} was trained on {wanted}")

    def embedded(self, path: Path) -> Embedded:
        """All vectors of a file with their embeddings, without the collection."""
        file = self.read(path)
        return self._embedded(file, _all_classes((), file), self.embed(file.embeddings, file.ids), _stats_of(file))

    @contextlib.contextmanager
    def file_pass(self, path: Path) -> Iterator[Embedded]:
        """Embed new and changed vectors of a file, and lock the collection while the block runs."""
        file = self.read(path)
        check_writable("--store", self.collection.place)
        with self.collection.locked(self.replace):
            known, classes = self._indexed_before(path)
            classes = _all_classes(classes, file)
            stats = _stats_of(file)
            numbers = _known_numbers(file, stats, known)
            missing = np.flatnonzero(numbers < 0)
            for start in range(0, len(missing), _BLOCK):
                rows = missing[start : start + _BLOCK]
                embeddings = self.embed(file.embeddings[rows], file.ids[rows]).cpu().numpy()
                numbers[rows] = self.collection.append_vectors(embeddings) + np.arange(len(rows))
            vectors = torch.from_numpy(self.collection.vectors_of(numbers)).to(self.device)
            embedded = self._embedded(file, classes, vectors, stats)
            yield dataclasses.replace(embedded, numbers=numbers, new=len(missing))
            self.collection.compact()

    def _indexed_before(self, path: Path) -> tuple[dict[str, Image], tuple[str, ...]]:
        with self.collection.transaction() as current:
            index = current.state.index
            if index is None or index.classes is None or index.folder != str(path.resolve()):
                return {}, ()
            return {image.path: image for image, fits in current.images() if fits}, index.classes

    def _embedded(self, file: VectorFile, classes: tuple[str, ...], embeddings: Tensor, stats: Numbers) -> Embedded:
        return Embedded(
            folder=file.path,
            paths=file.ids.tolist(),
            embeddings=embeddings,
            stats=stats,
            class_numbers=_class_numbers_of(file, classes),
            class_names=classes,
        )


def _all_classes(before: tuple[str, ...], file: VectorFile) -> tuple[str, ...]:
    """Class names: an index's keep their numbers, and new ones follow."""
    of_file = file.class_names if file.labels is not None else [""]
    return tuple(dict.fromkeys([*before, *of_file]))


def _class_numbers_of(file: VectorFile, classes: tuple[str, ...]) -> Numbers:
    numbers = {name: number for number, name in enumerate(classes)}
    if file.labels is None:
        return np.full(len(file.embeddings), numbers[""], dtype=np.int64)
    of_file = np.array([numbers[name] for name in file.class_names], dtype=np.int64)
    return of_file[file.labels]


def _stats_of(file: VectorFile) -> Numbers:
    """Bytes and CRC-32 of each vector."""
    count, length = file.embeddings.shape
    stats = np.full((count, 2), 4 * length, dtype=np.int64)
    stats[:, 1] = [zlib.crc32(vector) for vector in np.ascontiguousarray(file.embeddings)]
    return stats


def _known_numbers(file: VectorFile, stats: Numbers, known: dict[str, Image]) -> Numbers:
    """The number of each unchanged vector in the collection, ``[N]``; -1 for others."""
    numbers = np.full(len(stats), -1, dtype=np.int64)
    for row, (id, crc) in enumerate(zip(file.ids.tolist(), stats[:, 1].tolist(), strict=True)):
        image = known.get(id)
        if image is not None and image.fingerprint == crc:
            numbers[row] = image.vector
    return numbers


def changes_of(file: VectorFile, images: list[Image], classes: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Ids of indexed vectors that are gone from a file, or have changed in it."""
    class_numbers = _class_numbers_of(file, _all_classes(classes, file))
    rows = np.column_stack([class_numbers, _stats_of(file)]).tolist()
    now = dict(zip(file.ids.tolist(), rows, strict=True))
    gone = []
    changed = []
    for image in images:
        if image.path not in now:
            gone.append(image.path)
        elif now[image.path] != [image.class_number, *image.stat]:
            changed.append(image.path)
    return gone, changed
