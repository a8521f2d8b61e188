"""Known or new: which enrolled class a photograph shows, if any."""

from __future__ import annotations

import dataclasses
import functools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from pml_ext.errors import ConfigError, DataError
from pml_ext_train.data import is_vector_file

from ..collection.problems import RetrievalWarning
from ..embedding.reading import as_images
from ..query.queries import names_in_index
from ..query.query import check_query
from .calibration import (
    FAR,
    Calibration,
    Enrolled,
    Wanted,
    calibrated,
    read_calibration,
    shared_pictures,
    why_stale,
    write_calibration,
)
from .class_moves import former_names
from .measured_threshold import record
from .open_set import NEAREST, Nearest, metrics_of
from .refitting import refit_of
from .trained_classes import trained_classes

if TYPE_CHECKING:
    from pml_ext_train.results import LoadedRun

    from ..collection.embedded import Embedded
    from ..query.search_index import SearchIndex

BEST_ACCURACY = "best-accuracy"
Rate = float | str | None  # a rate of false acceptances, "best-accuracy", or None for what is kept


@dataclasses.dataclass(frozen=True)
class Identified:
    """Whether a photograph shows an enrolled class, and the nearest classes, nearest first."""

    query: str  # path or number of the photograph
    name: str | None  # of the class; None: new
    classes: list[str]
    distances: list[float]  # to the classes, Euclidean, of embeddings of length 1
    paths: list[str]  # the nearest image of each class
    threshold: float  # the greatest distance of a known photograph

    @property
    def known(self) -> bool:
        """Whether it shows an enrolled class."""
        return self.name is not None

    def as_json(self) -> dict[str, Any]:
        """What ``identify --json`` prints."""
        return {"query": self.query, "known": self.known} | {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "query"
        }


@dataclasses.dataclass(frozen=True)
class Scored:
    """Open-set metrics of a folder of photographs with known classes."""

    folder: str
    known: int  # photographs of enrolled classes
    new: int  # photographs of other classes
    threshold: float
    metrics: dict[str, float]  # by the names of :mod:`pml_ext_search.open_set.open_set`


@dataclasses.dataclass(frozen=True)
class Queries:
    """Photographs or vectors to identify."""

    names: list[str]
    points: Tensor  # embeddings, [Q, D]
    keys: list[str | None]  # the path in the index of each that is indexed
    classes: list[str]  # "" for none
    place: str  # the folder or file that they are from


