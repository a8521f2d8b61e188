"""The page as HTML: parameters are checked here, and a template renders the collections."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import jinja2

from pml_ext.errors import ConfigError, DataError, PmlExtError
from pml_ext_train.data import table_text
from pml_ext_train.files import composed
from pml_ext_train.report import COLORS, SHAPES, drawable, mark
from pml_ext_train.retrieval import ImageCluster, ImageClusters

from .choices import Choices
from .collection import BrowsedRun, Pair, Part, Suspicion
from .copies import RULES, SHOWN_OF_GROUP, CopiesSearch
from .uploads import MOST, Uploads

SHOWN = 48  # photographs to click
PAIRS = 60  # per page
CARDS = 300  # maximum number of clusters
SHOWN_OF_CLUSTER = 60  # photographs of an opened cluster
GROUPS = 30  # of copies, per page
DECISIONS = ("keep", "accept")  # of suspicious labels
LISTED = 300  # sub-folders to choose from; more are typed
GRAY = "#a0aec0", 0  # color and shape of images in no cluster
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    finalize=lambda value: drawable(value) if type(value) is str else value,  # names may contain any character
)
_TEMPLATES.globals |= {
    "SHOWN_OF_CLUSTER": SHOWN_OF_CLUSTER,
    "SHOWN_OF_GROUP": SHOWN_OF_GROUP,
    "PAIRS": PAIRS,
    "CARDS": CARDS,
    "GROUPS": GROUPS,
    "LISTED": LISTED,
    "MOST": MOST,
    "RULES": RULES,
}


class Clustering(NamedTuple):
    """How images are clustered, and which groups are joined."""

    clusters: int | str
    min_size: int = 1
    joined: tuple[tuple[int, ...], ...] = ()

    @property
    def fields(self) -> dict[str, str]:
        """The fields of a form, or of an address, that give it again."""
        joined = ",".join("-".join(map(str, numbers)) for numbers in self.joined)
        fields = {"clusters": str(self.clusters), "min_size": str(self.min_size)}
        return fields | {"joined": joined} if joined else fields

    @property
    def before_join(self) -> Clustering:
        """Without the last join."""
        return self._replace(joined=self.joined[:-1])


class Page:
    """The page of collections; a folder has the uploaded photographs."""

    def __init__(self, collections: Sequence[BrowsedRun], uploads: Path) -> None:
        self.collections = collections
        self.uploads = Uploads(uploads)
        self.copies = CopiesSearch(collections[0])
        self.kinds = ["wrong", "right", "disputed"][: len(collections) + 1]
        self.colors = ["class", "cluster"] if collections[0].class_names else ["cluster"]
        self.same_images = len({tuple(collection.paths) for collection in collections}) == 1
        self.choices = Choices(collections[0].run.place, collections[0].folder)
        self._folders = {drawable(folder): folder for folder in collections[0].folders}

    def draw(self, tab: str, options: Mapping[str, str]) -> tuple[str, int]:
        """A tab as HTML, or an error page, and the HTTP status."""
        try:
            run = _number(options, "run", 0, 0, len(self.collections) - 1)
            last = len(self.collections[run]) - 1
            image = _number(options, "image", 0, 0, last) if "image" in options else None
            part = self.part(run, options)
            carried = {"unseen": "1"} if part.unseen else {}
            if part.folder:
                carried["folder"] = drawable(part.folder)
            values = {
                "run": run,
                "k": _number(options, "k", 12, 1, 50),
                "start": _number(options, "start", 1, 1, 10**9),
                "image": image,
                "upload": options.get("upload", ""),
                "method": _choice(options, "method", ["tsne", "pca"]),
                "color": _choice(options, "color", self.colors),
                "kind": _choice(options, "kind", self.kinds),
                "clustering": _clustering(options, self.number_of_clusters(run, part)),
                "open": options.get("open", ""),
                "part": part,
                "carried": urlencode(carried),
                "up": _up(tab, options, carried),
                "looks": tab != "clusters" or "clusters" in options,
            }
            return self._render(tab, values), 200
        except PmlExtError as error:
            return self.problem(str(error).replace("--clusters ", "")), 400

    def problem(self, text: str) -> str:
        """A page that shows an error message."""
        return self._render("problem", {"text": text, "part": Part(), "carried": "", "up": "/"})

    def _render(self, tab: str, values: dict[str, Any]) -> str:
        return _TEMPLATES.get_template("page.html").render(values, tab=tab, page=self, collections=self.collections)

    def part(self, run: int, options: Mapping[str, str]) -> Part:
        """The part of a collection that is shown; ConfigError if it has no image."""
        collection = self.collections[run]
        unseen = options.get("unseen") == "1" and False in collection.trained.values()
        folder = composed(options.get("folder", "").strip("/"))
        part = Part(unseen, self._folders.get(folder, folder))
        if not len(collection.shown(part)):
            raise ConfigError(
                f"no image below {folder or collection.folder} is of an unseen class; clear the box for it"
            )
        return part

    def number_of_clusters(self, run: int, part: Part) -> int:
        """The default number of clusters: as many as classes, else 20."""
        collection = self.collections[run]
        below = collection.shown(Part(folder=part.folder)).tolist()
        names = {collection.classes[number] for number in below} - {""}
        return min(len(names) or 20, 100, len(below))

    def sample(self, part: Part) -> list[int]:
        """Numbers of randomly drawn images to click on."""
        numbers = self.collections[0].shown(part).tolist()
        return random.sample(numbers, min(SHOWN, len(numbers)))

    def answers(self, run: int, kind: str, part: Part) -> list[Pair]:
        """Right answers, wrong ones, or disputed ones (wrong here, right in the other run)."""
        collection = self.collections[run]
        answers = [pair for pair in collection.pairs(part) if pair.right == (kind == "right")]
        if kind != "disputed":
            return answers
        other = self.collections[1 - run]
        right_in_other_run = {other.paths[pair.query] for pair in other.pairs() if pair.right}
        return [pair for pair in answers if collection.paths[pair.query] in right_in_other_run]

    def _collection(self, options: Mapping[str, str]) -> BrowsedRun:
        return self.collections[_number(options, "run", 0, 0, len(self.collections) - 1)]

    def shown_clusters(self, run: int, grouping: ImageClusters, part: Part) -> list[ImageCluster]:
        """The clusters with a majority of shown images."""
        numbers = set(self.collections[run].shown(part).tolist())
        return [each for each in grouping.clusters if 2 * len(numbers.intersection(each.members)) > len(each.members)]

    def grouping(self, run: int, clustering: Clustering, part: Part) -> ImageClusters:
        """The clusters of a part's folder."""
        clusters, min_size, joined = clustering
        return self.collections[run].clusters(clusters, part.folder, min_size, joined)

    def keep_names(self, options: Mapping[str, str]) -> list[tuple[str, str]]:
        """Keep the names of clusters, given as ``clusterN``; return path and name of their images."""
        run = _number(options, "run", 0, 0, len(self.collections) - 1)
        paths = self.collections[run].paths
        grouping = self.grouping(run, _clustering(options, ""), self.part(run, options))
        given = {}
        named = []
        for cluster in grouping.clusters:
            field = f"cluster{cluster.number}"
            if field in options and not cluster.is_rest:
                name = " ".join(options[field].split())
                given[cluster.number] = name
                named += [(paths[member], name) for member in cluster.members if name]
        self.choices.name(given, grouping, paths)
        return named

    def named(self, options: Mapping[str, str]) -> str:
        """A CSV table of the images of named clusters, which are kept; see :meth:`keep_names`."""
        return self._table(options, self.keep_names(options), "no cluster has a name; type one below a cluster")

    def suspicious(self, run: int, part: Part) -> list[Suspicion]:
        """The images of a part that look like another class."""
        shown = set(self.collections[run].shown(part).tolist())
        return [each for each in self.collections[run].suspicious if each.number in shown]

    def keep_labels(self, options: Mapping[str, str]) -> None:
        """Keep decisions: ``labelN`` is ``accept`` or ``keep``, for the likely or the given class of image N."""
        collection = self._collection(options)
        before = dict(self.choices.labels)
        for each in collection.suspicious:
            decision = options.get(f"label{each.number}")
            if decision in DECISIONS:
                label = each.likely if decision == "accept" else each.given
                self.choices.labels[collection.paths[each.number]] = label
        if self.choices.labels != before:
            self.choices.save()

    def labels(self, options: Mapping[str, str]) -> str:
        """A CSV table of all images with a class, after decisions, which are kept; see :meth:`keep_labels`."""
        self.keep_labels(options)
        collection = self._collection(options)
        rows = [
            (path, self.choices.labels.get(path, name))
            for path, name in zip(collection.paths, collection.classes, strict=True)
            if name
        ]
        return self._table(options, rows, "no image has a class")

    def _table(self, options: Mapping[str, str], rows: Sequence[tuple[str, str]], without: str) -> str:
        """Paths and classes of files that exist, as CSV; DataError with a text if there are none."""
        gone = set(self._collection(options).missing)
        rows = [row for row in rows if row[0] not in gone]
        if not rows:
            raise DataError(without)
        return table_text(["path", "class"], rows)

    def begin_copies(self, options: Mapping[str, str]) -> None:
        """Look for copies in the part of the collection that is shown."""
        radius = None
        text = options.get("radius", "").strip()
        if text:
            if not re.fullmatch(r"[0-9]{0,2}\.?[0-9]{1,9}", text) or not 0 < float(text) <= 2:
                raise ConfigError(f"radius={text[:20]}: wanted a distance above 0 and at most 2")
            radius = float(text)
        folder = self.part(0, options).folder
        self.copies.begin(folder, _choice(options, "keep", RULES), radius)

    def map(self, run: int, method: str, color: str, clustering: Clustering, part: Part) -> dict[str, Any]:
        """The points of the map, the groups that color them and a note."""
        collection = self.collections[run]
        names = list(collection.classes)
        if color == "cluster":
            grouping = self.grouping(run, clustering, part)
            titles = {cluster.number: cluster.title for cluster in grouping.clusters}
            names = [titles.get(number, "") for number in grouping.numbers.tolist()]
        numbers, positions, note = collection.projection(method, part)

        counts = Counter(names[number] for number in numbers.tolist())
        ranks = {name: rank for rank, (name, _) in enumerate(counts.most_common())}
        groups = [(drawable(name) or "no class", *mark(rank)) for name, rank in ranks.items()]
        points = [
            [round(x, 4), round(y, 4), number, ranks[names[number]], drawable(collection.paths[number])]
            for number, (x, y) in zip(numbers.tolist(), positions.tolist(), strict=True)
        ]
        return {"run": run, "points": points, "groups": groups, "legend": SHAPES * len(COLORS), "note": note}


