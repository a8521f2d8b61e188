"""A table and a contact sheet of selected images."""

from __future__ import annotations

import functools
from pathlib import Path

from PIL import Image

from pml_ext_train.data import table_text
from pml_ext_train.files import write_atomically, write_text
from pml_ext_train.report import CELL, PictureReader, contact_sheet

from .selection import Selection

COLUMNS = ("path", "class", "rank", "distance")
ON_SHEET = 300  # images of a contact sheet


def write_table(found: Selection, file: Path) -> None:
    """Write a CSV table of the selected images, which ``fit`` reads as labels."""
    distances = ["" if distance is None else f"{distance:.6f}" for distance in found.distances]
    write_text(file, table_text(COLUMNS, zip(found.paths, found.classes, found.ranks, distances, strict=True)))


def write_sheet(found: Selection, file: Path, title: str) -> None:
    """Write a contact sheet with distances or class names."""
    reader = PictureReader(channels=3)
    images: list[Image.Image] = []
    captions = []
    columns = zip(found.paths, found.classes, found.ranks, found.distances, strict=True)
    for path, name, rank, distance in columns:
        if len(images) == ON_SHEET:
            title += f"; the first {ON_SHEET} of {len(found.rows)} images"
            break
        images.append(reader.image(found.embedded.folder / path, CELL))
        caption = f"{rank}" if distance is None else f"{rank}: {distance:.2f}"
        captions.append(name if found.kind == "central" and name else caption)
    sheet = contact_sheet(title, images, captions)
    write_atomically(file, functools.partial(sheet.save, format="PNG"))
    reader.warn("the contact sheet has")
