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
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    needs_extra,
    neighbors_under,
    path_bytes,
    printable,
    read_vectors,
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
    Index,
    Numbers,
    RetrievalWarning,
    Transaction,
    Vectors,
    crc_of,
    in_shard,
    is_inside,
)
from .faiss_index import RecallSample
from .stores import BATCH, Rows, SearchFilter, SearchResult, Store
from .vectors import changes_of

if TYPE_CHECKING:
    from pml_ext.tool import BaseDistance, KReciprocal, QueryExpansion, VectorFile

    from .embedding import ImageEmbedder
    from .parts import Work
    from .stores.checked import CheckedStore
    from .vectors import VectorEmbedder

METRICS = ("euclidean", "learned")
RADIUS = 0.1  # maximum distance of near-duplicates: a cosine similarity of 0.995
SCHEME = re.compile(r"([a-z][a-z0-9-]+):(.+)", re.DOTALL)  # scheme and address of a store
_PATHS = "SELECT path, vector FROM images"
_TILE = 2048  # images per block of the all-pairs search
_BLOCK = 256  # images per block of the search by faiss
_EXACT = 1 << 23  # numbers of found vectors whose exact distances are computed at a time
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


@dataclasses.dataclass(frozen=True)
class QueryOptions:
    """How an index is searched; ConfigError for options that it cannot meet."""

    k: int  # number of answers
    where: SearchFilter = dataclasses.field(default_factory=SearchFilter)
    metric: BaseDistance | None = None  # a learned one; None: Euclidean
    shortlist: int | None = None  # number of nearest images by Euclidean distance that the metric re-ranks; None: all
    reranking: QueryExpansion | KReciprocal | None = None

    def __post_init__(self) -> None:
        radius = self.where.radius if self.metric is None else None  # the values of a metric may be negative
        check_query(self.k, radius)
        if self.shortlist is not None and (self.metric is None or self.shortlist < 1):
            raise ConfigError(f"--shortlist {self.shortlist}: wanted 1 or more, with --metric learned")


Answers = Callable[[Sequence[str], Tensor], list[Answer]]
"""A function from the names of queries and their embeddings to answers."""


