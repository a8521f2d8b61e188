"""The searchable index of a collection."""

import contextlib
import functools
import json
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pml_ext.errors import ConfigError, DataError, shortened, unknown
from pml_ext.evaluation import Search, nearest_of
from pml_ext_train.data import read_vectors
from pml_ext_train.files import composed, file_stat, is_inside, path_bytes
from pml_ext_train.retrieval import Changes, Numbers, Vectors

from ..collection.collection import Collection
from ..collection.database import Transaction
from ..collection.embedded import Embedded
from ..collection.problems import RetrievalWarning
from ..collection.state import Image, Index, in_shard
from ..embedding.vectors import changes_of
from .query import Answer, QueryOptions, answers_of
from .ranking import nearest_vectors, results_of, rows_of, with_exact_distances, within_radius

_PATHS = "SELECT path, vector FROM images"


class Gallery:
    """The searchable index of a collection.

    A query reads only what it is compared with, as files are memory-mapped. If another process replaces the index, the
    next query searches the new one.
    """

    def __init__(self, collection: Collection, device: torch.device, changes: Changes | None = None) -> None:
        self._collection = collection
        self._device = device
        self.changes = changes
        self.place = collection.place
        self.by = collection.by
        self.cut = collection.cut
        self.size = collection.size
        self._lock = threading.RLock()
        self._opened: tuple[str, int, int] | None = None  # the index that is open: network, collection and version

    @contextlib.contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Begin a transaction on a fixed version of the index; reopen a rewritten one."""
        with self._lock:
            if self._opened is None and not self._collection.exists:
                raise self._no_index()
            with self._collection.transaction() as current:
                version = (current.state.identity, current.state.made, current.state.version)
                if self._opened != version:
                    self._open(current)
                    self._opened = version
                yield current

    def _no_index(self) -> DataError:
        return DataError(f"{self.place}: no index; type: {self._collection.command()}")

    def _open(self, current: Transaction) -> None:
        state = current.state
        self._collection.check_identity(state)
        if state.index is None:
            raise self._no_index()
        if len(current.vectors) < state.vectors:
            why = f"{len(current.vectors):,} vectors, not the {state.vectors:,} that were written"
            raise self._collection.damaged(why, self.place / state.file)
        self._index = state.index
        self.folder = Path(state.index.folder)
        self.factory = state.index.factory
        self.again = self._collection.command()
        self.faiss = self._collection.read_faiss(state.index)
        self._numbers, vectors = self._vectors_of_index(current, state.index)
        self._vectors = torch.from_numpy(vectors).to(self._device)
        self.__dict__.pop("embedded", None)  # clears the cached property of the previous index

    def _vectors_of_index(self, current: Transaction, index: Index) -> tuple[Numbers, Vectors]:
        """Numbers and vectors of the indexed images; a view of the mapped file if contiguous."""
        if index.first is not None:
            end = index.first + index.images
            return np.arange(index.first, end), current.vectors[index.first : end]
        try:
            numbers = self._numbers_of(current)
            if len(numbers) != index.images:
                raise ValueError(len(numbers))
            return numbers, current.vectors[numbers]
        except (ValueError, TypeError, IndexError):
            raise self._collection.damaged("a row of the index has no vector") from None

    def __len__(self) -> int:
        return self._index.images

    @property
    def noun(self) -> str:
        """``"images"`` or ``"vectors"``."""
        return "images" if self._index.classes is None else "vectors"

    @functools.cached_property
    def embedded(self) -> Embedded:
        """Paths, vectors, sizes, times and ids of all images, read on first access."""
        with self.reading() as current:
            images = [self._checked(*row) for row in current.images("ORDER BY vector")]
            class_numbers = [] if self._index.classes is None else [image.class_number for image in images]
            return Embedded(
                folder=self.folder,
                paths=[image.path for image in images],
                embeddings=self._vectors,
                stats=np.array([image.stat for image in images], dtype=np.int64),
                ids=np.array([image.id for image in images], dtype=np.int64),
                class_numbers=np.array(class_numbers, dtype=np.int64),
                class_names=self._index.classes,
                class_folders=self._index.class_folders,
            )

    def check(self) -> tuple[list[str], list[str]]:
        """Verify every row, vector and faiss's file; return missing and changed images."""
        with self.reading() as current:
            problem = current.connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if problem != "ok":
                raise self._collection.damaged(problem)
            images = [self._checked(*row) for row in current.images()]
            if len(images) != len(self):
                raise self._collection.damaged(f"{len(images)} images, not the {len(self)} that were written")
            self._collection.read_faiss(self._index, thorough=True)
        if self._index.classes is not None:
            return changes_of(read_vectors(self.folder), images, self._index.classes)
        if not self.folder.is_dir():
            raise DataError(f"{self.folder}: no such folder")
        gone: list[str] = []
        changed: list[str] = []
        for image in images:
            shard = in_shard(image.path)
            is_packed = image.path != shard and (self.folder / shard).is_file()
            size_and_mtime = file_stat(self.folder / (shard if is_packed else image.path))
            if size_and_mtime is None:
                gone.append(image.path)
            elif not is_packed and size_and_mtime != image.stat:
                changed.append(image.path)
        return gone, changed

    def damaged(self) -> list[str]:
        """The files of the indexed folder that were not readable images."""
        root = path_bytes(str(self.folder)) + b"/"
        with self.reading() as current:
            paths = self._collection.damaged_paths(current, root)
        return [os.fsdecode(path[len(root) :]) for path in paths]

    # Rows

    def _numbers_of(self, current: Transaction, condition: str = "", *values: object) -> Numbers:
        """Vector numbers of indexed images; ``condition`` is SQL."""
        query = f"SELECT vector FROM images {condition} ORDER BY vector"
        rows = current.connection.execute(query, values)
        return np.fromiter((number for (number,) in rows), dtype=np.int64)

    def _checked(self, image: Image, fits: bool) -> Image:
        """The image; an error for a wrong checksum, or a path outside the folder."""
        path = image.path
        if not fits:
            raise self._collection.damaged("the checksum of an image does not fit")
        fits_index = bool(path) if self._index.classes is not None else is_inside(path)  # an id may be any text
        if not fits_index:
            raise self._collection.damaged(f"the image {shortened(path, 100)!r} is not in the folder that was indexed")
        return image

    def _image_of(self, current: Transaction, name: str) -> Image | None:
        """The indexed image of a file or a link's target, or of a vector's id."""
        if not name:
            return None
        if self._index.classes is not None:
            return self._image_at(current, name)
        folder = os.path.join(self._index.folder, "")
        parent, last = os.path.split(name)
        place = os.path.join(os.path.realpath(parent), last)
        for path in (place, os.path.realpath(place)):
            if path.startswith(folder):
                image = self._image_at(current, path.removeprefix(folder))
                if image is not None:
                    return image
        return None

    def _image_at(self, current: Transaction, path: str) -> Image | None:
        row = next(current.images("WHERE path = ?", path_bytes(path)), None)
        return None if row is None else self._checked(*row)

    def images_of(self, names: Sequence[str]) -> list[Image | None]:
        """The indexed image of each file, or None."""
        with self.reading() as current:
            return [self._image_of(current, name) for name in names]

    def points_of(self, current: Transaction, ids: Sequence[str]) -> Tensor:
        """Embeddings of indexed vectors, ``[N, D]``; DataError for an unknown id."""
        numbers = []
        for id in ids:
            image = self._image_of(current, id)
            if image is None:
                rows = current.connection.execute("SELECT path FROM images ORDER BY vector LIMIT 3")
                known = ", ".join(repr(os.fsdecode(path)) for (path,) in rows)
                raise DataError(
                    f"{shortened(id, 100)!r}: no such id among the {len(self):,} of the index, nor a file of vectors; "
                    f"its ids are as {known}"
                )
            numbers.append(image.vector)
        return torch.from_numpy(current.vectors[numbers]).to(self._device)

    # Search

    def answer(self, names: Sequence[str], points: Tensor, options: QueryOptions) -> list[Answer]:
        """Answers to query embeddings ``[Q, D]``.

        ``names`` are paths or ids of indexed queries, empty strings for others.
        """
        with self.reading() as current:
            return self.answer_within(current, names, points, options)

    def answer_within(
        self, current: Transaction, names: Sequence[str], points: Tensor, options: QueryOptions
    ) -> list[Answer]:
        """As :meth:`answer`, within a transaction of :meth:`reading`."""
        points = points.to(self._device)
        where = options.where
        vectors = self._vectors
        numbers = self._numbers
        search: Search = nearest_of if self.faiss is None else self.faiss.search
        of_class = ""
        if where.within is not None:
            rows = self._rows_of_class(current, where.within)
            vectors = vectors[rows]
            numbers = numbers[rows]
            search = nearest_of  # faiss can only search the whole index
            of_class = " of the class"
        query_images = [self._image_of(current, name) for name in names]
        count = min(options.k + 1, len(vectors))  # one more than k, since the query itself may be among them
        if options.reranking is None:
            distances, places = nearest_vectors(search, points, count, vectors, options)
        else:
            from .reranking import reranked

            query_rows = rows_of(query_images, numbers)
            distances, places = reranked(options.reranking, search, points, count, vectors, query_rows)
        if options.metric is None and options.reranking is None:
            distances, places = with_exact_distances(points, vectors, places)
        distances = distances.cpu()
        places = places.cpu()
        if where.radius is not None:
            places = within_radius(distances, places, where.radius, options.metric)
        vector_numbers = np.where(places >= 0, numbers[places], -1)

        images = self._images_by_vector(current, vector_numbers)
        results = results_of(vector_numbers, distances, images)
        reason = f"the index holds {len(vectors)} {self.noun}{of_class}"
        answers = answers_of(names, query_images, results, options, reason)
        self._warn_of_gone(answers)
        return answers

    def _images_by_vector(self, current: Transaction, numbers: Numbers) -> dict[int, Image]:
        wanted = set(numbers.ravel().tolist()) - {-1}
        rows = current.images("WHERE vector IN (SELECT value FROM json_each(?))", json.dumps([*wanted]))
        images = {image.vector: self._checked(image, fits) for image, fits in rows}
        if len(images) < len(wanted):
            raise self._collection.damaged("a vector of the index has no image")
        return images

    def _rows_of_class(self, current: Transaction, name: str) -> Numbers:
        if self._index.classes is not None:
            names = [composed(known) for known in self._index.classes]
            if name not in names:
                raise self._no_class(name, names)
            numbers = self._numbers_of(current, "WHERE class_number = ?", names.index(name))
            return np.searchsorted(self._numbers, numbers)
        class_folders = self._index.class_folders
        in_class: list[int] = []
        for folder in class_folders.places_of(name) if name.isascii() else ():  # other names have several spellings
            first = path_bytes(folder) + b"/"
            end = path_bytes(folder) + b"0"  # "0" follows "/": the paths between begin with the folder
            rows = current.connection.execute(f"{_PATHS} WHERE path >= ? AND path < ?", (first, end))
            in_class += [vector for path, vector in rows if class_folders.class_of(os.fsdecode(path)) == name]
        if not in_class:  # images in shards have paths inside the shard
            paths_and_vectors = current.connection.execute(_PATHS)
            every = [(class_folders.class_of(os.fsdecode(path)), vector) for path, vector in paths_and_vectors]
            in_class = [vector for found, vector in every if found == name]
            if not in_class:
                raise self._no_class(name, sorted({found for found, _ in every} - {""}))
        return np.searchsorted(self._numbers, np.array(sorted(in_class), dtype=np.int64))

    def _no_class(self, name: str, known: Sequence[str]) -> ConfigError:
        if not any(known):
            return ConfigError("--within: this index has no classes, since its folder has no sub-folders; leave it out")
        return ConfigError(f"--within {shortened(name, 100)}: {unknown('class', name, known)}")

    def _warn_of_gone(self, answers: Sequence[Answer]) -> None:
        if self._index.classes is not None:
            return
        paths: set[str] = set()
        for answer in answers:
            paths.update(answer.paths)
        gone = [path for path in sorted(paths) if file_stat(self.folder / in_shard(path)) is None]
        if gone:
            text = f"{len(gone)} of {len(paths)} answers no longer exist, {gone[0]} first"
            if not self.folder.is_dir():
                text = f"the indexed folder {self.folder} is gone or moved"
            warnings.warn(f"{text}; type: {self.again}", RetrievalWarning, stacklevel=4)
