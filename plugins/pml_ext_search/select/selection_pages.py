"""Tables and contact sheets of selected images and suspicious labels."""

import functools
from collections.abc import Sequence
from pathlib import Path

from pml_ext_train.data import table_text
from pml_ext_train.files import write_atomically, write_text
from pml_ext_train.report import CELL, PictureReader, contact_sheet

from .selection import Selection
from .suspicious_labels import SuspiciousLabels

COLUMNS = ("path", "class", "rank", "distance")
ON_SHEET = 300  # images of a contact sheet


def write_table(found: Selection, file: Path) -> None:
    """Write a CSV table of the selected images, which ``fit`` reads as labels."""
    distances = ["" if distance is None else f"{distance:.6f}" for distance in found.distances]
    write_text(file, table_text(COLUMNS, zip(found.paths, found.classes, found.ranks, distances, strict=True)))


def write_suspicious(found: SuspiciousLabels, count: int, file: Path, title: str) -> None:
    """Write a contact sheet of the most suspicious images, each with its class and the likely one."""
    captions = [f"{given}: {likely}?" for given, likely in zip(found.classes, found.likely, strict=True)]
    shown = min(count, found.count, ON_SHEET)
    _draw_sheet(file, title, found.embedded.folder, found.paths[:shown], captions[:shown])


def write_sheet(found: Selection, file: Path, title: str) -> None:
    """Write a contact sheet with distances or class names."""
    captions = []
    for name, rank, distance in zip(found.classes, found.ranks, found.distances, strict=True):
        caption = f"{rank}" if distance is None else f"{rank}: {distance:.2f}"
        captions.append(name if found.kind == "central" and name else caption)
    if len(captions) > ON_SHEET:
        title += f"; the first {ON_SHEET} of {len(captions)} images"
    _draw_sheet(file, title, found.embedded.folder, found.paths[:ON_SHEET], captions[:ON_SHEET])


def _draw_sheet(file: Path, title: str, folder: Path, paths: Sequence[str], captions: Sequence[str]) -> None:
    reader = PictureReader(channels=3)
    images = [reader.image(folder / path, CELL) for path in paths]
    sheet = contact_sheet(title, images, captions)
    write_atomically(file, functools.partial(sheet.save, format="PNG"))
    reader.warn("the contact sheet has")
