"""Search in the index of a collection or in a store that mirrors it; near-duplicates; many queries."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pml_ext.tool import (
    ConfigError,
    DataError,
    Search,
    file_stat,
    nearest_of,
    neighbors_under,
    path_bytes,
    printable,
    reranked_under,
    shortened,
    unknown,
    write_atomically,
)

from .collection import (
    Changes,
    Collection,
    Embedded,
    Image,
    Numbers,
    RetrievalWarning,
    Transaction,
    class_of,
    crc_of,
    in_shard,
)
from .faiss_index import sampled_recall
from .stores import BATCH, Found, Rows, Store, Where

if TYPE_CHECKING:
    from pml_ext.tool import BaseDistance

    from .embedding import ImageEmbedder
    from .parts import Work

METRICS = ("euclidean", "learned")
RADIUS = 0.1  # maximum distance of near-duplicates: a cosine similarity of 0.995
SCHEME = re.compile(r"([a-z][a-z0-9-]+):(.+)", re.DOTALL)  # scheme and address of a store
_PATHS = "SELECT path, vector FROM images"
_TILE, _BLOCK = 2048, 256  # images per block of the all-pairs search, and of the search by faiss
_PAIRS = 1 << 18  # pairs per block of the distance computation


@dataclasses.dataclass(frozen=True)
class Answer:
    """The nearest images to a query, nearest first."""

    query: str  # path or number of the query
    paths: list[str]
    distances: list[float]  # Euclidean distances of normalized embeddings, or values of the learned metric
    classes: list[str]  # sub-folder of each answer
    query_class: str | None  # sub-folder of the query if it is in the index
    ids: list[int] = dataclasses.field(default_factory=list)  # an image keeps its id while it is in the index


Answers = Callable[[Sequence[str], Tensor], list[Answer]]
"""A function from the names of queries and their embeddings to answers."""


class Gallery:
    """The searchable index of a collection, opened by :meth:`reading`.

    Vectors and faiss's lists are memory-mapped, so that a query reads only those that it is compared with. When another
    process has replaced the index, the next query searches the new one.
    """

    def __init__(self, collection: Collection, device: torch.device, changes: Changes | None = None) -> None:
        self._collection, self._device, self.changes, self.place = collection, device, changes, collection.place
        self._lock, self._opened = threading.RLock(), ("", -1)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Begin a transaction on a fixed version of the index; reopen the index if it has been rewritten."""
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
        self._collection.check_identity(state)
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
            try:
                self._numbers = self._numbers_of(current)
                vectors = current.vectors[self._numbers]
            except (ValueError, TypeError, IndexError):
                raise self._collection.damaged("a row of the index has no vector") from None
        self._vectors = torch.from_numpy(vectors).to(self._device)
        self.__dict__.pop("embedded", None)

    def __len__(self) -> int:
        return self._index.images

    @functools.cached_property
    def embedded(self) -> Embedded:
        """The paths, vectors, sizes, times and ids of all images, read on first access."""
        with self.reading() as current:
            images = [self._checked(*row) for row in current.images("ORDER BY vector")]
            facts = np.array([(image.size, image.time) for image in images], dtype=np.int64)
            ids = np.array([image.id for image in images], dtype=np.int64)
            return Embedded(self.folder, [image.path for image in images], self._vectors, {}, facts, ids=ids)

    def check(self) -> tuple[list[str], list[str]]:
        """Verify every row, every vector and faiss's file; return the missing images and the changed ones."""
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
        now = [(image, file_stat(self.folder / image.path)) for image in images]
        gone = [image.path for image, facts in now if facts is None]
        return gone, [image.path for image, facts in now if facts not in (None, (image.size, image.time))]

    # Rows

    def _numbers_of(self, current: Transaction, where: str = "", *values: object) -> Numbers:
        query = f"SELECT vector FROM images {where} ORDER BY vector"
        return np.fromiter((row[0] for row in current.connection.execute(query, values)), dtype=np.int64)

    def _checked(self, image: Image, fits: bool) -> Image:
        path = image.path
        if not fits:
            raise self._collection.damaged("the checksum of an image does not fit")
        if not path or path.startswith("/") or {"..", ""} & set(path.split("/")) or "\0" in path:
            raise self._collection.damaged(f"the image {shortened(path, 100)!r} is not in the folder that was indexed")
        return image

    def _image_of(self, current: Transaction, name: str) -> Image | None:
        """Return the indexed image of a file, by its path or, for a symbolic link, by its target's path."""
        folder, (parent, last) = os.path.join(self._index.folder, ""), os.path.split(name)
        place = os.path.join(os.path.realpath(parent), last)
        for path in (place, os.path.realpath(place)):
            if path.startswith(folder):
                for row in current.images("WHERE path = ?", path_bytes(path.removeprefix(folder))):
                    return self._checked(*row)
        return None

    def images_of(self, names: Sequence[str]) -> list[Image | None]:
        """Return the indexed image of each file, or None if it is not indexed or the name is empty."""
        with self.reading() as current:
            return [self._image_of(current, name) if name else None for name in names]

    # Search

    def answer(
        self,
        names: Sequence[str],
        points: Tensor,
        k: int,
        where: Where,
        metric: BaseDistance | None = None,
        shortlist: int | None = None,
    ) -> list[Answer]:
        """Return the answers to query embeddings ``[Q, D]``; options are those of :meth:`TrainedRun.query`."""
        within, radius = where
        check_query(k, radius if metric is None else None)
        if shortlist is not None and (metric is None or shortlist < 1):
            raise ConfigError(f"--shortlist {shortlist}: wanted 1 or more, with --metric learned")
        with self.reading() as current:
            rows: Any = slice(None) if within is None else self._rows_within(current, within)
            vectors, numbers = self._vectors[rows], self._numbers[rows]
            nearest: Search = nearest_of if self.faiss is None or within is not None else self.faiss.search
            if metric is not None and shortlist is not None:
                nearest = reranked_under(metric, shortlist, nearest, normalized=True).search
            elif metric is not None:
                nearest = neighbors_under(metric).search
            distances, places = (each.cpu() for each in nearest(points, min(k + 1, len(vectors)), vectors))
            if radius is not None:
                values, larger = distances.double(), getattr(metric, "is_inverted", False)
                places = places.where(values >= radius if larger else values <= radius, -1)
            own = [self._image_of(current, name) if name else None for name in names]
            near = np.where(places >= 0, numbers[places], -1).tolist()
            wanted = {number for row in near for number in row} - {-1}
            rows_of = current.images("WHERE vector IN (SELECT value FROM json_each(?))", json.dumps([*wanted]))
            images = {image.vector: image for image in (self._checked(*row) for row in rows_of)}
            if len(images) < len(wanted):
                raise self._collection.damaged("a vector of the index has no image")
        found = list[list[Found]]()
        for row, apart in zip(near, distances.tolist(), strict=True):
            every = [(images[number], value) for number, value in zip(row, apart, strict=True) if number != -1]
            found.append([Found(image.id, image.path, class_of(image.path), value) for image, value in every])
        of = "" if within is None else " of the class"
        answers = answers_of(names, own, found, k, where, f"the index holds {len(vectors)} images{of}")
        self._warn_of_gone(answers)
        return answers

    def _rows_within(self, current: Transaction, name: str) -> Numbers:
        """Return the rows of the vectors of a class's images."""
        inside = path_bytes(name) + b"/"
        numbers = self._numbers_of(current, "WHERE path >= ? AND path < ?", inside, inside[:-1] + b"0")
        if not len(numbers):  # no first folder has this name; images in shards have their class inside the shard
            found = [(class_of(os.fsdecode(path)), vector) for path, vector in current.connection.execute(_PATHS)]
            numbers = np.array(sorted(vector for own, vector in found if own == name), dtype=np.int64)
        if not len(numbers):
            classes = sorted({own for own, _ in found})
            raise ConfigError(f"--within {shortened(name, 100)}: {unknown('class', name, classes)}")
        return np.searchsorted(self._numbers, numbers)

    def _warn_of_gone(self, answers: Sequence[Answer]) -> None:
        """Warn of answers whose files no longer exist."""
        paths = {path for answer in answers for path in answer.paths}
        gone = sorted(path for path in paths if not os.path.exists(self.folder / in_shard(path)))
        if gone:
            text = f"{len(gone)} of {len(paths)} answers are gone since they were indexed, {gone[0]} first"
            if not self.folder.is_dir():
                text = f"the indexed folder {self.folder} is gone or moved"
            warnings.warn(f"{text}; type: {self.again}", RetrievalWarning, stacklevel=4)

    def duplicates(self, radius: float = RADIUS) -> list[list[str]]:
        """Return the connected components of the images, where pairs within a radius are connected.

        *Cost:* with an ``IVF...`` index, an image is compared with the lists that a query searches. Otherwise all pairs
        are compared: 10,000 images take less than a second.
        """
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        check_query(1, radius)
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
        # |x - y|^2 = 2 - 2 x.y for length 1; the tolerance exceeds float32's rounding error
        if self.faiss is not None and self.faiss.setting == "nprobe":
            for start in range(0, len(points), _BLOCK):
                yield self.faiss.within(points[start : start + _BLOCK], radius**2 + 2e-5) + torch.tensor([[start], [0]])
            return
        for start in range(0, len(points), _TILE):
            for other in range(start, len(points), _TILE):
                near = points[start : start + _TILE] @ points[other : other + _TILE].T >= 1 - radius**2 / 2 - 1e-5
                yield near.nonzero().T + torch.tensor([[start], [other]], device=points.device)


