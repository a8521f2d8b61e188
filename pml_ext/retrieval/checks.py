"""Path checks before the work begins, and their error messages."""

from __future__ import annotations

import tempfile
import textwrap
from pathlib import Path

from pydantic import ValidationError

from ..errors import ConfigError, DataError, one_line


class RetrievalWarning(UserWarning):
    """A request was met in part: fewer answers, low recall, an image that cannot be shown."""


class StoreWarning(UserWarning):
    """A collection is damaged or cannot be written; its missing images are embedded again."""


def check_images_folder(folder: Path) -> None:
    """Refuse what is no folder with a DataError."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")


def check_folder(option: str, folder: Path) -> None:
    """Refuse a folder that cannot be written; nothing is created."""
    if folder.is_file():
        raise ConfigError(f"{folder} is a file; wanted a folder to write, type {option} FOLDER")
    _check_writable(f"{option} FOLDER", folder, folder)


def check_file(option: str, file: Path) -> None:
    """Refuse a file that cannot be written; nothing is created."""
    if file.is_dir():
        raise ConfigError(f"{file} is a folder; wanted a file to write, type {option} FILE")
    _check_writable(f"{option} FILE", file, file.parent)


def _check_writable(wanted: str, path: Path, folder: Path) -> None:
    try:
        while not folder.exists():
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder):  # permissions say nothing of a read-only or full disk
            pass
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}: {folder}); type {wanted}") from None


def reason_of(error: BaseException) -> str:
    """Return an error as part of a line; of a :class:`pydantic.ValidationError`, its first problem."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        text = f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
    else:
        text = one_line(error)
    return textwrap.shorten(text, 200)
