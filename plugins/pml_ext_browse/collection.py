"""The content of the page: nearest images, clusters, a map, answers, thumbnails."""

import contextlib
import functools
import io
import os
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from pml_ext.errors import ConfigError, DataError, PmlExtError, shortened
from pml_ext.evaluation import nearest_of, sample_indices, without
from pml_ext.registry import service
from pml_ext_train.data import placeholder, thumbnail
from pml_ext_train.files import composed, file_and_page, read_json, same_names
from pml_ext_train.report import flattened
from pml_ext_train.retrieval import EmbeddedImages, ImageClusters, Mirror, SearchedRun, SearchFilter, SearchService

MAP_LIMITS = {"tsne": 1500, "pca": 5000}  # maximum images on a map; t-SNE takes five seconds for 1,500
MIN_QUERIES = 1000  # of the leave-one-out search in a large collection
MAX_PAIRS = 2_000_000_000  # that this search compares
_READING = threading.BoundedSemaphore(4)  # images decoded concurrently


class Part(NamedTuple):
    """The part of a collection that is shown."""

    unseen: bool = False  # only classes that the run was not trained on
    folder: str = ""  # only images below this sub-folder


ALL = Part()


class Neighbor(NamedTuple):
    """An image near a query; ``same_class`` is None if either class is unknown."""

    number: int
    path: str
    class_name: str
    distance: float
    same_class: bool | None


class Identity(NamedTuple):
    """The class that a photograph shows; ``reason`` says why ``nearest`` is unknown."""

    known: bool
    nearest: str | None
    distance: float
    threshold: float  # the greatest distance of a known photograph
    reason: str


class Pair(NamedTuple):
    """A query with a class and its nearest other image, by number."""

    query: int
    nearest: int
    distance: float
    right: bool  # whether both have the same class
    trained: bool | None  # whether the run was trained on the query's class; None if unknown


class Suspicion(NamedTuple):
    """An image that looks like another class."""

    number: int
    given: str
    likely: str
    margin: float  # by how much the likely class is more similar