def check_query(k: int, radius: float | None) -> None:
    """Raise ConfigError if the number of answers is below 1 or the radius is not above 0."""
    if k < 1:
        raise ConfigError(f"-k {k}: wanted 1 or more")
    if radius is not None and not radius > 0:  # NaN too
        raise ConfigError(f"--radius {radius:g}: wanted a distance above 0, of embeddings of length 1 at most 2")


def answers_of(
    names: Sequence[str],
    own: Sequence[Image | None],
    found: Sequence[Sequence[Found]],
    k: int,
    where: Where,
    reason: str,
) -> list[Answer]:
    """Return the first k images found for each query, without the query itself; warn if there are fewer."""
    answers = list[Answer]()
    for name, mine, row in zip(names, own, found, strict=True):
        kept = [each for each in row if mine is None or each.id != mine.id][:k]
        ids, paths, classes, distances = map(list, zip(*kept, strict=True)) if kept else ([], [], [], [])
        own_class = class_of(mine.path) or None if mine else None
        answers.append(Answer(name or f"image {len(answers)}", paths, distances, classes, own_class, ids))
    short = sum(len(answer.paths) < k for answer in answers)
    if short and where.radius is None:
        text = f"fewer than {k} answers for {short} of {len(answers)} queries: {reason}"
        warnings.warn(text, RetrievalWarning, stacklevel=4)
    return answers


