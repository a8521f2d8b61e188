"""What the page shows, as values that JSON has: parts with pictures in rows, and the points of a map."""

from __future__ import annotations

import base64
import colorsys
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import DataError, PmlExtError
from ..evaluation.fonts import drawable
from ..retrieval import SHEET, Grouping, thumbnail
from .collection import Collection, Near

Item = dict[str, Any]
Part = dict[str, Any]

PAGE = 60  # pairs of an image and its nearest that are shown at a time
CARDS = 300  # clusters that are shown
LEGEND = 20  # groups that a map names
OTHERS = "#a0aec0"
_LARGE, _SMALL = 480, 160  # pixels of a picture


def heading(collections: Sequence[Collection], missing: int | None) -> str:
    """What is looked at, in a line or two of Markdown.

    Args:
        collections: of one folder.
        missing: how many images are gone; None where that is not known yet.
    """
    first = collections[0]
    runs = " beside ".join(f"`{plain(each.name)}`" for each in collections)
    classes = f", {len(set(first.classes) - {''})} classes" if first.has_classes else ""
    text = f"{runs} — {len(first):,} images of `{plain(first.folder.name)}`{classes}"
    if len({tuple(each.paths) for each in collections}) > 1:
        text += "\n\nThe runs' indexes are of different states of the folder; `pml-ext index` takes up what is new."
    if missing:
        they = "They are" if missing > 1 else "It is"
        text += (
            f"\n\n**{missing:,} of {len(first):,} images cannot be shown**: gone since they were indexed, or "
            f"outside of the folder. {they} found nonetheless; a placeholder stands for each."
        )
    return text


def plain(text: str) -> str:
    """A name as it stands in Markdown between back ticks."""
    return drawable(text).replace("`", "'").replace("\n", " ")


def item(which: int, collection: Collection, number: int, lines: Sequence[str] = ()) -> Item:
    """A picture of an indexed image, with its class and name below.

    Args:
        which: the collection's place among those of the page.
        collection: that has it.
        number: of the image.
        lines: of the caption, above both.
    """
    path, name = collection.paths[number], collection.classes[number]
    below = [*lines, *([name] if name else []), Path(path).name]
    return {"which": which, "number": number, "title": drawable(path), "lines": [drawable(line) for line in below]}


def sample(collection: Collection, numbers: Sequence[int]) -> list[Part]:
    """Images to click on."""
    title = "Click a photograph to see its nearest, or drop one of yours on the left"
    return [{"title": title, "items": [item(0, collection, number) for number in numbers]}]


def answers(collections: Sequence[Collection], which: int, number: int, k: int) -> list[Part]:
    """An indexed image and its nearest, by each run.

    Args:
        collections: of one folder.
        which: the collection that has the image.
        number: of the image.
        k: answers.
    """
    asked = collections[which]
    query = item(which, asked, number) | {"query": True}
    path = asked.paths[number]
    near: list[list[Near] | str] = []
    for collection in collections:
        try:
            if collection is asked or path in collection.numbers:
                near.append(collection.nearest(collection.numbers[path], k))
            else:
                near.append(collection.nearest_to_file(asked.folder / path, k))
        except PmlExtError as error:
            near.append(str(error))
    return [_query(query), *_answers(collections, near)]


def answers_to_file(collections: Sequence[Collection], file: Path, k: int) -> list[Part]:
    """A photograph that somebody brings and its nearest, by each run.

    Args:
        collections: of one folder.
        file: the photograph.
        k: answers.

    Raises:
        DataError: it cannot be read; the text has its name, not where it lies.
    """
    try:
        buffer = io.BytesIO()
        thumbnail(file, longest=_LARGE).convert("RGB").save(buffer, "JPEG", quality=85)
    except DataError as error:
        raise DataError(str(error).replace(str(file), file.name)) from None
    source = f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    query = {"src": source, "title": drawable(file.name), "lines": [drawable(file.name)], "query": True}
    return [_query(query), *_answers(collections, [each.nearest_to_file(file, k) for each in collections])]


def _query(query: Item) -> Part:
    return {"title": "The photograph", "items": [query], "kind": "large", "size": _LARGE}


def _answers(collections: Sequence[Collection], near: Sequence[list[Near] | str]) -> list[Part]:
    parts: list[Part] = []
    for which, (collection, those) in enumerate(zip(collections, near, strict=True)):
        title = f"Nearest by {plain(collection.name)}" if len(collections) > 1 else "Nearest"
        if isinstance(those, str):
            parts.append({"title": f"{title}: {drawable(those)}", "items": []})
            continue
        known = [each.right for each in those if each.right is not None]
        if known:
            title += f": {sum(known)} of {len(known)} of the same class"
        items = []
        for each in those:
            mark = "" if each.right is None else "✓ " if each.right else "✗ "
            lines = [f"{mark}{each.distance:.3f}"]
            items.append(item(which, collection, each.number, lines) | {"mark": each.right})
        parts.append({"title": title, "items": items})
    return parts


def cluster_cards(which: int, collection: Collection, grouping: Grouping) -> list[Part]:
    """A card for each cluster, with the images nearest to its center."""
    items: list[Item] = []
    for cluster in grouping.clusters[:CARDS]:
        images = f"{len(cluster.members)} image{'s' * (len(cluster.members) != 1)}"
        lines: list[str] = [
            f"cluster {cluster.number}: {images}" if cluster.number >= 0 else f"in no cluster: {images}"
        ]
        lines += [drawable(f"{share:.0%} {name or '(no folder)'}") for name, share in cluster.shares[:2]]
        several = [item(which, collection, number) for number in cluster.members[:3]]
        card: Item = {"which": which, "cluster": cluster.number, "title": lines[0], "lines": lines, "several": several}
        items.append(card)
    there = sum(cluster.number >= 0 for cluster in grouping.clusters)
    title = f"{there} clusters of {plain(collection.name)} by {grouping.method}"
    title += f", the {CARDS} largest" if len(grouping.clusters) > CARDS else ""
    return [{"title": title, "items": items, "kind": "clusters"}]


