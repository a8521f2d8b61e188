"""The views of the page: the options of an address become HTML, with one template."""

from __future__ import annotations

import colorsys
import random
import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from PIL import Image

from ..data.reading import FORMATS
from ..errors import ConfigError, DataError, PmlExtError, needs_extra
from ..evaluation.fonts import drawable
from .collection import SHEET, Collection, Grouping

with needs_extra("train", "pml-ext browse"):
    import jinja2

MAX_PIXELS, UPLOADS = 50_000_000, 8  # of a photograph that is brought; photographs that are kept
SHOWN, PAIRS, CARDS, LEGEND = 48, 60, 300, 20  # photographs to click, pairs on a page, clusters, names beside a map
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    finalize=lambda value: drawable(value) if type(value) is str else value,  # names come from data
)
Options = Mapping[str, str]
Values = dict[str, Any]


class Page:
    """The page: a view for each tab, and the photographs that were brought.

    Args:
        collections: of one folder, one per run.
        uploads: a folder for photographs.
    """

    def __init__(self, collections: Sequence[Collection], uploads: Path) -> None:
        self.collections, self.uploads = collections, uploads
        self._names: dict[str, str] = {}  # of uploads, by token, the latest last
        self._views = {"query": self._query, "clusters": self._clusters, "map": self._map, "answers": self._answers}

    def draw(self, tab: str, options: Options) -> tuple[str, int]:
        """Return a tab as HTML, or what is wrong with its options; and the HTTP status."""
        try:
            return self._render(tab, self._views[tab](options)), 200
        except PmlExtError as error:
            return self.problem(str(error).replace("--clusters ", "")), 400

    def problem(self, text: str) -> str:
        """Return a page that says what is wrong."""
        return self._render("problem", {"text": text})

    def _render(self, tab: str, values: Values) -> str:
        same = len({tuple(collection.paths) for collection in self.collections}) == 1
        limits = {"sheet": SHEET, "cards": CARDS, "page_pairs": PAIRS}
        values = {"tab": tab, "collections": self.collections, "same_images": same} | limits | values
        return _TEMPLATES.get_template("page.html").render(values)

    def keep(self, file: IO[bytes], name: str) -> str:
        """Return the token of a photograph that is kept for queries; the oldest one goes.

        Raises:
            DataError: no image, or too large a one.
        """
        try:
            with Image.open(file, formats=FORMATS) as image:
                pixels = image.width * image.height
        except Image.DecompressionBombError:
            pixels = 2 * MAX_PIXELS
        except Exception:  # a decoder's, of any kind
            raise DataError(f"{name}: not a readable image") from None
        if pixels > MAX_PIXELS:
            raise DataError(f"{name}: more than {MAX_PIXELS // 10**6} megapixels; make it smaller")
        token = secrets.token_hex(16)
        file.seek(0)
        (self.uploads / token).write_bytes(file.read())
        self._names[token] = name
        for old in [*self._names][:-UPLOADS]:
            del self._names[old]
            (self.uploads / old).unlink()
        return token

    def uploaded(self, token: str) -> tuple[Path, str]:
        """Return the file and the name of a photograph that is kept.

        Raises:
            DataError: none of this token.
        """
        if token not in self._names:
            raise DataError("this photograph is no longer kept; drop it again")
        return self.uploads / token, self._names[token]

    def _query(self, options: Options) -> Values:
        run, k, first = self._run(options), _number(options, "k", 12, 1, 50), self.collections[0]
        sample = sorted(random.sample(range(len(first)), min(SHOWN, len(first))))
        values: Values = {"run": run, "k": k, "sample": sample, "upload": "", "number": -1, "answers": []}
        if token := options.get("upload", ""):
            file, name = self.uploaded(token)
            try:
                answers = [each.nearest_to_file(file, k) for each in self.collections]
            except DataError as error:
                raise DataError(str(error).replace(str(file), name)) from None
            return values | {"upload": token, "name": name, "answers": answers}
        if "image" not in options:
            return values
        number = _number(options, "image", 0, 0, len(self.collections[run]) - 1)
        path = self.collections[run].paths[number]
        answers = [
            each.nearest(each.numbers[path], k) if path in each.numbers else each.nearest_to_file(each.folder / path, k)
            for each in self.collections
        ]
        return values | {"number": number, "answers": answers}

    def _clusters(self, options: Options) -> Values:
        run, clusters = self._run(options), options.get("clusters", "").strip()
        values: Values = {"run": run, "clusters": clusters or self._default_clusters(), "grouping": None, "open": None}
        if not clusters:
            return values
        grouping = self._grouping(run, clusters)
        opened = [each for each in grouping.clusters if str(each.number) == options.get("open")]
        return values | {"grouping": grouping, "open": next(iter(opened), None)}

    def _map(self, options: Options) -> Values:
        run = self._run(options)
        collection, method = self.collections[run], _choice(options, "method", ("tsne", "pca"))
        colors = ["class", "cluster"] if collection.class_names else ["cluster"]
        color, names, gray = _choice(options, "color", colors), list(collection.classes), ""
        clusters = options.get("clusters", "").strip() or self._default_clusters()
        if color == "cluster":
            grouping, gray = self._grouping(run, clusters), "in no cluster"
            titles = {each.number: each.title if each.number >= 0 else gray for each in grouping.clusters}
            names = [titles[cluster] for cluster in grouping.numbers.tolist()]
        numbers, places, note = collection.projection(method)
        ranked = [name for name, _ in Counter(names[number] for number in numbers.tolist()).most_common()]
        ranks = {name: rank for rank, name in enumerate(ranked)}
        groups = [(drawable(name) or "no class", _color(-1 if name == gray else ranks[name])) for name in ranked]
        points = [
            [round(x, 4), round(y, 4), number, ranks[names[number]], drawable(Path(collection.paths[number]).name)]
            for number, (x, y) in zip(numbers.tolist(), places.tolist(), strict=True)
        ]
        data = {"run": run, "points": points, "groups": groups, "legend": LEGEND}
        values = {"run": run, "method": method, "color": color, "colors": colors, "clusters": clusters}
        return values | {"note": note, "data": data}

    def _answers(self, options: Options) -> Values:
        run, kinds = self._run(options), ["wrong", "right"] + ["disputed"] * (len(self.collections) == 2)
        kind, start = _choice(options, "kind", kinds), _number(options, "start", 1, 1, 10**9)
        collection = self.collections[run]
        pairs, note = collection.leave_one_out()
        pairs = [pair for pair in pairs if pair.right == (kind == "right")]
        if kind == "disputed":
            other = self.collections[1 - run]
            right = {other.paths[pair.query] for pair in other.leave_one_out()[0] if pair.right}
            pairs = [pair for pair in pairs if collection.paths[pair.query] in right]
        shown = {"pairs": pairs[start - 1 : start - 1 + PAIRS], "total": len(pairs), "note": note}
        return shown | {"run": run, "kinds": kinds, "kind": kind, "start": start}

    def _run(self, options: Options) -> int:
        return _number(options, "run", 0, 0, len(self.collections) - 1)

    def _default_clusters(self) -> str:
        first = self.collections[0]
        return str(max(1, min(len(first.class_names) or 20, 100, len(first))))

    def _grouping(self, run: int, text: str) -> Grouping:
        return self.collections[run].clusters(int(text) if re.fullmatch(r"-?\d{1,9}", text) else text)


def _number(options: Options, name: str, default: int, low: int, high: int) -> int:
    text = options.get(name) or str(default)
    if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
        raise ConfigError(f"{name}={text[:20]}: wanted a number from {low} to {high}")
    return int(text)


def _choice(options: Options, name: str, known: Sequence[str]) -> str:
    if (value := options.get(name, known[0])) not in known:
        raise ConfigError(f"{name}={value[:20]}: wanted one of {', '.join(known)}")
    return value


def _color(rank: int) -> str:
    """Return a color for each rank, those of neighboring ranks far apart; gray for -1."""
    rgb = colorsys.hls_to_rgb((0.58 + 0.618034 * rank) % 1, (0.45, 0.6, 0.35)[rank // 8 % 3], 0.65)
    return "#a0aec0" if rank < 0 else "#" + "".join(f"{round(255 * part):02x}" for part in rgb)
