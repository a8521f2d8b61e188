"""The page as HTML: this module checks the query parameters, and a template renders the collections."""

from __future__ import annotations

import base64
import csv
import io
import random
import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import jinja2

from pml_ext.tool import (
    COLORS,
    SHAPES,
    ConfigError,
    DataError,
    ImageCluster,
    ImageClusters,
    PmlExtError,
    TooManyPixelsError,
    drawable,
    mark,
    open_image,
    thumbnail,
)

from .collection import BrowsedRun, Pair, jpeg

MAX_PIXELS = 50_000_000  # of an upload
UPLOADS = 8  # maximum number of stored uploads
SHOWN = 48  # photographs to click
PAIRS = 60  # per page
CARDS = 300  # maximum number of clusters
SHOWN_OF_CLUSTER = 60  # photographs of an opened cluster
GRAY = "#a0aec0", 0  # color and shape of images in no cluster
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    finalize=lambda value: drawable(value) if type(value) is str else value,  # names may contain any character
)
_TEMPLATES.globals |= {"SHOWN_OF_CLUSTER": SHOWN_OF_CLUSTER, "PAIRS": PAIRS, "CARDS": CARDS}


class Page:
    """Page of collections; uploaded photographs are stored in a folder."""

    def __init__(self, collections: Sequence[BrowsedRun], uploads: Path) -> None:
        self.collections = collections
        self.uploads = uploads
        if len(collections) == 2:
            self.kinds = ["wrong", "right", "disputed"]
        else:
            self.kinds = ["wrong", "right"]
        if collections[0].class_names:
            self.colors = ["class", "cluster"]
        else:
            self.colors = ["cluster"]
        number_of_clusters = min(len(collections[0].class_names) or 20, 100, len(collections[0]))
        self.clusters = str(max(1, number_of_clusters))
        self.same_images = len({tuple(collection.paths) for collection in collections}) == 1
        self._uploads: dict[str, tuple[Path, str, str]] = {}  # by token, oldest first

    def draw(self, tab: str, options: Mapping[str, str]) -> tuple[str, int]:
        """Return a tab as HTML, or an error page for invalid options, and the HTTP status."""
        try:
            run = _number(options, "run", 0, 0, len(self.collections) - 1)
            last = len(self.collections[run]) - 1
            image = None
            if "image" in options:
                image = _number(options, "image", 0, 0, last)
            some_unseen = False in self.collections[run].trained.values()
            values = {
                "run": run,
                "k": _number(options, "k", 12, 1, 50),
                "start": _number(options, "start", 1, 1, 10**9),
                "image": image,
                "upload": options.get("upload", ""),
                "method": _choice(options, "method", ["tsne", "pca"]),
                "color": _choice(options, "color", self.colors),
                "kind": _choice(options, "kind", self.kinds),
                "clusters": _clusters(options),
                "open": options.get("open", ""),
                "unseen": options.get("unseen") == "1" and some_unseen,
            }
            return self._render(tab, values), 200
        except PmlExtError as error:
            return self.problem(str(error).replace("--clusters ", "")), 400

    def problem(self, text: str) -> str:
        """Return a page that shows an error message."""
        return self._render("problem", {"text": text})

    def _render(self, tab: str, values: dict[str, Any]) -> str:
        return _TEMPLATES.get_template("page.html").render(values, tab=tab, page=self, collections=self.collections)

    def keep(self, file: IO[bytes], name: str) -> str:
        """Save an uploaded photograph and return its token; raise DataError if it is not an image, or too large."""
        try:
            with open_image(file, name) as image:
                pixels = image.width * image.height
        except TooManyPixelsError:
            pixels = 2 * MAX_PIXELS
        if pixels > MAX_PIXELS:
            raise DataError(f"{name}: more than {MAX_PIXELS // 10**6} megapixels; make it smaller")
        token = secrets.token_hex(16)
        path = self.uploads / token
        file.seek(0)
        try:
            path.write_bytes(file.read())
            picture = base64.b64encode(jpeg(thumbnail(path, longest=480), 480)).decode()
        except (DataError, OSError) as error:  # damaged, or the disk is full
            path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise
            raise DataError(str(error).replace(str(path), name)) from None
        self._uploads[token] = path, name, f"data:image/jpeg;base64,{picture}"
        for old in list(self._uploads)[:-UPLOADS]:
            old_file, _, _ = self._uploads.pop(old)
            old_file.unlink()
        return token

    def uploaded(self, token: str) -> tuple[Path, str, str]:
        """Return an uploaded photograph's file, its name, and a thumbnail as a data URI."""
        if token not in self._uploads:
            raise DataError("this photograph is no longer kept; drop it again")
        return self._uploads[token]

    def sample(self, unseen: bool) -> list[int]:
        """Return the numbers of randomly drawn images to click on."""
        numbers = self.collections[0].shown(unseen).tolist()
        return random.sample(numbers, min(SHOWN, len(numbers)))

    def answers(self, run: int, kind: str, unseen: bool) -> list[Pair]:
        """Return the right answers, the wrong ones, or the disputed ones (wrong here, right in the other run)."""
        collection = self.collections[run]
        right_in_other_run = set()  # paths
        if kind == "disputed":
            other = self.collections[1 - run]
            pairs_of_other_run, _ = other.leave_one_out()
            for pair in pairs_of_other_run:
                if pair.right:
                    right_in_other_run.add(other.paths[pair.query])

        answers = []
        pairs, _ = collection.leave_one_out()
        for pair in pairs:
            if pair.right != (kind == "right"):
                continue
            if unseen and pair.trained is not False:
                continue
            if kind == "disputed" and collection.paths[pair.query] not in right_in_other_run:
                continue
            answers.append(pair)
        return answers

    def shown_clusters(self, run: int, grouping: ImageClusters, unseen: bool) -> list[ImageCluster]:
        """Return the clusters with a majority of shown images: all, or with ``unseen`` those of untrained classes."""
        numbers = set(self.collections[run].shown(unseen).tolist())
        clusters = []
        for cluster in grouping.clusters:
            shown = numbers.intersection(cluster.members)
            if 2 * len(shown) > len(cluster.members):
                clusters.append(cluster)
        return clusters

    def named(self, options: Mapping[str, str]) -> str:
        """Return a table of the images of named clusters, with the columns ``path`` and ``class``, as CSV.

        ``options`` has the number of the run, the clusters, and the name of cluster N as ``clusterN``. Images whose
        files are gone are left out. DataError if none has a name.
        """
        run = _number(options, "run", 0, 0, len(self.collections) - 1)
        collection = self.collections[run]
        grouping = collection.clusters(_clusters(options))
        gone = set(collection.missing)
        file = io.StringIO()
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["path", "class"])
        rows = 0
        for cluster in grouping.clusters:
            name = " ".join(options.get(f"cluster{cluster.number}", "").split())
            if name and cluster.number >= 0:
                paths = [collection.paths[member] for member in cluster.members]
                there = [(path, name) for path in paths if path not in gone]
                table.writerows(there)
                rows += len(there)
        if not rows:
            raise DataError("no cluster has a name; type one below a cluster")
        return file.getvalue()

    def map(self, run: int, method: str, color: str, clusters: int | str, unseen: bool) -> dict[str, Any]:
        """Return the points of the map, the groups that color them and a note, in the format of the map's script."""
        collection = self.collections[run]
        names = list(collection.classes)
        if color == "cluster":
            grouping = collection.clusters(clusters)
            titles = {cluster.number: cluster.title for cluster in grouping.clusters}
            names = [titles[number] for number in grouping.numbers.tolist()]
        numbers, positions, note = collection.projection(method, unseen)

        counts = Counter(names[number] for number in numbers.tolist())
        ranks: dict[str, int] = {}
        groups = []
        for rank, (name, _) in enumerate(counts.most_common()):
            ranks[name] = rank
            color_of_group, shape = mark(rank)
            groups.append((drawable(name) or "no class", color_of_group, shape))

        points = []
        for number, (x, y) in zip(numbers.tolist(), positions.tolist(), strict=True):
            name = names[number]
            points.append([round(x, 4), round(y, 4), number, ranks[name], drawable(collection.paths[number])])
        return {"run": run, "points": points, "groups": groups, "legend": SHAPES * len(COLORS), "note": note}


def _number(options: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = options.get(name) or str(default)
    if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
        raise ConfigError(f"{name}={text[:20]}: wanted a number from {low} to {high}")
    return int(text)


def _clusters(options: Mapping[str, str]) -> int | str:
    clusters = options.get("clusters", "").strip()
    return int(clusters) if re.fullmatch(r"-?\d{1,9}", clusters) else clusters


def _choice(options: Mapping[str, str], name: str, known: Sequence[str]) -> str:
    if (value := options.get(name, known[0])) not in known:
        raise ConfigError(f"{name}={value[:20]}: wanted one of {', '.join(known)}")
    return value