# Stores


def is_store(text: str) -> bool:
    """Return whether a text is the address of a store, ``SCHEME:ADDRESS``, and not a folder."""
    return bool(SCHEME.fullmatch(text)) and not os.path.isdir(text)


def bring_over(embedded: Embedded, store: Store) -> Changes:
    """Write new and changed images into a store, and delete those that are not in the index."""
    vectors, ids = embedded.embeddings.cpu().numpy(), embedded.ids
    columns = ids.tolist(), embedded.paths, embedded.facts.tolist(), vectors
    marks = np.array(
        [crc_of(row.data, id, path_bytes(path), *facts) for id, path, facts, row in zip(*columns, strict=True)]
    )
    known = store.marks()
    before = np.array([known.get(id, -1) for id in ids.tolist()], dtype=np.int64)
    differs = np.flatnonzero(before != marks)

    def batches() -> Iterator[Rows]:
        for start in range(0, len(differs), BATCH):
            part: Numbers = differs[start : start + BATCH]
            names = [_text(embedded.paths[place]) for place in part]
            yield Rows(ids[part], marks[part], names, [class_of(name) for name in names], vectors[part])

    gone = sorted(known.keys() - {*ids.tolist()})
    for start in range(0, len(gone), BATCH):
        store.delete(gone[start : start + BATCH])
    store.write(batches())  # also without batches: completes a database index that an interrupted write left incomplete
    new = int((before < 0).sum())
    return Changes(new, len(differs) - new, len(gone), len(ids) - len(differs))