class Gallery:
    """The searchable index of a collection, opened by :meth:`reading`.

    Vectors and faiss's lists are memory-mapped, so that a query reads only those that it is compared with. When another
    process has replaced the index, the next query searches the new one.
    """

    def __init__(self, collection: Collection, device: torch.device, changes: Changes | None = None) -> None:
        self._collection = collection
        self._device = device
        self.changes = changes
        self.place = collection.place
        self.by = collection.by
        self._lock = threading.RLock()
        self._opened: tuple[str, int, int] | None = None  # the index that is open: network, collection and version

    @property
    def is_open(self) -> bool:
        """Whether an index has been opened; before, there are no images, folder and vectors."""
        return self._opened is not None

    @contextlib.contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Begin a transaction on a fixed version of the index; reopen the index if it has been rewritten."""
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
        """Map the vectors of the index and open faiss's file."""
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
        self.__dict__.pop("embedded", None)  # forgets the cached property of the index that was open before

    def _vectors_of_index(self, current: Transaction, index: Index) -> tuple[Numbers, Vectors]:
        """Return the numbers and the vectors of the indexed images; a view of the mapped file if contiguous."""
        if index.first is not None:
            end = index.first + index.images
            return np.arange(index.first, end), current.vectors[index.first : end]
        try:
            numbers = self._numbers_of(current)
            return numbers, current.vectors[numbers]
        except (ValueError, TypeError, IndexError):
            raise self._collection.damaged("a row of the index has no vector") from None

    def __len__(self) -> int:
        return self._index.images

    @property
    def noun(self) -> str:
        """What the index has, ``"images"`` or ``"vectors"``, for texts."""
        return "images" if self._index.classes is None else "vectors"

    @functools.cached_property
    def embedded(self) -> Embedded:
        """The paths, vectors, sizes, times and ids of all images, read on first access."""
        with self.reading() as current:
            paths = []
            class_numbers = []
            stats = []
            ids = []
            for row, fits in current.images("ORDER BY vector"):
                image = self._checked(row, fits)
                paths.append(image.path)
                stats.append(image.stat)
                ids.append(image.id)
                if image.class_number is not None:
                    class_numbers.append(image.class_number)
            return Embedded(
                folder=self.folder,
                paths=paths,
                embeddings=self._vectors,
                stats=np.array(stats, dtype=np.int64),
                ids=np.array(ids, dtype=np.int64),
                class_numbers=np.array(class_numbers, dtype=np.int64),
                class_names=self._index.classes,
                class_folders=self._index.class_folders,
            )

    def check(self) -> tuple[list[str], list[str]]:
        """Verify every row, every vector and faiss's file; return the missing images and the changed ones.

        Of images in shards, that the shard is there.
        """
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

    # Rows

    def _numbers_of(self, current: Transaction, condition: str = "", *values: object) -> Numbers:
        """Return the numbers of the vectors of indexed images, ascending; ``condition`` in SQL chooses the images."""
        query = f"SELECT vector FROM images {condition} ORDER BY vector"
        rows = current.connection.execute(query, values)
        return np.fromiter((number for (number,) in rows), dtype=np.int64)

    def _checked(self, image: Image, fits: bool) -> Image:
        """Return an image; raise if its checksum does not fit, or if its path leads out of the folder."""
        path = image.path
        if not fits:
            raise self._collection.damaged("the checksum of an image does not fit")
        fits_index = bool(path) if self._index.classes is not None else is_inside(path)  # an id may be any text
        if not fits_index:
            raise self._collection.damaged(f"the image {shortened(path, 100)!r} is not in the folder that was indexed")
        return image

    def _image_of(self, current: Transaction, name: str) -> Image | None:
        """Return the indexed image of a file, by its path or, for a symbolic link, by its target's path.

        Of an index of vectors, the name is an id. None for a name that is not indexed, and for an empty one.
        """
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
        """Return the image with a path in the index, or the vector with an id; None if there is none."""
        row = next(current.images("WHERE path = ?", path_bytes(path)), None)
        return None if row is None else self._checked(*row)

    def images_of(self, names: Sequence[str]) -> list[Image | None]:
        """Return the indexed image of each file, or None if it is not indexed or the name is empty."""
        with self.reading() as current:
            return [self._image_of(current, name) for name in names]

    def points_of(self, current: Transaction, ids: Sequence[str]) -> Tensor:
        """Return the embeddings of indexed vectors, ``[N, D]``; DataError for an id that is not in the index."""
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
        """Return the answers to query embeddings ``[Q, D]``.

        ``names`` are the paths of the queries, or ids of vectors; "" for one that is not indexed.
        """
        with self.reading() as current:
            return self.answer_within(current, names, points, options)

    def answer_within(
        self, current: Transaction, names: Sequence[str], points: Tensor, options: QueryOptions
    ) -> list[Answer]:
        """Return the answers of :meth:`answer` within a transaction of :meth:`reading`."""
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
            search = nearest_of  # faiss searches the whole index alone
            of_class = " of the class"
        query_images = [self._image_of(current, name) for name in names]
        count = min(options.k + 1, len(vectors))  # one more than k, since the query itself may be among them
        if options.reranking is None:
            distances, places = _nearest(search, points, count, vectors, options)
        else:
            from .reranking import reranked

            query_rows = _rows_of(query_images, numbers)
            distances, places = reranked(options.reranking, search, points, count, vectors, query_rows)
        if options.metric is None and options.reranking is None:
            distances, places = _with_exact_distances(points, vectors, places)
        distances = distances.cpu()
        places = places.cpu()
        if where.radius is not None:
            places = _within_radius(distances, places, where.radius, options.metric)
        vector_numbers = np.where(places >= 0, numbers[places], -1)

        images = self._images_by_vector(current, vector_numbers)
        results = _results(vector_numbers, distances, images)
        reason = f"the index holds {len(vectors)} {self.noun}{of_class}"
        answers = answers_of(names, query_images, results, options, reason)
        self._warn_of_gone(answers)
        return answers

    def _images_by_vector(self, current: Transaction, numbers: Numbers) -> dict[int, Image]:
        """Return the indexed images by the numbers of their vectors; -1 is left out."""
        wanted = set(numbers.ravel().tolist()) - {-1}
        rows = current.images("WHERE vector IN (SELECT value FROM json_each(?))", json.dumps([*wanted]))
        images = {}
        for image, fits in rows:
            images[image.vector] = self._checked(image, fits)
        if len(images) < len(wanted):
            raise self._collection.damaged("a vector of the index has no image")
        return images

    def _rows_of_class(self, current: Transaction, name: str) -> Numbers:
        """Return the rows of the vectors of a class's images; ConfigError for an unknown class."""
        if self._index.classes is not None:
            if name not in self._index.classes:
                raise ConfigError(f"--within {shortened(name, 100)}: {unknown('class', name, self._index.classes)}")
            label = self._index.classes.index(name)
            numbers = self._numbers_of(current, "WHERE class_number = ?", label)
            return np.searchsorted(self._numbers, numbers)
        class_folders = self._index.class_folders
        in_class: list[int] = []
        for folder in class_folders.places_of(name):
            first = path_bytes(folder) + b"/"
            end = path_bytes(folder) + b"0"  # "0" follows "/": the paths between begin with the folder
            for path, vector in current.connection.execute(f"{_PATHS} WHERE path >= ? AND path < ?", (first, end)):
                if class_folders.class_of(os.fsdecode(path)) == name:
                    in_class.append(vector)
        classes: set[str] = set()
        if not in_class:  # the images of shards have paths inside of the shard
            for path, vector in current.connection.execute(_PATHS):
                found = class_folders.class_of(os.fsdecode(path))
                classes.add(found)
                if found == name:
                    in_class.append(vector)
        if not in_class:
            raise ConfigError(f"--within {shortened(name, 100)}: {unknown('class', name, sorted(classes))}")
        return np.searchsorted(self._numbers, np.array(sorted(in_class), dtype=np.int64))

    def _warn_of_gone(self, answers: Sequence[Answer]) -> None:
        """Warn of answers whose files no longer exist; vectors are all in the collection."""
        if self._index.classes is not None:
            return
        paths: set[str] = set()
        for answer in answers:
            paths.update(answer.paths)
        gone = []
        for path in sorted(paths):
            if not os.path.exists(self.folder / in_shard(path)):
                gone.append(path)
        if gone:
            text = f"{len(gone)} of {len(paths)} answers are gone since they were indexed, {gone[0]} first"
            if not self.folder.is_dir():
                text = f"the indexed folder {self.folder} is gone or moved"
            warnings.warn(f"{text}; type: {self.again}", RetrievalWarning, stacklevel=4)

    def duplicates(self, radius: float = RADIUS) -> list[list[str]]:
        """Return the connected components of the images, where pairs within a radius are connected.

        *Cost:* with an ``IVF...,Flat`` index, an image is compared with the lists that a query searches. Otherwise all
        pairs are compared: 10,000 images take less than a second.
        """
        check_query(1, radius)
        points = self.embedded.embeddings
        paths = self.embedded.paths
        groups = np.arange(len(paths))  # the group of each image; each begins as a group of its own
        for pairs in self._pairs_nearly_within(points, radius):
            groups_of_pairs = torch.from_numpy(groups).to(pairs.device)[pairs]
            are_apart = groups_of_pairs[0] != groups_of_pairs[1]
            candidates = pairs[:, are_apart].to(points.device)
            is_near = []
            for one, other in torch.split(candidates, _PAIRS, 1):
                is_near.append((points[one] - points[other]).norm(dim=1) <= radius)
            near_pairs = candidates[:, torch.cat(is_near)].cpu().numpy()
            first, second = groups[near_pairs]
            if len(first):
                groups = _joined_groups(groups, first, second)

        members = [group for group in _members_of(groups) if len(group) > 1]
        members.sort(key=lambda group: (-len(group), group[0]))
        groups_of_paths = []
        for group in members:
            groups_of_paths.append([paths[number] for number in group])
        return groups_of_paths

    def _pairs_nearly_within(self, points: Tensor, radius: float) -> Iterator[Tensor]:
        """Yield pairs ``[2, P]`` that may be within a radius.

        A tolerance above the rounding error of float32 adds pairs that are slightly farther.
        """
        if self.faiss is not None and self.faiss.setting == "nprobe" and self.faiss.has_vectors:
            for start in range(0, len(points), _BLOCK):
                pairs = self.faiss.within(points[start : start + _BLOCK], radius**2 + 2e-5)
                yield pairs + torch.tensor([[start], [0]])
            return
        least_product = 1 - radius**2 / 2 - 1e-5  # |x - y|^2 = 2 - 2 x.y of embeddings of length 1
        for start in range(0, len(points), _TILE):
            rows = points[start : start + _TILE]
            for other in range(start, len(points), _TILE):
                near = rows @ points[other : other + _TILE].T >= least_product
                yield near.nonzero().T + torch.tensor([[start], [other]], device=points.device)