def sheet(which: int, collection: Collection, grouping: Grouping, number: int) -> list[Part]:
    """The images of a cluster nearest to its center; where there are classes, other ones than its own are marked."""
    cluster = next(each for each in grouping.clusters if each.number == number)
    items = []
    for member in cluster.members[:SHEET]:
        shown = item(which, collection, member)
        if cluster.share is not None and cluster.number >= 0 and collection.classes[member] != cluster.name:
            shown["mark"] = False
        items.append(shown)
    more = f", the {SHEET} nearest to its center" if len(cluster.members) > SHEET else ""
    return [{"title": drawable(cluster.title) + more, "items": items}]


def pairs(
    collections: Sequence[Collection], which: int, right: bool, start: int = 0, other: int | None = None
) -> tuple[list[Part], int]:
    """Images beside the nearest other image of each, the nearest pairs first.

    Args:
        collections: of one folder.
        which: the collection that is judged.
        right: whether pairs of one class are shown, or of two.
        start: the first that is shown.
        other: only pairs of which this collection says the opposite.

    Returns:
        What is shown, and how many there are.

    Raises:
        DataError: no classes.
    """
    collection = collections[which]
    judged = collection.judged()
    order = judged.order(right)
    if other is not None:
        theirs = collections[other].judged()
        paths = zip(theirs.numbers.tolist(), theirs.right.tolist(), strict=True)
        said = {collections[other].paths[number]: told for number, told in paths}
        order = [place for place in order if said.get(collection.paths[judged.numbers[place]]) == (not right)]
    items = []
    for place in order[start : start + PAGE]:
        one, two = int(judged.numbers[place]), int(judged.nearest[place])
        mark = "✓" if right else "✗"
        lines = [
            f"{mark} {judged.distances[place]:.3f}",
            drawable(f"{collection.classes[one]}  →  {collection.classes[two]}"),
            drawable(f"{Path(collection.paths[one]).name}  →  {Path(collection.paths[two]).name}"),
        ]
        title = drawable(f"{collection.paths[one]} → {collection.paths[two]}")
        several = [item(which, collection, number) for number in (one, two)]
        items.append({"which": which, "number": one, "title": title, "lines": lines, "several": several, "mark": right})
    last = min(len(order), start + PAGE)
    shown = f"{start + 1:,} to {last:,} of {len(order):,}" if order else "none"
    return [{"title": f"An image and its nearest other one: {shown}", "items": items, "kind": "pairs"}], len(order)


def summary(collections: Sequence[Collection]) -> str:
    """How often the nearest other image is of the same class, by each run, and which classes are taken for which.

    Raises:
        DataError: no classes.
    """
    lines = []
    for collection in collections:
        judged = collection.judged()
        right, of = int(judged.right.sum()), len(judged.right)
        lines.append(
            f"`{plain(collection.name)}`: the nearest other image of {right:,} of {of:,} is of the same class "
            f"(Recall@1 {right / of:.1%}; {judged.note})"
        )
        wrong = judged.order(right=False)
        taken = Counter(
            (collection.classes[judged.numbers[place]], collection.classes[judged.nearest[place]]) for place in wrong
        )
        if taken:
            often = [f"`{plain(one)}` for `{plain(two)}` ({count})" for (one, two), count in taken.most_common(5)]
            lines.append(f"Taken most often: {', '.join(often)}")
    return "\n\n".join(lines)


def map_points(which: int, collection: Collection, method: str, grouping: Grouping | None) -> dict[str, Any]:
    """The points of a map, the groups that color them, and what stands beside.

    Args:
        which: the collection's place among those of the page.
        collection: that is drawn.
        method: ``"tsne"`` or ``"pca"``.
        grouping: clusters to color by; None for classes.
    """
    drawn = collection.map(method)
    names = list(collection.classes)
    if grouping is not None:
        titles = {each.number: each.title if each.number >= 0 else "in no cluster" for each in grouping.clusters}
        names = [titles[number] for number in grouping.numbers.tolist()]
    counts = Counter(names[number] for number in drawn.numbers.tolist())
    ranked = [name for name, _ in counts.most_common()]
    places = {name: rank for rank, name in enumerate(ranked)}
    gray = {"", "in no cluster"}
    groups = [
        {
            "name": drawable(name) or "(no class)",
            "color": OTHERS if name in gray else color(rank),
            "shown": rank < LEGEND,
        }
        for rank, name in enumerate(ranked)
    ]
    if len(ranked) > LEGEND:
        groups.append({"name": f"and {len(ranked) - LEGEND} more", "color": "transparent", "shown": True})
    points = []
    for number, (x, y) in zip(drawn.numbers.tolist(), drawn.places.tolist(), strict=True):
        text = "\n".join(dict.fromkeys([names[number], Path(collection.paths[number]).name]))
        points.append([round(x, 4), round(y, 4), number, places[names[number]], drawable(text)])
    return {"which": which, "points": points, "groups": groups, "note": drawn.note}


def color(rank: int) -> str:
    """A color for each group: neighboring ranks far apart."""
    red, green, blue = colorsys.hls_to_rgb((0.58 + 0.618034 * rank) % 1, (0.45, 0.6, 0.35)[rank // 8 % 3], 0.65)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