def recall_of(embedded: Embedded, store: Store) -> float | None:
    """Return recall@10 of a store against exact search, on a sample of at most 200 images; None for fewer than 2."""
    if len(embedded.paths) < 2:
        return None
    places = {id: place for place, id in enumerate(embedded.ids.tolist())}

    def search(points: Tensor, k: int) -> Tensor:
        found = store.search(points.cpu().numpy(), k, Where())
        return torch.tensor([[places.get(each.id, -1) for each in row] + [-1] * (k - len(row)) for row in found])

    return sampled_recall(embedded.embeddings.cpu())(search)


def answers_from(
    store: Store, gallery: Gallery | None, names: Sequence[str], points: Tensor, k: int, where: Where
) -> list[Answer]:
    """Return a store's answers to query embeddings, without the query itself if the gallery has it."""
    check_query(k, where.radius)
    own = [None] * len(names) if gallery is None else gallery.images_of(names)
    found = store.search(points.cpu().numpy(), k + 1, where)
    of = "" if where.within is None else f" of the class {printable(where.within)}"
    if where.within is not None and len(points) and not any(found):
        (any_of_class,) = store.search(points[:1].cpu().numpy(), 1, Where(where.within))
        if not any_of_class:
            raise ConfigError(f"--within {shortened(where.within, 100)}: no image of this class in the store")
    return answers_of(names, own, found, k, where, f"the store gave no more images{of}")


# Many queries


def match(embedder: ImageEmbedder, work: Work, find: Answers, out: Path) -> tuple[int, int]:
    """Write the answers to all images of a listing; return the numbers of images and answers.

    Parquet has a row per answer (``query``, ``rank``, ``path``, ``class``, ``id``, ``distance``); JSON lines have an
    object per image. An existing file is replaced once all answers are written.
    """
    from .parts import embeddings_of, tables

    counts = np.zeros(2, dtype=np.int64)

    def batches() -> Iterator[list[tuple[str, Answer]]]:
        for _, table in tables(embedder, work, range(len(work.segments))):
            names: list[str] = table["path"].to_pylist()
            points = torch.from_numpy(embeddings_of(table).copy())
            found = find([os.path.join(work.folder, name) for name in names], points) if names else []
            counts[:] += len(found), sum(len(answer.paths) for answer in found)
            yield [*zip(names, found, strict=True)]

    out.parent.mkdir(parents=True, exist_ok=True)
    writes = _write_parquet if out.suffix == ".parquet" else _write_lines
    write_atomically(out, functools.partial(writes, batches=batches()))
    return int(counts[0]), int(counts[1])


def _write_lines(path: Path, batches: Iterator[list[tuple[str, Answer]]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for name, answer in itertools.chain.from_iterable(batches):
            about = {"query": name, "paths": answer.paths, "classes": answer.classes}
            file.write(json.dumps(about | {"ids": answer.ids, "distances": answer.distances}) + "\n")


def _write_parquet(path: Path, batches: Iterator[list[tuple[str, Answer]]]) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    kinds = {"query": pyarrow.string(), "rank": pyarrow.int32(), "path": pyarrow.string(), "class": pyarrow.string()}
    schema = pyarrow.schema([*kinds.items(), ("id", pyarrow.int64()), ("distance", pyarrow.float32())])
    with parquet.ParquetWriter(path, schema) as writer:
        for batch in batches:
            rows = [
                {"query": name, "rank": rank, "path": _text(path), "class": class_name, "id": id, "distance": distance}
                for name, answer in batch
                for rank, (path, class_name, id, distance) in enumerate(
                    zip(answer.paths, answer.classes, answer.ids, answer.distances, strict=True), start=1
                )
            ]
            writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))


def _text(path: str) -> str:
    return path_bytes(path).decode("utf-8", "backslashreplace")