class Identifier:
    """The enrolled classes of an index, and the threshold that its collection keeps.

    With a run, its training classes do not stand for new individuals. ``say`` prints when and why the threshold is
    calibrated.
    """

    def __init__(self, index: SearchIndex, run: LoadedRun | None, say: Callable[[str], None]) -> None:
        self._index = index
        self._run = run
        self._say = say
        self._embedded = index.indexed_images()
        self._root = self._embedded.folder.resolve()
        self.enrolled = Enrolled(self._embedded)
        paths = [self._embedded.paths[row] for row in self.enrolled.rows]
        self._row_of_path: dict[str | None, int] = {path: row for row, path in enumerate(paths)}

    def calibration(
        self, far: Rate = None, nearest: Nearest | None = None, on: str | Path | None = None
    ) -> Calibration:
        """The threshold; calibrated if it is missing, out of date, or not the one asked for."""
        if nearest is not None and nearest not in NEAREST:
            raise ConfigError(f"--nearest {nearest}: wanted center or image")
        kept = read_calibration(self._index.place)
        rate: float | None = FAR
        if kept is not None:
            rate = kept.far
            nearest = nearest or kept.nearest
            on = on or kept.folder
            stale = why_stale(kept, self._index.collection.identity, self._embedded)
            same = nearest == kept.nearest
            if far is not None:  # a rate that was typed is kept, not the smallest that so few classes can promise
                wanted = rate_of(far)
                same = same and wanted == kept.far and (wanted is None or kept.expected <= wanted)
            if same and not stale and on == kept.folder:
                return kept
            if stale:
                self._say(f"the threshold of known or new is calibrated again: {stale}")
        if far is not None:
            rate = rate_of(far)
        others = self._others(on)
        shared, line = shared_pictures(self._embedded)
        if line:
            self._say(line)
        collection = self._index.collection
        asked = Wanted(rate, nearest or "center", strict=far is not None)
        former = former_names(self._root)
        trained = functools.partial(trained_classes, self._run, collection.by, former=former)
        refit = None if self._run is None else refit_of(self._index, self._run.recipe)
        enrolled = Enrolled(self._embedded, shared)
        found = calibrated(enrolled, collection.identity, collection.by, asked, trained, others, refit)
        write_calibration(self._index.place, found)
        if collection.is_in_run and self._run is not None and collection.cut is None:  # metrics are of whole embeddings
            record(self._run.folder, found, self._say)
        self._say(str(found))
        return found

    def _others(self, on: str | Path | None) -> Embedded | None:
        if on is None:
            return None
        if self._index.takes_vectors:
            return self._index.vectors.embedded(Path(on))
        return self._index.embed_folder(on)

    def threshold(self, far: Rate, radius: float | None, nearest: Nearest | None) -> tuple[float, Nearest]:
        """The greatest distance of a known photograph, and whether it is to a center or an image."""
        check_query(1, radius)
        if radius is None:
            calibration = self.calibration(far, nearest)
            return calibration.threshold, calibration.nearest
        if far is not None:
            raise ConfigError("--far calibrates a threshold, and --radius sets one; leave out one of them")
        if nearest is not None and nearest not in NEAREST:
            raise ConfigError(f"--nearest {nearest}: wanted center or image")
        return radius, nearest or "center"

    def queries(self, images: Any) -> Queries:
        """Embed photographs or vectors."""
        index = self._index
        if index.takes_vectors:
            if isinstance(images, (str, os.PathLike)):
                return self.labelled(Path(images))
            points = index.vectors.embed(images)
            names = [f"vector {number}" for number in range(len(points))]
            return Queries(names, points, [None] * len(points), [""] * len(points), "")
        if isinstance(images, (str, Path)) and Path(images).is_dir():
            return self.labelled(Path(images))
        items = list(as_images(images))
        is_path = [isinstance(item, (str, os.PathLike)) for item in items]
        names = [os.fspath(item) if is_path[number] else f"image {number}" for number, item in enumerate(items)]
        keys = [self._key_of(name) if is_path[number] else None for number, name in enumerate(names)]
        return Queries(names, index.embed(items), keys, [""] * len(items), "")

    def each(self, places: Sequence[str | Path]) -> Iterator[Queries]:
        """Embed photographs together, and folders or files of vectors one by one."""
        single: list[str | Path] = []
        for place in places:
            if self._index.takes_vectors or Path(place).is_dir():
                yield self.queries(place)
            else:
                single.append(place)
        if single:
            yield self.queries(single)

    def labelled(self, place: Path) -> Queries:
        """Embed a folder of photographs, or a file of vectors, with their classes."""
        index = self._index
        if not index.takes_vectors:
            embedded = index.embed_folder(place)
            names = [os.path.join(embedded.folder, path) for path in embedded.paths]
            keys = [self._key_of(name) for name in names]
            return Queries(names, embedded.embeddings, keys, list(embedded.classes), str(embedded.folder))
        if not is_vector_file(place):
            raise ConfigError(f"{place}: {index.collection.run} was trained on vectors; wanted a file of vectors")
        file = index.vectors.read(place)
        embedded = index.vectors.embedded(place)
        keys = [name or None for name in names_in_index(index.gallery(), file)]
        return Queries(list(embedded.paths), embedded.embeddings, keys, list(embedded.classes), str(place))

    def identified(self, queries: Queries, k: int, threshold: float, nearest: Nearest) -> list[Identified]:
        """Which class each photograph shows."""
        check_query(k, None)
        own = [self._row_of_path.get(key) for key in queries.keys]  # of those that are enrolled
        distances = self.enrolled.classes(nearest).distances(queries.points, own)
        order = np.argsort(distances, axis=1, kind="stable")[:, :k]
        answers = []
        for place, query in enumerate(queries.names):
            chosen = [number for number in order[place].tolist() if np.isfinite(distances[place, number])]
            is_known = distances[place].min() <= threshold
            point = queries.points[place]
            answer = Identified(
                query=query,
                name=self.enrolled.names[int(order[place, 0])] if is_known else None,
                classes=[self.enrolled.names[number] for number in chosen],
                distances=[float(distances[place, number]) for number in chosen],
                paths=[self._nearest_path(point, number, own[place]) for number in chosen],
                threshold=threshold,
            )
            answers.append(answer)
        return answers

    def _nearest_path(self, point: Tensor, number: int, own: int | None) -> str:
        """The path of the class's image nearest to a point, without its own image."""
        places = np.flatnonzero(self.enrolled.numbers == number)
        places = places[places != (-1 if own is None else own)]
        rows = self.enrolled.rows[places]
        found = (self._embedded.embeddings[rows] - point.to(self._embedded.embeddings.device)).norm(dim=1).argmin()
        return self._embedded.paths[int(rows[int(found)])]

    def scored(self, queries: Queries, threshold: float, nearest: Nearest) -> Scored:
        """Open-set metrics of photographs with classes; indexed ones are left out of the index."""
        rows = [row for row, name in enumerate(queries.classes) if name]
        if not rows:
            raise DataError(f"{queries.place}: no photograph in it has a class; --score needs a sub-folder per class")
        labels = [queries.classes[row] for row in rows]
        own = [self._row_of_path.get(queries.keys[row]) for row in rows]
        distances = self.enrolled.classes(nearest).distances(queries.points[rows], own)
        classes: list[int | None] = []
        for place, label in enumerate(labels):
            number = self.enrolled.numbers_of_names.get(label)
            if number is not None and not np.isfinite(distances[place, number]):
                number = None  # the only image of its class: without it, the class is not enrolled
            classes.append(number)
        known = sum(number is not None for number in classes)
        metrics = metrics_of(distances, classes, threshold, labels)
        return Scored(queries.place, known, len(rows) - known, threshold, metrics)

    def _key_of(self, name: str) -> str | None:
        parent, last = os.path.split(name)
        place = Path(os.path.realpath(parent), last)
        return place.relative_to(self._root).as_posix() if place.is_relative_to(self._root) else None


def tell(text: str) -> None:
    """Warn of a calibration."""
    warnings.warn(text, RetrievalWarning, stacklevel=5)


def rate_of(far: float | str) -> float | None:
    """A rate of false acceptances, or None for ``"best-accuracy"``."""
    if far == BEST_ACCURACY:
        return None
    try:
        rate = float(far)
    except ValueError:
        rate = float("nan")
    if not 0 < rate < 1:
        raise ConfigError(f"--far {far}: wanted a rate between 0 and 1, such as 0.01, or {BEST_ACCURACY}")
    return rate
