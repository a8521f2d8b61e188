"""Photographs that somebody drops on the page, kept until the page is closed."""

import base64
import secrets
from pathlib import Path
from typing import IO, NamedTuple

from pml_ext.errors import DataError, TooManyPixelsError, shortened
from pml_ext_train.data import open_image, thumbnail

from .collection import jpeg

MAX_PIXELS = 50_000_000  # of a photograph
MOST = 20  # photographs that are kept, and that may be dropped together


class Upload(NamedTuple):
    """A photograph, or why a file is not one."""

    name: str
    file: Path | None = None
    source: str = ""  # a thumbnail as a data URI
    problem: str = ""


class Uploads:
    """The latest photographs, by secret tokens."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._uploads: dict[str, Upload] = {}  # by token, oldest first

    def keep(self, file: IO[bytes], name: str) -> str:
        """Save a photograph and return its token; DataError if it is not an image, or too large."""
        name = shortened(name, 200)
        try:
            with open_image(file, name) as image:
                pixels = image.width * image.height
        except TooManyPixelsError:
            pixels = 2 * MAX_PIXELS
        except DataError as error:
            raise DataError(str(error).replace(repr(file), "this file")) from None
        if pixels > MAX_PIXELS:
            raise DataError(f"{name}: more than {MAX_PIXELS // 10**6} megapixels; make it smaller")
        token = secrets.token_hex(16)
        path = self._folder / token
        file.seek(0)
        try:
            path.write_bytes(file.read())
            picture = base64.b64encode(jpeg(thumbnail(path, longest=480), 480)).decode()
        except (DataError, OSError) as error:  # damaged, or the disk is full
            path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise
            raise DataError(str(error).replace(str(path), name)) from None
        self._add(token, Upload(name, path, f"data:image/jpeg;base64,{picture}"))
        return token

    def refuse(self, name: str, problem: str) -> str:
        """A token for a file that is not a photograph."""
        token = secrets.token_hex(16)
        self._add(token, Upload(shortened(name, 200), problem=problem))
        return token

    def _add(self, token: str, upload: Upload) -> None:
        self._uploads[token] = upload
        for old in list(self._uploads)[:-MOST]:
            file = self._uploads.pop(old).file
            if file is not None:
                file.unlink()

    def of(self, tokens: str) -> list[Upload]:
        """The uploads of comma-separated tokens; DataError for a forgotten one."""
        names = tokens.split(",")[:MOST]
        if any(name not in self._uploads for name in names):
            raise DataError("this photograph is no longer kept; drop it again")
        return [self._uploads[name] for name in names]