def _joined_groups(groups: Numbers, first: Numbers, second: Numbers) -> Numbers:
    """Return the group of each image, ``[N]``, after joins: of the groups ``first[0]`` and ``second[0]``, and so on."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    edges = np.ones(len(first), dtype=bool)
    graph = coo_array((edges, (first, second)), shape=(len(groups), len(groups)))
    _, joined = connected_components(graph, directed=False)
    return joined[groups]  # type: ignore[no-any-return]


def _members_of(groups: Numbers) -> list[list[int]]:
    """Return the images of each group, ascending, from the group of each image."""
    order = np.argsort(groups, kind="stable")
    ends = np.flatnonzero(np.diff(groups[order])) + 1
    return [members.tolist() for members in np.split(order, ends)]


def _nearest(
    search: Search, points: Tensor, count: int, vectors: Tensor, options: QueryOptions
) -> tuple[Tensor, Tensor]:
    """Return the distances of the nearest vectors to each point, and their rows or -1, ``[Q, count]``.

    A metric is computed for all vectors, or for the shortlist that ``search`` finds.
    """
    metric = options.metric
    if metric is not None and options.shortlist is not None:
        search = reranked_under(metric, options.shortlist, search, normalized=True).search
    elif metric is not None:
        search = neighbors_under(metric).search
    return search(points, count, vectors)


def _with_exact_distances(points: Tensor, vectors: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return exact distances of the found vectors and their rows or -1, ``[Q, k]``, nearest first.

    Compressed vectors of faiss have others, and so have products of many queries, by a thousandth for equal images.
    """
    distances = torch.full(places.shape, torch.inf, device=points.device)
    queries, found = places.shape
    size = points.shape[1]
    columns_at_once = max(1, _EXACT // size)
    queries_at_once = max(1, columns_at_once // max(1, found))
    for start in range(0, queries, queries_at_once):
        rows = slice(start, start + queries_at_once)
        for first in range(0, found, columns_at_once):
            columns = slice(first, first + columns_at_once)
            neighbors = vectors[places[rows, columns].clamp(min=0).to(vectors.device)]
            distances[rows, columns] = (neighbors - points[rows, None]).norm(dim=2)
    distances.masked_fill_((places < 0).to(distances.device), torch.inf)
    distances, order = distances.sort(dim=1, stable=True)
    return distances, places.to(order.device).gather(1, order)


def _rows_of(images: Sequence[Image | None], numbers: Numbers) -> Tensor:
    """Return the row of each image among the numbers of vectors, -1 for None and images that are not there."""
    rows = []
    for image in images:
        row = -1
        if image is not None:
            place = int(np.searchsorted(numbers, image.vector))
            if place < len(numbers) and numbers[place] == image.vector:
                row = place
        rows.append(row)
    return torch.tensor(rows, dtype=torch.int64)


def _within_radius(distances: Tensor, places: Tensor, radius: float, metric: BaseDistance | None) -> Tensor:
    """Return places with -1 for answers beyond a radius; of a similarity, for those below it."""
    values = distances.double()
    is_similarity = metric is not None and metric.is_inverted
    inside = values >= radius if is_similarity else values <= radius
    return places.where(inside, -1)


def _results(numbers: Numbers, distances: Tensor, images: Mapping[int, Image]) -> list[list[SearchResult]]:
    """Return what was found for each query, from the numbers of vectors (-1: none) and their distances."""
    results: list[list[SearchResult]] = []
    for row, values in zip(numbers.tolist(), distances.tolist(), strict=True):
        found = []
        for number, distance in zip(row, values, strict=True):
            if number != -1:
                image = images[number]
                found.append(SearchResult(image.id, image.path, image.class_name, distance))
        results.append(found)
    return results


def check_query(k: int, radius: float | None) -> None:
    """Raise ConfigError if the number of answers is below 1 or the radius is not above 0."""
    if k < 1:
        raise ConfigError(f"-k {k}: wanted 1 or more")
    if radius is not None and not radius > 0:  # NaN too
        raise ConfigError(f"--radius {radius:g}: wanted a distance above 0, of embeddings of length 1 at most 2")


def answers_of(
    names: Sequence[str],
    query_images: Sequence[Image | None],
    results: Sequence[Sequence[SearchResult]],
    options: QueryOptions,
    reason: str,
) -> list[Answer]:
    """Return the first k images found for each query, without the query itself; warn if there are fewer."""
    answers: list[Answer] = []
    for name, image, found in zip(names, query_images, results, strict=True):
        others = found
        if image is not None:  # ids are those of one collection, and a store may be filled from another
            own_path = _text(image.path)
            others = [result for result in found if _text(result.path) != own_path]
        kept = others[: options.k]
        query_class = None
        if image is not None:
            query_class = image.class_name or None  # an image in the folder itself has no class
        answer = Answer(
            query=name or f"image {len(answers)}",
            paths=[result.path for result in kept],
            distances=[result.distance for result in kept],
            classes=[result.class_name for result in kept],
            query_class=query_class,
            ids=[result.id for result in kept],
        )
        answers.append(answer)
    short = sum(len(answer.paths) < options.k for answer in answers)
    if short and options.where.radius is None:
        text = f"fewer than {options.k} answers for {short} of {len(answers)} queries: {reason}"
        warnings.warn(text, RetrievalWarning, stacklevel=4)
    return answers


# Stores


def is_store(text: str) -> bool:
    """Return whether a text is the address of a store, ``SCHEME:ADDRESS``, and not a folder."""
    return bool(SCHEME.fullmatch(text)) and not os.path.isdir(text)


def copy_to_store(embedded: Embedded, store: CheckedStore) -> Changes:
    """Write new and changed images into a store, and delete those that are not in the index.

    PluginError if the store then has another number of images.
    """
    ids = embedded.ids
    vectors = embedded.embeddings.cpu().numpy()
    checksums = _checksums_of(embedded, vectors)
    stored = store.checksums()
    before = np.array([stored.get(id, -1) for id in ids.tolist()], dtype=np.int64)  # -1: not in the store
    differs = np.flatnonzero(before != checksums)
    all_classes = embedded.classes

    def batches() -> Iterator[Rows]:
        for start in range(0, len(differs), BATCH):
            part: Numbers = differs[start : start + BATCH]
            names = [_text(embedded.paths[place]) for place in part]
            classes = [_text(all_classes[place]) for place in part]
            yield Rows(ids[part], checksums[part], names, classes, vectors[part])

    gone = sorted(stored.keys() - set(ids.tolist()))
    for start in range(0, len(gone), BATCH):
        store.delete(gone[start : start + BATCH])
    store.write(batches())  # also without batches: completes a database index that an interrupted write left incomplete
    store.check_count(len(ids))
    new = int((before < 0).sum())
    return Changes(new=new, changed=len(differs) - new, gone=len(gone), same=len(ids) - len(differs))


def _checksums_of(embedded: Embedded, vectors: Vectors) -> Numbers:
    """Return the checksum of each image's id, path, class, size, fingerprint and vector, ``[N]``."""
    checksums = []
    columns = (embedded.ids.tolist(), embedded.paths, embedded.classes, embedded.stats.tolist(), vectors)
    for id, path, class_name, size_and_mtime, vector in zip(*columns, strict=True):
        checksums.append(crc_of(vector.data, id, path_bytes(path), class_name, *size_and_mtime))
    return np.array(checksums)


def recall_of(embedded: Embedded, store: CheckedStore) -> float | None:
    """Return recall@10 of a store against exact search, on a sample of at most 200 images; None for fewer than 2.

    PluginError if the store finds an image that the index does not have, or gives it another distance.
    """
    if len(embedded.paths) < 2:
        return None
    places = {id: place for place, id in enumerate(embedded.ids.tolist())}
    embeddings = embedded.embeddings.cpu()

    def search(points: Tensor, k: int) -> Tensor:
        rows = []
        for point, found in zip(points.cpu(), store.search(points.cpu().numpy(), k, SearchFilter()), strict=True):
            store.check_ids([result.id for result in found], places)
            row = [places[result.id] for result in found]
            exact = (embeddings[row] - point).norm(dim=1).tolist()
            store.check_distances([result.distance for result in found], exact)
            missing = k - len(row)
            rows.append(row + [-1] * missing)
        return torch.tensor(rows)

    return RecallSample(embeddings).recall_at_10(search)


def answers_from(
    store: Store, gallery: Gallery | None, names: Sequence[str], points: Tensor, options: QueryOptions
) -> list[Answer]:
    """Return a store's answers to query embeddings, without the query itself if the gallery has it."""
    where = options.where
    if where.within is not None:
        where = where._replace(within=_text(where.within))
    query_images: list[Image | None] = [None] * len(names)
    if gallery is not None:
        query_images = gallery.images_of(names)
    results = store.search(points.cpu().numpy(), options.k + 1, where)
    of_class = ""
    if where.within is not None:
        of_class = f" of the class {printable(where.within)}"
        if len(points) and not any(results):
            _check_class(store, points, where.within)
    return answers_of(names, query_images, results, options, f"the store gave no more images{of_class}")


def _check_class(store: Store, points: Tensor, name: str) -> None:
    """Raise ConfigError if a store has no image of a class."""
    (any_of_class,) = store.search(points[:1].cpu().numpy(), 1, SearchFilter(name))
    if not any_of_class:
        raise ConfigError(f"--within {shortened(name, 100)}: no image of this class in the store")


# Many queries


def match(embedder: ImageEmbedder, work: Work, find: Answers, out: Path) -> tuple[int, int]:
    """Write the answers to all images of a listing; return the numbers of images and answers.

    Parquet has a row per answer (``query``, ``rank``, ``path``, ``class``, ``id``, ``distance``); JSON lines have an
    object per image. An existing file is replaced once all answers are written.
    """
    from .parts import embeddings_of, tables

    def batches() -> Iterator[list[tuple[str, Answer]]]:
        for _, table in tables(embedder, work, range(len(work.segments))):
            names: list[str] = table["path"].to_pylist()
            points = torch.from_numpy(embeddings_of(table).copy())
            found: list[Answer] = []
            if names:
                found = find([os.path.join(work.folder, name) for name in names], points)
            yield list(zip(names, found, strict=True))

    return _write_answers(batches(), out)


def match_vectors(
    embedder: VectorEmbedder, file: VectorFile, find: Answers, out: Path, names: Sequence[str]
) -> tuple[int, int]:
    """Write the answers to all vectors of a file as :func:`match`; return the numbers of vectors and answers.

    ``names`` are those by which the index knows the vectors, "" for one that it does not have.
    """

    def batches() -> Iterator[list[tuple[str, Answer]]]:
        for start in range(0, len(file.ids), _TILE):
            rows = slice(start, start + _TILE)
            points = embedder.embed(file.embeddings[rows], file.ids[rows])
            found = find(names[rows], points)
            yield list(zip(file.ids[rows].tolist(), found, strict=True))

    return _write_answers(batches(), out)


def _write_answers(answers: Iterator[list[tuple[str, Answer]]], out: Path) -> tuple[int, int]:
    """Write answers by the names of their queries; return the numbers of both."""
    counts = _Counts()

    def counted_batches() -> Iterator[list[tuple[str, Answer]]]:
        for batch in answers:
            counts.queries += len(batch)
            for _, answer in batch:
                counts.answers += len(answer.paths)
            yield batch

    out.parent.mkdir(parents=True, exist_ok=True)
    write = _write_parquet if out.suffix == ".parquet" else _write_lines
    write_atomically(out, functools.partial(write, batches=counted_batches()))
    return counts.queries, counts.answers


@dataclasses.dataclass
class _Counts:
    """Numbers of queries and answers that were written."""

    queries: int = 0
    answers: int = 0


def _write_lines(path: Path, batches: Iterator[list[tuple[str, Answer]]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for name, answer in itertools.chain.from_iterable(batches):
            about = {
                "query": name,
                "paths": answer.paths,
                "classes": answer.classes,
                "ids": answer.ids,
                "distances": answer.distances,
            }
            file.write(json.dumps(about) + "\n")


def _write_parquet(path: Path, batches: Iterator[list[tuple[str, Answer]]]) -> None:
    with needs_extra("parquet", "-o FILE.parquet"):
        import pyarrow
        import pyarrow.parquet as parquet

    schema = pyarrow.schema(
        [
            ("query", pyarrow.string()),
            ("rank", pyarrow.int32()),
            ("path", pyarrow.string()),
            ("class", pyarrow.string()),
            ("id", pyarrow.int64()),
            ("distance", pyarrow.float32()),
        ]
    )
    with parquet.ParquetWriter(path, schema) as writer:
        for batch in batches:
            rows: list[dict[str, Any]] = []
            for name, answer in batch:
                rows.extend(_parquet_rows(name, answer))
            writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))


def _parquet_rows(name: str, answer: Answer) -> Iterator[dict[str, Any]]:
    """Yield a row for each image of an answer."""
    columns = zip(answer.paths, answer.classes, answer.ids, answer.distances, strict=True)
    for rank, (path, class_name, id, distance) in enumerate(columns, start=1):
        yield {
            "query": name,
            "rank": rank,
            "path": _text(path),
            "class": _text(class_name),
            "id": id,
            "distance": distance,
        }


def _text(path: str) -> str:
    """Return a path as text in UTF-8; bytes of its name that are none are escaped."""
    return path_bytes(path).decode("utf-8", "backslashreplace")
