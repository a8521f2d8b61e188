"""Copies for the eye and for other programs: a page with pairs side by side, a contact sheet, a table."""

from __future__ import annotations

import base64
import functools
import io
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from pml_ext.tool import needs_extra, printable, table_text, write_atomically, write_text

from .clusters import CELL, contact_sheet
from .duplicates import Copy, Duplicates, Group
from .pictures import PictureReader

COLUMNS = ("group", "kind", "keep", "path", "distance", "bytes", "width", "height")
PAIRS = 200  # on a page, which is then of about 3 MB
ON_SHEET = 300  # images of a contact sheet
_PICTURE = 240  # longer side of a picture on a page, in pixels
_NAMES = {"exact": "same bytes", "same": "same pixels", "near": "near"}


def write_table(found: Duplicates, file: Path) -> None:
    """Write a CSV table with a row for each image of each group; ``keep`` is yes or no."""
    write_text(file, table_of(found))


def table_of(found: Duplicates) -> str:
    """Return the table that :func:`write_table` writes, as text."""
    rows = []
    for number, group in enumerate(found.groups, start=1):
        for image in group.images:
            kept = "yes" if group.keeps(image) else "no"
            distance = f"{image.distance:.6f}"
            rows.append((number, group.kind, kept, image.path, distance, image.bytes, image.width, image.height))
    return table_text(COLUMNS, rows)


def write_sheet(found: Duplicates, file: Path) -> None:
    """Write a contact sheet, group after group; the images to keep are framed, and named by group."""
    reader = PictureReader(channels=3)
    images: list[Image.Image] = []
    captions = []
    kept = []
    for number, group in enumerate(found.groups, start=1):
        for image in group.images:
            if image.file is None or len(images) == ON_SHEET:
                continue
            images.append(reader.image(image.file, CELL))
            is_kept = group.keeps(image)
            captions.append(f"{number} keep" if is_kept else f"{number} {group.kind} {image.distance:.2f}")
            kept.append(is_kept)
    title = f"{len(found.groups)} groups of copies; those to keep are framed"
    if len(images) == ON_SHEET:
        title += f"; the first {ON_SHEET} images"
    sheet = contact_sheet(title, images, captions, kept)
    write_atomically(file, functools.partial(sheet.save, format="PNG"))
    reader.warn("the contact sheet has")


class _Shown(NamedTuple):
    """An image of the page."""

    path: str
    about: str
    picture: str  # base64


class _Pair(NamedTuple):
    """An image to keep and a copy, side by side."""

    group: int
    kind: str
    distance: str
    kept: _Shown
    copy: _Shown


def write_page(found: Duplicates, file: Path, title: str, summary: str) -> None:
    """Write a page of pairs: each image to keep, and beside it a copy; the 200 first pairs. It needs no network."""
    with needs_extra("train", "a page of copies"):
        import jinja2
    reader = PictureReader(channels=3)
    pairs: list[_Pair] = []
    total = 0
    for number, group in enumerate(found.groups, start=1):
        for copy in group.others:
            total += 1
            if len(pairs) < PAIRS:
                pairs.append(_pair(number, group, copy, reader))
    environment = jinja2.Environment(loader=jinja2.PackageLoader(__package__, "."), autoescape=True)
    template = environment.get_template("duplicates.html.jinja")
    text = template.render(title=title, summary=summary, pairs=pairs, total=total)
    write_text(file, text)
    reader.warn("the page has")


def _pair(number: int, group: Group, copy: Copy, reader: PictureReader) -> _Pair:
    kept = _shown(group.keep, reader)
    return _Pair(number, _NAMES[group.kind], f"{copy.distance:.3f}", kept, _shown(copy, reader))


def _shown(image: Copy, reader: PictureReader) -> _Shown:
    if image.file is None:
        return _Shown(printable(image.path), "", "")
    file = io.BytesIO()
    picture = reader.image(image.file, _PICTURE).convert("RGB")
    picture.save(file, "JPEG", quality=70)
    return _Shown(printable(image.path), ", ".join(_facts(image)), base64.b64encode(file.getvalue()).decode("ascii"))


def _facts(image: Copy) -> Iterator[str]:
    if image.width is not None:
        yield f"{image.width} x {image.height}"
    if image.bytes is not None:
        yield f"{image.bytes:,} bytes"
