"""The table of copies that commands print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pml_ext.tool import counted, print_result, printable

if TYPE_CHECKING:
    from ..duplicates import Duplicates, Group

_KINDS = {"exact": "same bytes", "same": "same pixels", "near": "near"}


def print_duplicates(found: Duplicates, noun: str, as_json: bool) -> None:
    """Print each image of each group with its distance from the largest image, or all as JSON."""
    columns = ["group", "copies", "distance", "pixels", "bytes", "path"]
    if noun == "vectors":
        columns = ["group", "distance", "id"]
    rows = []
    for number, group in enumerate(found.groups, start=1):
        for row in _rows_of(group, noun):
            rows.append([str(number), *row])
    right = [0, 1] if noun == "vectors" else [0, 2, 3, 4]
    print_result(as_json, found.as_json(), _summary(found, noun), columns=columns, rows=rows, right=right)


def _rows_of(group: Group, noun: str) -> list[list[str]]:
    rows = []
    for place, image in enumerate(group.images):
        distance = f"{image.distance:.3f}"
        if place == 0:
            distance = "first" if noun == "vectors" else "largest"
        row = [distance, printable(image.path)]
        if noun != "vectors":
            pixels = "" if image.width is None else f"{image.width} x {image.height}"
            size = "" if image.bytes is None else f"{image.bytes:,}"
            row = [_KINDS[group.kind], distance, pixels, size, printable(image.path)]
        rows.append(row)
    return rows


def _summary(found: Duplicates, noun: str) -> str:
    """Return a line that says what was found, and how the radius was chosen."""
    paths: set[str] = set()
    for group in found.groups:
        paths.update(image.path for image in group.images)
    parts = []
    if noun == "images":
        exact = len(found.of_kind("exact"))
        same = len(found.of_kind("same"))
        if exact:
            parts.append(f"{exact} of the same bytes")
        if same:
            parts.append(f"{same} of the same pixels")
    near = f"{len(found.of_kind('near'))} near, within {found.radius:.3g}"
    if found.made_up:
        near += f", which holds most of {found.made_up} made-up copies"
    near += " (--radius)"
    if found.nearest_other is not None:
        near += f"; the nearest other is at {found.nearest_other:.3g}"
    parts.append(near)
    groups_of_images = f"{counted(len(found.groups), 'group')} of {len(paths)} of {found.images} {noun}"
    return f"{groups_of_images}: {', '.join(parts)}"
