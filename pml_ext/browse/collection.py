"""What there is to see of a run's index: nearest images, clusters, a map, right and wrong answers, small pictures."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import os
import threading
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ..errors import DataError
from ..evaluation import default_neighbors
from ..evaluation.drawing import directions, some_of
from ..evaluation.maps import ONE_POINT, flattened
from ..retrieval import Gallery, Grouping, TrainedRun, group, placeholder, thumbnail

MAPPED = {"tsne": 1500, "pca": 5000}  # images on a map at most: t-SNE takes five seconds then
JUDGED, PAIRS = 1000, 2_000_000_000  # images whose nearest is sought: at least; image pairs that are compared at most
_KEPT = 4096  # small pictures that are kept


@dataclasses.dataclass(frozen=True)
class Near:
    """An image beside a query.

    Args:
        number: of the image in its collection.
        path: relative to the folder.
        name: its class; "" where it has none.
        distance: Euclidean, of normalized embeddings.
        right: whether its class is the query's; None where one of both is not known.
    """

    number: int
    path: str
    name: str
    distance: float
    right: bool | None


@dataclasses.dataclass(frozen=True)
class Map:
    """Images in two dimensions.

    Args:
        numbers: of the images, ``[N]``, rising; a sample of a large collection.
        places: ``[N, 2]``, from 0 to 1.
        note: what was done, in words.
    """

    numbers: NDArray[np.int64]
    places: NDArray[np.float32]
    note: str


@dataclasses.dataclass(frozen=True)
class Judged:
    """Images and the nearest other image of each, where the classes of both are known.

    Args:
        numbers: of the images, ``[N]``; a sample of a large collection.
        nearest: the number of each one's nearest, ``[N]``.
        distances: between both, ``[N]``.
        right: whether both are of one class, ``[N]``.
        note: which images these are, in words.
    """

    numbers: NDArray[np.int64]
    nearest: NDArray[np.int64]
    distances: NDArray[np.float32]
    right: NDArray[np.bool_]
    note: str

    def order(self, right: bool) -> list[int]:
        """Places of the right or of the wrong ones; the nearest first, where the run is surest."""
        places = np.flatnonzero(self.right == right)
        ordered: list[int] = places[np.argsort(self.distances[places], kind="stable")].tolist()
        return ordered


class Collection:
    """The index of a run, to look at.

    Nothing but small pictures of indexed images is ever read from the disk, and none whose file lies, links resolved,
    outside the indexed folder.

    Args:
        name: of the run, for titles.
        run: that embedded the images.
        gallery: its index.
    """

    def __init__(self, name: str, run: TrainedRun, gallery: Gallery) -> None:
        self.name, self.run, self.gallery = name, run, gallery
        self.paths, self.classes = gallery.embedded.paths, gallery.embedded.classes
        self.folder = gallery.embedded.folder
        self.points = gallery.embedded.embeddings.cpu()
        self.has_classes = any(self.classes)
        self._root = self.folder.resolve()
        self._lock = threading.Lock()  # of what takes seconds, and two tabs may ask for
        self._grouping: tuple[int | str, Grouping] | None = None
        self._judged: Judged | None = None
        self._maps: dict[str, Map] = {}
        self.jpeg = functools.lru_cache(_KEPT)(self._jpeg)

    def __len__(self) -> int:
        return len(self.paths)

    # Nearest images

    def nearest(self, number: int, k: int) -> list[Near]:
        """The nearest other images of an indexed one, by its stored embedding: its file may be gone.

        Args:
            number: of the image.
            k: how many; all there are, where these are fewer.

        Raises:
            DataError: no image of that number.
        """
        self._check(number)
        point, name = self.points[number], self.classes[number]
        similarity = self.points @ point  # of vectors of length 1
        similarity[number] = -torch.inf
        others = similarity.topk(min(k, len(self) - 1)).indices
        distances = (self.points[others] - point).norm(dim=1)  # of duplicates exactly 0
        order = distances.argsort(stable=True)
        pairs = zip(others[order].tolist(), distances[order].tolist(), strict=True)
        return [self._near(other, distance, name) for other, distance in pairs]

    def nearest_to_file(self, file: Path, k: int) -> list[Near]:
        """The nearest images of a photograph that somebody brings; one that is indexed is no answer to itself.

        Args:
            file: the photograph.
            k: how many; all there are, where these are fewer.

        Raises:
            DataError: it cannot be read.
        """
        (answer,) = self.run.query([file], max(1, min(k, len(self))), self.gallery)
        return [
            self._near(self.numbers[path], distance, answer.query_class or "")
            for path, distance in zip(answer.paths, answer.distances, strict=True)
        ]

    def _near(self, number: int, distance: float, query_class: str) -> Near:
        name = self.classes[number]
        right = name == query_class if name and query_class else None
        return Near(number, self.paths[number], name, distance, right)

    @functools.cached_property
    def numbers(self) -> dict[str, int]:
        """The number of every path."""
        return {path: number for number, path in enumerate(self.paths)}

    def _check(self, number: int) -> None:
        if not 0 <= number < len(self):
            raise DataError(f"no image number {number}; the index of {self.name} has {len(self)}")

    # Clusters, a map, right and wrong

    def clusters(self, clusters: int | str) -> Grouping:
        """The clusters of all images; see :func:`pml_ext.retrieval.group`. The last ones are kept.

        Args:
            clusters: how many, or ``"auto"``.

        Raises:
            ConfigError: a number that the images cannot have.
        """
        with self._lock:
            if self._grouping is None or self._grouping[0] != clusters:
                self._grouping = clusters, group(self.gallery.embedded, clusters)
            return self._grouping[1]

    def map(self, method: str) -> Map:
        """Images in two dimensions: all, or a sample of a large collection.

        Args:
            method: ``"tsne"`` or ``"pca"``.
        """
        with self._lock:
            if method not in self._maps:
                self._maps[method] = self._map(method)
            return self._maps[method]

    def _map(self, method: str) -> Map:
        chosen = some_of(len(self), MAPPED[method], seed=0)
        points = directions(self.points[chosen]).numpy()
        how = {"tsne": "t-SNE", "pca": "principal components"}[method]
        drawn = f"{len(chosen):,} of {len(self):,} images, drawn at random" if len(chosen) < len(self) else "all images"
        if len(points) < 2 or bool(np.ptp(points, axis=0).max() <= ONE_POINT):
            flat = np.full((len(points), 2), 0.5, dtype=np.float32)
            return Map(chosen.numpy(), flat, f"{drawn}: they lie on one point")
        flat = flattened(points, method)
        flat = (flat - flat.min(axis=0)) / max(float(np.ptp(flat, axis=0).max()), 1e-12)
        flat = flat + (1 - flat.max(axis=0)) / 2  # the shorter side in the middle
        return Map(chosen.numpy(), flat.astype(np.float32), f"{drawn}; {how}")

    def judged(self) -> Judged:
        """The nearest other image of each, and whether it is of the same class.

        Where the collection is so large that two billion pairs do not reach for all, 1,000 images or more are drawn.

        Raises:
            DataError: the folder has no sub-folder per class.
        """
        if not self.has_classes or len(self) < 2:
            raise DataError(f"{self.folder}: right and wrong need a sub-folder per class")
        with self._lock:
            if self._judged is None:
                self._judged = self._judge()
            return self._judged

    def _judge(self) -> Judged:
        known = torch.tensor([bool(name) for name in self.classes]).nonzero().flatten()
        chosen = known[some_of(len(known), max(JUDGED, PAIRS // len(self)), seed=0)]
        distances, nearest = default_neighbors().search(self.points[chosen], 2, self.points)
        own = nearest[:, 0] == chosen  # an exact duplicate may come before the image itself
        other = torch.where(own, nearest[:, 1], nearest[:, 0])
        apart = torch.where(own, distances[:, 1], distances[:, 0])
        pairs = zip(chosen.tolist(), other.tolist(), strict=True)
        right = [self.classes[one] == self.classes[two] for one, two in pairs]
        note = "all images" if len(chosen) == len(self) else f"{len(chosen)} of {len(self)} images, drawn at random"
        if len(chosen) == len(known) < len(self):
            note = f"the {len(known)} of {len(self)} images that have a class"
        return Judged(chosen.numpy(), other.numpy(), apart.numpy(), np.array(right, dtype=bool), note)

    # Pictures

    def missing(self) -> list[str]:
        """Paths of indexed images that are not there any more, or lead out of the folder.

        *Cost:* a look at the disk for each: a second for 100,000.
        """
        return [path for path in self.paths if self._inside(path) is None]

    def _inside(self, path: str) -> Path | None:
        """Where a file lies, links resolved; None where it is not there, or lies outside the folder."""
        try:
            file = Path(os.path.realpath(self.folder / path, strict=True))
        except (OSError, ValueError):  # gone, a circle of links, a name that the system refuses
            return None
        return file if file.is_relative_to(self._root) else None

    def _jpeg(self, number: int, longest: int) -> bytes:
        """A small picture of an indexed image; a placeholder where there is none to show.

        Args:
            number: of the image.
            longest: pixels of its longer side at most.

        Raises:
            DataError: no image of that number.
        """
        self._check(number)
        file, buffer = self._inside(self.paths[number]), io.BytesIO()
        image = placeholder(longest)
        if file is not None:
            with contextlib.suppress(DataError):  # damaged meanwhile: a placeholder too
                image = enlarged(thumbnail(file, longest=longest), longest)
        image.convert("RGB").save(buffer, "JPEG", quality=85)
        return buffer.getvalue()


def enlarged(image: Image.Image, longest: int) -> Image.Image:
    """A drawing of a few pixels with its pixels to be seen; others as they are."""
    factor = longest // max(image.size)
    if factor < 2:
        return image
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
