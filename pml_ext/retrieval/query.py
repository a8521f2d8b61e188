"""The index of a collection opened for search, the answers to queries, and near-duplicates."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..collection import (
    Changes,
    Collection,
    Embedded,
    Image,
    Numbers,
    RetrievalWarning,
    Transaction,
    class_of,
    in_shard,
    path_bytes,
)
from ..errors import ConfigError, DataError, shortened, unknown
from ..evaluation import Search, nearest_of, neighbors_under, reranked_under

if TYPE_CHECKING:
    from ..pml import BaseDistance

METRICS = ("euclidean", "learned")
RADIUS = 0.1  # of near-duplicates: a cosine similarity of 0.995
_PATHS = "SELECT path, vector FROM images"
_TILE, _BLOCK = 2048, 256  # images that are compared at a time, with each other and by faiss
_PAIRS = 1 << 18  # pairs whose distance is computed at a time


@dataclasses.dataclass(frozen=True)
class Answer:
    """The nearest images to a query, nearest first."""

    query: str  # its path, or its number
    paths: list[str]
    distances: list[float]  # Euclidean, of normalized embeddings, or values of the learned metric
    classes: list[str]  # the sub-folder of each
    query_class: str | None  # the query's sub-folder, where it lies in the indexed folder
    ids: list[int] = dataclasses.field(default_factory=list)  # which images keep while they are in the index


class Gallery:
    """The index of a collection, opened for search.

    Vectors and faiss's lists are mapped into memory: what a query does not look at is not read. When another process
    has written the index anew, the next query is answered by the new one.
    """

    def __init__(self, collection: Collection, device: torch.device, changes: Changes | None = None) -> None:
        self._collection, self._device, self.changes, self.place = collection, device, changes, collection.place
        self._lock, self._opened = threading.RLock(), ("", -1)
        with self.reading():
            pass

    @contextlib.contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Begin a transaction in which the index does not change; one that was written meanwhile is opened first."""
        with self._lock:
            if self._opened[1] < 0 and not self._collection.exists:
                raise DataError(f"{self.place}: no index; type: {self._collection.command()}")
            with self._collection.transaction() as current:
                version = current.state.identity, current.state.version
                if self._opened != version:
                    self._open(current)
                    self._opened = version
                yield current

    def _open(self, current: Transaction) -> None:
        state, index = current.state, current.state.index
        self._collection.check_owner(state)
        if index is None:
            raise DataError(f"{self.place}: no index; type: {self._collection.command()}")
        if len(current.vectors) < state.vectors:
            why = f"{len(current.vectors):,} vectors, not the {state.vectors:,} that were written"
            raise self._collection.damaged(why, self.place / state.file)
        self._index, self.folder, self.factory = index, Path(index.folder), index.factory
        self.again, self.faiss = self._collection.command(), self._collection.read_faiss(index)
        if index.first is not None:
            self._numbers = np.arange(index.first, index.first + index.images)
            vectors = current.vectors[index.first : index.first + index.images]
        else:
            self._numbers = self._numbers_of(current)
            vectors = current.vectors[self._numbers]
        self._vectors = torch.from_numpy(vectors).to(self._device)
        self.__dict__.pop("embedded", None)

    def __len__(self) -> int:
        return self._index.images

    @functools.cached_property
    def embedded(self) -> Embedded:
        """All images, read now: paths, vectors, sizes, times and ids."""
        with self.reading() as current:
            images = [self._checked(*row) for row in current.images("ORDER BY vector")]
            facts = np.array([(image.size, image.time) for image in images], dtype=np.int64)
            ids = np.array([image.id for image in images], dtype=np.int64)
            return Embedded(self.folder, [image.path for image in images], self._vectors, {}, facts, ids=ids)

    def check(self) -> tuple[list[str], list[str]]:
        """Read every row, every vector and faiss's file; return the images that are gone and that have changed."""
        with self.reading() as current:
            problem = current.connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if problem != "ok":
                raise self._collection.damaged(problem)
            images = [self._checked(*row) for row in current.images()]
            if len(images) != len(self):
                raise self._collection.damaged(f"{len(images)} images, not the {len(self)} that were written")
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
            if (image.size, image.time) != (about.st_size, about.st_mtime_ns):
                changed.append(image.path)
        return gone, changed

    # Rows

    def _numbers_of(self, current: Transaction, where: str = "", *values: object) -> Numbers:
        query = f"SELECT vector FROM images {where} ORDER BY vector"
        return np.fromiter((row[0] for row in current.connection.execute(query, values)), dtype=np.int64)

    def _checked(self, image: Image, fits: bool) -> Image:
        if not fits:
            raise self._collection.damaged("the checksum of an image does not fit")
        path = image.path
        if not path or path.startswith("/") or {"..", ""} & set(path.split("/")) or "\0" in path:
            raise DataError(
                f"{self._collection.database}: the image {shortened(path, 100)!r} is not in the folder that was "
                f"indexed; type: {self.again}"
            )
        return image

    def _image_of(self, current: Transaction, name: str) -> Image | None:
        """Return the indexed image that a file is: by its own name, or by that of the file that it links to."""
        folder, (parent, last) = os.path.join(self._index.folder, ""), os.path.split(name)
        place = os.path.join(os.path.realpath(parent), last)
        for path in (place, os.path.realpath(place)):
            if path.startswith(folder):
                for row in current.images("WHERE path = ?", path_bytes(path.removeprefix(folder))):
                    return self._checked(*row)
        return None

    def images_of(self, names: Sequence[str]) -> list[Image | None]:
        """Return the indexed images that files are; None of a file, or an empty name, that is none."""
        with self.reading() as current:
            return [self._image_of(current, name) if name else None for name in names]

    # Search

    def answer(
        self,
        names: Sequence[str],
        points: Tensor,
        k: int,
        metric: BaseDistance | None = None,
        shortlist: int | None = None,
        within: str | None = None,
        radius: float | None = None,
    ) -> list[Answer]:
        """Return the answers to queries of these embeddings, ``[Q, D]``; options are those of TrainedRun.query."""
        if k < 1:
            raise ConfigError(f"-k {k}: wanted 1 or more")
        if radius is not None and metric is None:
            check_radius(radius)
        if shortlist is not None and (metric is None or shortlist < 1):
            raise ConfigError(f"--shortlist {shortlist}: wanted 1 or more, with --metric learned")
        larger = bool(getattr(metric, "is_inverted", False))
        with self.reading() as current:
            rows = None if within is None else self._rows_within(current, within)
            images = len(self) if rows is None else len(rows)
            nearest: Search = nearest_of if self.faiss is None or rows is not None else self.faiss.search
            if metric is not None and shortlist is not None:
                nearest = reranked_under(metric, shortlist, nearest, normalized=True).search
            elif metric is not None:
                nearest = neighbors_under(metric).search
            vectors = self._vectors if rows is None else self._vectors[torch.from_numpy(rows)]
            distances, places = nearest(points, min(k + 1, images), vectors)
            own = [self._image_of(current, name) if name else None for name in names]
            numbers = self._numbers if rows is None else self._numbers[rows]
            near = np.where(places.cpu() >= 0, numbers[places.cpu()], -1).tolist()
            wanted = {number for row in near for number in row} - {-1}
            rows_of = current.images("WHERE vector IN (SELECT value FROM json_each(?))", json.dumps([*wanted]))
            found = {image.vector: image for image in (self._checked(*row) for row in rows_of)}
            if len(found) < len(wanted):
                raise self._collection.damaged("a vector of the index has no image")
        answers: list[Answer] = []
        for name, mine, row, values in zip(names, own, near, distances.tolist(), strict=True):
            itself = -1 if mine is None else mine.vector
            near_enough = [radius is None or (value >= radius if larger else value <= radius) for value in values]
            every = zip(row, values, near_enough, strict=True)
            kept = [(found[number], value) for number, value, near in every if near and number not in (-1, itself)][:k]
            images_of, values_of = [image for image, _ in kept], [value for _, value in kept]
            paths, own_class = [image.path for image in images_of], class_of(mine.path) or None if mine else None
            classes, ids = [class_of(path) for path in paths], [image.id for image in images_of]
            answers.append(Answer(name or f"image {len(answers)}", paths, values_of, classes, own_class, ids))
        self._warn(answers, k if radius is None else 0, images, within)
        return answers

    def _rows_within(self, current: Transaction, name: str) -> Numbers:
        """Return the rows of the vectors of a class's images."""
        inside = path_bytes(name) + b"/"
        numbers = self._numbers_of(current, "WHERE path >= ? AND path < ?", inside, inside[:-1] + b"0")
        if not len(numbers):  # none has it as its first folder; images in shards have theirs inside
            found = [(class_of(os.fsdecode(path)), vector) for path, vector in current.connection.execute(_PATHS)]
            numbers = np.array(sorted(vector for own, vector in found if own == name), dtype=np.int64)
        if not len(numbers):
            classes = sorted({own for own, _ in found})
            raise ConfigError(f"--within {shortened(name, 100)}: {unknown('class', name, classes)}")
        return np.searchsorted(self._numbers, numbers)

    def _warn(self, answers: Sequence[Answer], k: int, images: int, within: str | None) -> None:
        """Warn of queries with fewer than k answers, and of answers whose files are gone."""
        short = [answer for answer in answers if len(answer.paths) < k]
        if short:
            text = f"fewer than {k} answers for {len(short)} of {len(answers)} queries: the index holds {images} images"
            warnings.warn(f"{text} of the class" if within is not None else text, RetrievalWarning, stacklevel=4)
        paths = {path for answer in answers for path in answer.paths}
        gone = sorted(path for path in paths if not os.path.exists(self.folder / in_shard(path)))
        if gone:
            text = f"{len(gone)} of {len(paths)} answers are gone since they were indexed, {gone[0]} first"
            if not self.folder.is_dir():
                text = f"the indexed folder {self.folder} is gone or moved"
            warnings.warn(f"{text}; type: {self.again}", RetrievalWarning, stacklevel=4)

    def duplicates(self, radius: float = RADIUS) -> list[list[str]]:
        """Return groups of images that are within a radius of one another, directly or over others of the group.

        *Cost:* an index ``IVF...`` compares an image with the lists that a query looks at; else each is compared with
        each: 10,000 take less than a second.
        """
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        check_radius(radius)
        points, paths = self.embedded.embeddings, self.embedded.paths
        groups = np.arange(len(paths))
        for ends in self._near(points, radius):
            joined = torch.from_numpy(groups).to(ends.device)[ends]
            apart = ends[:, joined[0] != joined[1]].to(points.device)
            near = [(points[one] - points[other]).norm(dim=1) <= radius for one, other in torch.split(apart, _PAIRS, 1)]
            first, second = groups[apart[:, torch.cat(near)].cpu().numpy()]
            if len(first):
                graph = coo_array((np.ones(len(first), dtype=bool), (first, second)), shape=(len(paths), len(paths)))
                groups = connected_components(graph, directed=False)[1][groups]
        order = np.argsort(groups, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
        several = sorted((part for part in parts if len(part) > 1), key=lambda part: (-len(part), part[0]))
        return [[paths[number] for number in part.tolist()] for part in several]

    def _near(self, points: Tensor, radius: float) -> Iterator[Tensor]:
        """Yield pairs ``[2, P]`` that may be within a radius."""
        # |x - y|^2 = 2 - 2 x.y for length 1, a little more generous than float32's rounding
        if self.faiss is not None and self.faiss.setting == "nprobe":
            for start in range(0, len(points), _BLOCK):
                yield self.faiss.within(points[start : start + _BLOCK], radius**2 + 2e-5) + torch.tensor([[start], [0]])
            return
        for start in range(0, len(points), _TILE):
            for other in range(start, len(points), _TILE):
                near = points[start : start + _TILE] @ points[other : other + _TILE].T >= 1 - radius**2 / 2 - 1e-5
                yield near.nonzero().T + torch.tensor([[start], [other]], device=points.device)


def check_radius(radius: float) -> None:
    """Refuse a radius that is no distance."""
    if not radius > 0:  # NaN too
        raise ConfigError(f"--radius {radius:g}: wanted a distance above 0, of embeddings of length 1 at most 2")
