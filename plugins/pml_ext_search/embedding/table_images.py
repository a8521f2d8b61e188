"""The images of a table, cut along its boxes into files of their own.

A cut is ``CLASS/PHOTOGRAPH.LEFT-TOP-RIGHT-BOTTOM.png``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pml_ext.errors import DataError
from pml_ext_train.data import columns_of_parquet, read_image, rows_of_table
from pml_ext_train.files import locked_folder, write_atomically

from .embedding import SkippedImage

if TYPE_CHECKING:
    from torch import Tensor

    from pml_ext_train.data import TableRow


def is_table(path: str | Path) -> bool:
    """Whether a path is a table of images: a CSV file, or a Parquet file without embeddings."""
    place = Path(path)
    if not place.is_file():
        return False
    ending = place.suffix.lower()
    return ending == ".csv" or (ending == ".parquet" and "embeddings" not in columns_of_parquet(place))


def cut_images(table: Path, folder: Path, channels: int, columns: Mapping[str, str]) -> None:
    """Write a table's images into a folder; delete those that it no longer lists.

    Up-to-date cuts stay. Unreadable photographs are left out with a :class:`SkippedImage` warning.
    """
    rows = rows_of_table(table, dict(columns))
    kept = set()
    with locked_folder(folder):
        for row in rows:
            file = folder / _name_of(row, table.parent)
            kept.add(file)
            try:
                _cut(row, file, channels)
            except DataError as error:
                warnings.warn(str(error), SkippedImage, stacklevel=2)
        for file in folder.rglob("*"):
            if file.is_file() and file not in kept and file.parent != folder:
                file.unlink()


def _cut(row: TableRow, file: Path, channels: int) -> None:
    photograph = Path(row.path).stat().st_mtime_ns
    if file.exists() and file.stat().st_mtime_ns == photograph:
        return
    image = read_image(row.path, channels, row.box)
    file.parent.mkdir(exist_ok=True)
    write_atomically(file, partial(_save, image))
    os.utime(file, ns=(photograph, photograph))


def _save(image: Tensor, file: Path) -> None:
    from PIL import Image

    pixels = image.permute(1, 2, 0).squeeze(2).numpy()
    Image.fromarray(pixels).save(file, format="PNG")


def _name_of(row: TableRow, place: Path) -> str:
    photograph = os.path.relpath(row.path, place).replace(os.sep, "-").lstrip(".-")
    box = "" if row.box is None else "." + "-".join(f"{corner:g}" for corner in row.box)
    name = row.label.replace("/", "-").lstrip(".") or "-"
    return f"{name}/{photograph}{box}.png"
