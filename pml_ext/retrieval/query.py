"""A collection opened for search, the answers to queries, and near-duplicates."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ConfigError, DataError, shortened, unknown
from ..evaluation import Search, neighbors_under, reranked_under
from .checks import RetrievalWarning
from .collection import Changes, Collection, Image, Numbers, State, Transaction, path_bytes
from .embedding import Embedded
from .search import FaissIndex, check_effort, nearest_among, nearest_of

if TYPE_CHECKING:
    from ..pml import BaseDistance

METRICS = ("euclidean", "learned")
RADIUS = 0.1  # of near-duplicates: a cosine similarity of 0.995
_TILE, _PAIRS = 2048, 1 << 18  # images that are compared at a time; pairs whose distance is computed at a time
_TRIES = 20  # of reading a collection that another process keeps replacing
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Answer:
    """The nearest images to a query.

    Args:
        query: the query's path, or its number.
        paths: of the images, nearest first.
        distances: of these images: Euclidean between normalized embeddings, or of the learned metric.
        classes: the sub-folder of each, where the indexed folder has one per class.
        query_class: the query's sub-folder, where it lies in the indexed folder.
        ids: of these images, which they keep while they are in the index.
    """

    query: str
    paths: list[str]
    distances: list[float]
    classes: list[str]
    query_class: str | None
    ids: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Options:
    """How images are searched.

    Args:
        k: answers of a query.
        metric: a learned metric to search by, None for the Euclidean distance.
        shortlist: how many of the nearest by Euclidean distance the metric re-ranks; None for all images.
        effort: of faiss's search; None for the index's own.
        within: the class whose images alone are answers, which are searched exactly.
        radius: the largest distance of an answer, or the smallest value of a metric by which larger is nearer.
    """

    k: int = 8
    metric: BaseDistance | None = None
    shortlist: int | None = None
    effort: int | None = None
    within: str | None = None
    radius: float | None = None


class _ReplacedError(Exception):
    """The collection has another version than the one that was opened."""


class Gallery:
    """The index of a collection, opened for search.

    Vectors and faiss's lists are mapped into memory: what a query does not look at is not read. When another process
    has written the index anew, the next query is answered by the new one.
    """

    def __init__(self, collection: Collection, device: torch.device, changes: Changes | None = None) -> None:
        self._collection, self._device, self.changes = collection, device, changes
        self._lock, self._opened = threading.RLock(), ("", -1)
        self.refresh()

    def refresh(self) -> None:
        """Open the index again if it has changed."""
        with self._lock:
            if not self._collection.exists:
                raise DataError(f"{self.place}: no index; type: {self._collection.command()}")
            with self._collection.transaction() as current:
                if self._opened != _version(current.state):
                    self._open(current)

    def _open(self, current: Transaction) -> None:
        state = current.state
        self._collection.check_owner(state)
        if state.index is None:
            raise DataError(f"{self.place}: no index; type: {self._collection.command()}")
        index, vectors = state.index, current.vectors()
        if len(vectors) < state.vectors:
            why = f"{len(vectors):,} vectors, not the {state.vectors:,} that were written"
            raise self._collection.damaged(why, self.place / state.file)
        self._rows: Numbers | None = None
        if index.first is None:
            self._rows = self._numbers(current)
        else:
            vectors = vectors[index.first : index.first + index.images]
        self._index, self._opened, self.again = index, _version(state), self._collection.command()
        self.faiss: FaissIndex | None = self._collection.read_faiss(index)
        self._vectors = torch.from_numpy(vectors).to(self._device)
        self.__dict__.pop("embedded", None)

    @property
    def place(self) -> Path:
        """The collection's folder."""
        return self._collection.place

    @property
    def folder(self) -> Path:
        """The indexed folder, without links."""
        return Path(self._index.folder)

    @property
    def factory(self) -> str:
        """Faiss's factory string, "" for exact search."""
        return self._index.factory

    @property
    def skipped(self) -> dict[str, str]:
        """``{path: why}`` of files that are no readable images."""
        return self._index.skipped

    def __len__(self) -> int:
        return self._index.images

    @functools.cached_property
    def embedded(self) -> Embedded:
        """All images, read now: paths, vectors, sizes, times and ids."""

        def read(current: Transaction) -> Embedded:
            images = [self._checked(image, fits) for image, fits in current.images("ORDER BY vector")]
            columns = np.array([(image.size, image.time, image.id) for image in images], dtype=np.int64).T.copy()
            points = self._vectors if self._rows is None else self._vectors[torch.from_numpy(self._rows)]
            paths = [image.path for image in images]
            return Embedded(self.folder, paths, points, self.skipped, columns[0], columns[1], None, columns[2])

        return self._read(read)

    def check(self) -> tuple[list[str], list[str]]:
        """Read every row, every vector and faiss's file, and look for the images."""

        def read(current: Transaction) -> list[Image]:
            problem = current.connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if problem != "ok":
                raise self._collection.damaged(problem)
            images = [self._checked(image, fits) for image, fits in current.images()]
            if len(images) != len(self):
                raise self._collection.damaged(f"{len(images)} images, not the {len(self)} that were written")
            return images

        images = self._read(read)
        self._collection.read_faiss(self._index, thorough=True)
        if not self.folder.is_dir():
            raise DataError(f"{self.folder}: no such folder")
        gone, changed = [], []
        for image in images:
            try:
                about = os.stat(self.folder / image.path)
            except OSError:
                gone.append(image.path)
                continue
            if -1 not in (image.size, image.time) and (image.size, image.time) != (about.st_size, about.st_mtime_ns):
                changed.append(image.path)
        return gone, changed

    # Reading rows

    def _read(self, read: Callable[[Transaction], _T]) -> _T:
        """Call a function in a transaction on the version that is open; another version is opened first."""
        with self._lock:
            for _ in range(_TRIES):
                with contextlib.suppress(_ReplacedError), self._collection.transaction() as current:
                    if self._opened != _version(current.state):
                        raise _ReplacedError
                    return read(current)
                self.refresh()
        raise DataError(f"{self.place}: other processes keep writing the index; try again")

    def _numbers(self, current: Transaction, where: str = "", *values: object) -> Numbers:
        query = f"SELECT vector FROM images {where} ORDER BY vector"
        return np.fromiter((row[0] for row in current.connection.execute(query, values)), dtype=np.int64)

    def _checked(self, image: Image, fits: bool) -> Image:
        if not fits:
            raise self._collection.damaged("the checksum of an image does not fit")
        if not is_inside(image.path):
            name = shortened(image.path, 100)
            raise DataError(
                f"{self._collection.database}: the image {name!r} is not in the folder that was indexed; "
                f"type: {self.again}"
            )
        return image

    def _with_vectors(self, current: Transaction, numbers: Iterable[int]) -> dict[int, Image]:
        images = {}
        for number in numbers:
            row = next(current.images("WHERE vector = ?", number), None)
            if row is None:
                raise self._collection.damaged("a vector of the index has no image")
            images[number] = self._checked(*row)
        return images

    def _image_of(self, current: Transaction, name: str) -> Image | None:
        for path in _names_within(os.path.join(self._index.folder, ""), name):
            for row in current.images("WHERE path = ?", path_bytes(path)):
                return self._checked(*row)
        return None

    def known(self, names: Sequence[str]) -> dict[int, Tensor]:
        """Return the vectors of files that the index has with the size and time that they have now, by number."""
        found = {}

        def read(current: Transaction) -> None:
            vectors = current.vectors()
            for number, name in enumerate(names):
                image = self._image_of(current, name) if name else None
                if image is not None:
                    with contextlib.suppress(OSError):  # whoever reads the file says why it cannot be read
                        about = os.stat(name)
                        if (image.size, image.time) == (about.st_size, about.st_mtime_ns):
                            found[number] = torch.from_numpy(vectors[image.vector].copy())

        self._read(read)
        return found

    # Search

    def check_options(self, options: Options) -> None:
        """Refuse options that are out of range or without effect."""
        if options.k < 1:
            raise ConfigError(f"-k {options.k}: wanted 1 or more")
        if options.metric is None:
            check_radius(options.radius)
        if options.shortlist is not None:
            if options.metric is None:
                raise ConfigError("--shortlist goes with --metric learned")
            if options.shortlist < 1:
                raise ConfigError(f"--shortlist {options.shortlist}: wanted 1 or more")
        check_effort(options.effort)
        if options.effort is None:
            return
        why = ""
        if self.faiss is None:
            why = f"{self.place} is searched exactly"
        elif not self.faiss.setting:
            why = f"the index {self.factory} has no nprobe and no efSearch"
        elif options.within is not None:
            why = "the images of a class are searched exactly"
        elif options.metric is not None and options.shortlist is None:
            why = "the learned metric is compared with all images; add --shortlist K, or"
        if why:
            raise ConfigError(
                f"--effort {options.effort}: {why}{'' if why.endswith(', or') else ';'} leave out --effort"
            )

    def answer(self, names: Sequence[str], points: Tensor, options: Options) -> list[Answer]:
        """Return the answers to queries; an image of the index is no answer to itself."""
        answers, images = self._read(lambda current: self._answer(current, names, points, options))
        if options.radius is None:
            self._warn_of_fewer(answers, options.k, images)
        self._warn_of_gone(answers)
        return answers

    def _answer(
        self, current: Transaction, names: Sequence[str], points: Tensor, options: Options
    ) -> tuple[list[Answer], int]:
        rows = self._rows if options.within is None else self._rows_within(current, options.within)
        images = len(self) if rows is None else len(rows)
        if rows is not None and self._rows is None:
            rows = rows - (self._index.first or 0)
        distances, numbers = self._nearest(points, min(options.k + 1, images), options, rows)
        first = self._index.first or 0
        own = [self._image_of(current, name) if name else None for name in names]
        near = (numbers + first).where(numbers >= 0, -1).tolist()
        rows_of = self._with_vectors(current, sorted({number for row in near for number in row} - {-1}))
        larger, radius = bool(getattr(options.metric, "is_inverted", False)), options.radius
        answers = []
        for row, (found, values) in enumerate(zip(near, distances.tolist(), strict=True)):
            mine = own[row]
            kept = [
                (rows_of[number], float(value))
                for number, value in zip(found, values, strict=True)
                if number != -1
                and (mine is None or number != mine.vector)
                and (radius is None or (value >= radius if larger else value <= radius))
            ][: options.k]
            answers.append(
                Answer(
                    names[row] or f"image {row}",
                    [image.path for image, _ in kept],
                    [value for _, value in kept],
                    [image.class_name for image, _ in kept],
                    mine.class_name or None if mine is not None else None,
                    [image.id for image, _ in kept],
                )
            )
        return answers, images

    def _rows_within(self, current: Transaction, name: str) -> Numbers:
        rows = self._numbers(current, "WHERE class = ?", path_bytes(name))
        if not len(rows):
            names = {os.fsdecode(row[0]) for row in current.connection.execute("SELECT DISTINCT class FROM images")}
            raise ConfigError(f"--within {shortened(name, 100)}: {unknown('class', name, sorted(names))}")
        return rows

    def _nearest(self, points: Tensor, k: int, options: Options, rows: Numbers | None) -> tuple[Tensor, Tensor]:
        """Return distances and numbers of rows of the mapped vectors."""
        nearest: Search = nearest_of if rows is None else functools.partial(nearest_among, rows)
        if self.faiss is not None and options.within is None:
            nearest = functools.partial(self._by_faiss, options.effort)
        if options.metric is not None and options.shortlist is not None:
            nearest = reranked_under(options.metric, options.shortlist, nearest, normalized=True).search
        elif options.metric is not None:
            nearest = neighbors_under(options.metric).search
            if rows is not None:
                some = torch.from_numpy(rows).to(self._vectors.device)
                distances, numbers = nearest(points, k, self._vectors[some])
                return distances, some[numbers]
        return nearest(points, k, self._vectors)

    def _by_faiss(self, effort: int | None, points: Tensor, k: int, _reference: Tensor) -> tuple[Tensor, Tensor]:
        assert self.faiss is not None
        distances, numbers = self.faiss.search(points, k, effort)
        if self._rows is not None:
            numbers = torch.from_numpy(self._rows)[numbers].where(numbers >= 0, -1)
        return distances, numbers

    def _warn_of_fewer(self, answers: Sequence[Answer], k: int, images: int) -> None:
        short = [answer for answer in answers if len(answer.paths) < k]
        if not short:
            return
        fewest = min(short, key=lambda answer: len(answer.paths))
        everything = images == len(self)
        why = f"the index holds {images} images" + " of the class" * (not everything)
        if everything and images - 1 > len(fewest.paths):
            why += f", and {self.factory} finds no more; an index by --index exact does"
        warnings.warn(
            f"fewer than {k} answers for {len(short)} of {len(answers)} queries ({fewest.query}: "
            f"{len(fewest.paths)}): {why}",
            RetrievalWarning,
            stacklevel=4,
        )

    def _warn_of_gone(self, answers: Sequence[Answer]) -> None:
        paths = {path for answer in answers for path in answer.paths}
        gone = sorted(path for path in paths if not os.path.exists(self.folder / path))
        if not gone:
            return
        text = (
            f"{len(gone)} of {len(paths)} answers are gone since they were indexed, {gone[0]} first; type: {self.again}"
        )
        if not self.folder.is_dir():
            text = f"the indexed folder {self.folder} is gone or moved; put it back, or index it where it is now"
        warnings.warn(text, RetrievalWarning, stacklevel=4)

    # Near-duplicates

    def duplicates(self, radius: float = RADIUS) -> list[list[str]]:
        """Return groups of images that are within a radius of one another, directly or over others of the group.

        With faiss, pairs are found with the index's effort, so that some may be missed; else each image is compared
        with each: 10,000 take less than a second, and time grows with the square of their number.
        """
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        check_radius(radius)
        embedded = self.embedded
        points, count = embedded.embeddings, len(embedded.paths)
        groups = np.arange(count)
        pairs = _near(points, radius) if self.faiss is None else _near_by_faiss(self.faiss, points, radius)
        for ends in pairs:
            joined = torch.from_numpy(groups).to(ends.device)[ends]
            apart = _within(points, radius, ends[:, joined[0] != joined[1]])
            if apart.shape[1]:
                first, second = groups[apart]
                graph = coo_array((np.ones(len(first), dtype=bool), (first, second)), shape=(count, count))
                groups = connected_components(graph, directed=False)[1][groups]
        order = np.argsort(groups, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
        several = sorted((part for part in parts if len(part) > 1), key=lambda part: (-len(part), part[0]))
        return [[embedded.paths[number] for number in part.tolist()] for part in several]


def _version(state: State) -> tuple[str, int]:
    return state.identity, state.version


def check_radius(radius: float | None) -> None:
    """Refuse a radius that is NaN or not above 0 with a ConfigError."""
    if radius is not None and not radius > 0:
        raise ConfigError(f"--radius {radius:g}: wanted a distance above 0, of embeddings of length 1 at most 2")


def is_inside(name: str) -> bool:
    """Return whether a path of an index stays in the folder that was indexed."""
    return bool(name) and not name.startswith("/") and not {"..", ""} & set(name.split("/")) and "\0" not in name


def _near(points: Tensor, radius: float) -> Iterator[Tensor]:
    """Yield pairs ``[2, P]`` that may be within a radius, of all images with all."""
    for start in range(0, len(points), _TILE):
        some = points[start : start + _TILE]
        for other in range(start, len(points), _TILE):
            # |x - y|^2 = 2 - 2 x.y for length 1, a little more generous than float32's rounding
            near = (some @ points[other : other + _TILE].T) >= 1 - radius**2 / 2 - 1e-5
            yield near.nonzero().T + torch.tensor([[start], [other]], device=points.device)


def _near_by_faiss(index: FaissIndex, points: Tensor, radius: float) -> Iterator[Tensor]:
    for start in range(0, len(points), _TILE):
        first, second = index.within(points[start : start + _TILE], radius)
        yield torch.stack([first + start, second]).to(points.device)


def _within(points: Tensor, radius: float, ends: Tensor) -> NDArray[np.int64]:
    near = [(points[one] - points[other]).norm(dim=1) <= radius for one, other in torch.split(ends, _PAIRS, 1)]
    return ends[:, torch.cat(near)].cpu().numpy()  # type: ignore[no-any-return]


def _names_within(folder: str, name: str) -> Iterator[str]:
    """Yield the names of a file relative to a folder: by its own name, and by that of the file that it links to."""
    if "\0" in name:  # no file; whoever reads it says so
        return
    parent, last = os.path.split(name)
    place = os.path.join(os.path.realpath(parent), last)
    places = [place]
    if os.path.islink(place) or last in ("", ".", ".."):
        places.append(os.path.realpath(place))
    for each in places:
        if each.startswith(folder):
            yield each.removeprefix(folder).replace(os.sep, "/")