class BrowsedRun:
    """Embedded images of a run; thumbnails are read only from inside the folder."""

    def __init__(self, name: str, run: SearchedRun, embedded: EmbeddedImages, store: Mirror | None = None) -> None:
        self.name = name
        self.run = run
        self.embedded = embedded
        self.store = store
        self.paths = embedded.paths
        self.classes = embedded.classes
        self.folder = embedded.folder
        self.embeddings = embedded.embeddings.cpu()
        self.class_names = sorted(set(self.classes) - {""})
        self.numbers = {path: number for number, path in enumerate(self.paths)}
        self._clusters = functools.lru_cache(2)(self._group)
        self.projection = functools.lru_cache(16)(self._projection)
        self._below = functools.lru_cache(16)(self._below_folder)
        self.leave_one_out = functools.cache(self._leave_one_out)
        self.jpeg = functools.lru_cache(1024)(self._jpeg)

    def __len__(self) -> int:
        return len(self.paths)

    @functools.cached_property
    def trained(self) -> dict[str, bool | None]:
        """Whether the run was trained on each class; None if that is not recorded."""
        recorded = read_json(self.run.folder / "network.json").get("class_names", ())
        if not recorded:
            return dict.fromkeys(self.class_names)
        trained = same_names(self.class_names, recorded)
        return {name: name in trained for name in self.class_names}

    @functools.cached_property
    def folders(self) -> list[str]:
        """The sub-folders that have images, at any depth."""
        return folders_of([composed(path) for path in self.paths])

    def shown(self, part: Part = ALL) -> Tensor:
        """The numbers of the images of a part; ConfigError for an empty sub-folder."""
        below = self._below(part.folder)
        if not part.unseen:
            return below
        chosen = [self.trained.get(self.classes[number]) is False for number in below.tolist()]
        return below[torch.tensor(chosen, dtype=torch.bool)]

    def _below_folder(self, folder: str) -> Tensor:
        if not folder:
            return torch.arange(len(self))
        start = f"{composed(folder)}/"
        below = [number for number, path in enumerate(self.paths) if composed(path).startswith(start)]
        if not below:
            name = shortened(folder, 80)
            raise ConfigError(f"folder={name}: no image of {self.folder} is below it; wanted a sub-folder with images")
        return torch.tensor(below)

    def nearest(self, image: int | str, k: int, folder: str = "") -> list[Neighbor]:
        """The nearest other images of an indexed image, by number or path, below ``folder``."""
        number = self.numbers.get(image) if isinstance(image, str) else image
        if number is None:  # indexed by another run only
            return self.nearest_to_file(self.folder / str(image), k, folder)
        return self._nearest(self.embeddings[number], number, k, folder)

    def number_of(self, path: str) -> int:
        """The number of an image, or of the first page of a file."""
        return self.numbers[path] if path in self.numbers else self.numbers[f"{path}#1"]

    def others_of_class(self, path: str, folder: str = "") -> int:
        """How many other images have the class of an image."""
        number = self.numbers.get(path)
        if number is None or not self.classes[number]:
            return 0
        name = self.classes[number]
        same = [other for other in self._below(folder).tolist() if self.classes[other] == name]
        return len(same) - (number in same)

    def nearest_to_file(self, file: Path, k: int, folder: str = "") -> list[Neighbor]:
        """The nearest images of a photograph."""
        (point,) = self.run.embed(file).cpu()
        path = os.path.relpath(os.path.realpath(file), self.folder.resolve())
        return self._nearest(point, self.numbers.get(path), k, folder)

    def identity(self, file: Path) -> Identity | None:
        """Whether a photograph shows a class of the index; None without classes."""
        if not self.class_names:
            return None
        try:
            indexed = self.run.indexed_images()
            if indexed.folder.resolve() != self.folder.resolve() or list(indexed.paths) != list(self.paths):
                raise DataError(f"the index of {self.run.folder} has other images than this page")
            (found,) = self.run.identify([file], 1)
        except (PmlExtError, OSError) as error:
            return Identity(False, None, float("nan"), float("nan"), str(error))
        return Identity(found.known, found.classes[0], found.distances[0], found.threshold, "")

    def _nearest(self, point: Tensor, query: int | None, k: int, folder: str) -> list[Neighbor]:
        """The nearest images of a point, without its own. Stores cannot filter by sub-folder."""
        if folder:
            below = self._below(folder)
            similarity = self.embeddings[below] @ point
            numbers = below[similarity.topk(min(k + 1, len(below))).indices].tolist()
        elif self.store is not None:
            (found,) = self.store.search(point.numpy()[None], k + 1, SearchFilter())
            numbers = [self.numbers[each.path] for each in found if each.path in self.numbers]
        else:
            similarity = self.embeddings @ point  # cosine similarity, since vectors have length 1
            numbers = similarity.topk(min(k + 1, len(self))).indices.tolist()
        if query in numbers:
            numbers.remove(query)
        others = torch.tensor(numbers[:k], dtype=torch.int64)
        distances = (self.embeddings[others] - point).norm(dim=1)  # exactly 0 for duplicates
        order = distances.argsort(stable=True)
        query_class = self.classes[query] if query is not None else ""
        neighbors = list[Neighbor]()
        for number, distance in zip(others[order].tolist(), distances[order].tolist(), strict=True):
            name = self.classes[number]
            same = name == query_class if name and query_class else None
            neighbors.append(Neighbor(number, self.paths[number], name, distance, same))
        return neighbors

    def clusters(
        self, clusters: int | str, folder: str = "", min_size: int = 1, joined: Sequence[Sequence[int]] = ()
    ) -> ImageClusters:
        """Clusters of the images below ``folder``; smaller ones go to the rest, and some are ``joined``."""
        grouping = self._clusters(clusters, folder, min_size)
        return grouping.joined(joined) if joined else grouping

    def _group(self, clusters: int | str, folder: str, min_size: int) -> ImageClusters:
        chosen = self._below(folder).tolist() if folder else None
        return self.run.group(self.embedded, clusters, chosen, min_size)

    @functools.cached_property
    def suspicious(self) -> list[Suspicion]:
        """The images that are more similar to another class than to their own, the most suspicious first."""
        found = self.run.suspicious_labels(images=self.embedded)
        columns = zip(found.rows, found.classes, found.likely, found.margins.tolist(), strict=True)
        return [Suspicion(*row) for row in columns][: found.count]

    def _projection(self, method: str, part: Part = ALL) -> tuple[NDArray[np.int64], NDArray[np.float32], str]:
        """A map: numbers ``[N]``, positions in 0 to 1 ``[N, 2]``, and a note."""
        shown = self.shown(part)
        chosen = shown[sample_indices(len(shown), MAP_LIMITS[method], seed=0)]
        classes = " of unseen classes" if part.unseen else ""
        if len(chosen) < len(shown):
            note = f"{len(chosen):,} of {len(shown):,} images{classes}, drawn at random"
        else:
            note = f"All images{classes}"
        flat = flattened(self.embeddings[chosen].numpy(), method)
        extent = float(np.ptp(flat, axis=0).max())
        flat = (flat - flat.min(axis=0)) / max(extent, 1e-12)
        flat += (1 - flat.max(axis=0)) / 2  # center the shorter side
        if extent:
            note += {"tsne": "; t-SNE", "pca": "; principal components"}[method]
        else:
            note += "; they lie on one point"
        return chosen.numpy(), flat.astype(np.float32), note

    def _leave_one_out(self) -> tuple[list[Pair], str]:
        """Pairs of an image and the nearest other one, by distance, and a note."""
        known = torch.tensor([bool(name) for name in self.classes]).nonzero().flatten()
        if len(known) < 2:
            raise DataError(f"{self.folder}: right and wrong answers need two images with a class, a sub-folder each")
        chosen = known[sample_indices(len(known), max(MIN_QUERIES, MAX_PAIRS // len(self)), seed=0)]
        distances, neighbors = nearest_of(self.embeddings[chosen], 2, self.embeddings[known])
        distances, others = without(chosen, distances, known[neighbors])
        note = f"{len(chosen):,} of {len(self):,} images" if len(chosen) < len(self) else f"all {len(self):,} images"
        if len(known) < len(self):
            note += " that have a class"
        if len(chosen) < len(known):
            note += ", drawn at random"
        names = self.classes
        pairs = [
            Pair(query, other, distance, names[query] == names[other], self.trained[names[query]])
            for query, (other,), (distance,) in zip(chosen.tolist(), others.tolist(), distances.tolist(), strict=True)
        ]
        return sorted(pairs, key=lambda pair: pair.distance), note

    def pairs(self, part: Part = ALL) -> list[Pair]:
        """The pairs of :meth:`leave_one_out` whose query belongs to a part."""
        pairs, _ = self.leave_one_out()
        if part == ALL:
            return pairs
        shown = set(self.shown(part).tolist())
        return [pair for pair in pairs if pair.query in shown]

    def recall(self, part: Part = ALL) -> list[tuple[str, int, int]]:
        """Name, right answers and queries of trained and unseen classes."""
        names = {True: "classes of training", False: "unseen classes", None: "all classes (training classes unknown)"}
        pairs = self.pairs(part)
        rows = []
        for trained, name in names.items():
            right = [pair.right for pair in pairs if pair.trained is trained]
            if right:
                rows.append((name, sum(right), len(right)))
        return rows

    def confusions(self, part: Part = ALL) -> list[tuple[str, str, int]]:
        """The five most frequent wrong answers: class of the query, class found, count."""
        wrong = [pair for pair in self.pairs(part) if not pair.right]
        counts = Counter((self.classes[pair.query], self.classes[pair.nearest]) for pair in wrong)
        return [(*names, count) for names, count in counts.most_common(5)]

    @functools.cached_property
    def missing(self) -> list[str]:
        """Paths of images that are missing or outside the folder."""
        return [path for path in self.paths if self._inside(path) is None]

    def _inside(self, path: str) -> Path | None:
        """A file's path without links; None if it is missing or outside the folder."""
        try:
            named, page = file_and_page(self.folder / path)
            file = Path(os.path.realpath(named, strict=True))
        except (OSError, ValueError):  # missing, a loop of links, or an invalid name
            return None
        if file.is_relative_to(self.folder.resolve()):
            return file if page == 1 else file.with_name(f"{file.name}#{page}")
        return None

    def _jpeg(self, number: int, longest: int) -> bytes:
        """A thumbnail as JPEG, or a placeholder."""
        file = self._inside(self.paths[number])
        image = placeholder(longest)
        if file is not None:
            with contextlib.suppress(DataError), _READING:  # a damaged file: keep the placeholder
                image = thumbnail(file, longest=longest)
        return jpeg(image, longest)


def folders_of(paths: Sequence[str]) -> list[str]:
    """The folders of paths and their parent folders, sorted."""
    found: set[str] = set()
    for path in paths:
        found.update(map(str, PurePosixPath(path).parents))
    return sorted(found - {"."})


def jpeg(image: Image.Image, longest: int) -> bytes:
    """An image as JPEG; tiny drawings are enlarged without interpolation."""
    factor = max(1, longest // max(image.size))
    buffer = io.BytesIO()
    image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    image.convert("RGB").save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def open_collections(
    runs: Sequence[str | Path],
    folder: str | Path | None = None,
    device: str = "auto",
    tell: Callable[[str], None] = warnings.warn,
    store: str | None = None,
    exclude: Sequence[str] | None = None,
) -> list[BrowsedRun]:
    """The collections of runs, given by their folders.

    ``folder`` has the images, by default the indexed ones; before new images are embedded, ``tell`` gets a message. A
    ``store`` is searched instead of the embeddings. Files of the folder that match a pattern of ``exclude`` are left
    out.
    """
    search: SearchService = service("search", "pml-ext browse")
    collections: list[BrowsedRun] = []
    for place in map(Path, runs):
        run = search.load_run(place, device, exclude=exclude)
        run.check_images()  # the page cannot show vectors
        if folder is None:
            embedded = run.indexed_images()
        else:
            tell(f"{folder}: embedding the images that {run.place} does not have")
            embedded = run.embed_folder(folder)
        place = place.resolve()
        clashes = place.name in [other.name for other in collections]
        title = f"{place.parent.name}/{place.name}" if clashes else place.name
        opened_store = None if store is None else run.open_filled_store(store)
        collections.append(BrowsedRun(title, run, embedded, opened_store))
    folders = sorted({str(collection.folder.resolve()) for collection in collections})
    if len(folders) > 1:
        raise ConfigError(f"the runs have indexed different folders, {' and '.join(folders)}; name one FOLDER for both")
    return collections