def _number(options: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = options.get(name) or str(default)
    if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
        raise ConfigError(f"{name}={text[:20]}: wanted a number from {low} to {high}")
    return int(text)


def _clustering(options: Mapping[str, str], default: int | str) -> Clustering:
    text = options.get("clusters", "").strip()
    clusters = int(text) if re.fullmatch(r"-?\d{1,9}", text) else text or default
    joins = [*filter(None, options.get("joined", "").split(","))]
    marked = options.get("join", "").split(",")
    if len(marked) > 1:
        joins.append("-".join(marked))
    for join in joins:
        if not re.fullmatch(r"\d{1,9}(-\d{1,9})+", join):
            raise ConfigError(f"joined={join[:20]}: wanted numbers of clusters, such as 3-7")
    joined = tuple(tuple(map(int, join.split("-"))) for join in joins)
    return Clustering(clusters, _number(options, "min_size", 1, 1, 10**9), joined)


def _up(tab: str, options: Mapping[str, str], carried: Mapping[str, str]) -> str:
    """The address that Escape leads to, or an empty string."""
    if tab == "query" and ("image" in options or "upload" in options):
        return f"/?{urlencode(carried)}"
    if tab == "clusters" and "open" in options:
        kept = {name: options[name] for name in ("run", *Clustering._fields) if name in options}
        return f"/clusters?{urlencode({**kept, **carried})}"
    return ""


def _choice(options: Mapping[str, str], name: str, known: Sequence[str]) -> str:
    if (value := options.get(name, known[0])) not in known:
        raise ConfigError(f"{name}={value[:20]}: wanted one of {', '.join(known)}")
    return value
