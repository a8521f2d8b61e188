"""Copies for the eye and for other programs: a page with pairs side by side, a contact sheet, a table."""

from __future__ import annotations

import base64
import functools
import io
from pathlib import Path
from typing import Any

from PIL import Image

from pml_ext.errors import needs_extra, printable
from pml_ext_train.data import table_text
from pml_ext_train.files import write_atomically, write_text
from pml_ext_train.report import RIGHT

from .clusters import CELL, contact_sheet
from .duplicates import Copy, Duplicates, Group
from .pictures import PictureReader

COLUMNS = ("group", "kind", "keep", "path", "distance", "bytes", "width", "height", "differs")
PAIRS = 200  # on a page, which is then of about 3 MB
ON_SHEET = 300  # images of a contact sheet
_PICTURE = 240  # longer side of a picture on a page, in pixels


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
            differs = ", ".join(group.differing(image))
            size = (image.bytes, image.width, image.height)
            rows.append((number, group.kind, kept, image.path, distance, *size, differs))
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
    sheet = contact_sheet(title, images, captions, kept, RIGHT)
    write_atomically(file, functools.partial(sheet.save, format="PNG"))
    reader.warn("the contact sheet has")


def write_page(found: Duplicates, file: Path, title: str, summary: str) -> None:
    """Write a page of pairs: each image to keep, and beside it a copy; the 200 first pairs. It needs no network."""
    with needs_extra("train", "a page of copies"):
        import jinja2
    reader = PictureReader(channels=3)
    pairs: list[dict[str, Any]] = []
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


def _pair(number: int, group: Group, copy: Copy, reader: PictureReader) -> dict[str, Any]:
    """What the page shows of an image to keep and a copy, side by side."""
    about = {"group": number, "kind": group.about(copy), "distance": f"{copy.distance:.3f}"}
    return about | {"kept": _shown(group.keep, reader), "other": _shown(copy, reader)}


def _shown(image: Copy, reader: PictureReader) -> dict[str, str]:
    if image.file is None:
        return {"path": printable(image.path), "about": "", "picture": ""}
    about = "" if image.width is None else f"{image.width} x {image.height}, "
    about += "" if image.bytes is None else f"{image.bytes:,} bytes"
    file = io.BytesIO()
    reader.image(image.file, _PICTURE).convert("RGB").save(file, "JPEG", quality=70)
    picture = base64.b64encode(file.getvalue()).decode("ascii")
    return {"path": printable(image.path), "about": about, "picture": picture}
