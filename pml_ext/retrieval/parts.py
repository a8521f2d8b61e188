"""The files of an index: written with their sums, and looked at before they are read.

A file of up to 32 MB is read whole for its SHA-256 whenever an index is opened; of a larger one the size is compared,
and the SHA-256 of 64 pieces of 4,096 bytes that lie evenly over it, so that a file that is cut, or that of another
index, is noticed at once. ``pml-ext index RUN --check`` reads all of them whole.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from ..errors import UnwritableError
from ..files import sha256_of, writing

WHOLE = 32_000_000  # bytes up to which a file is read whole when an index is opened
_PIECES, _PIECE = 64, 4096


class UnfitError(Exception):
    """A part of an index that cannot be used; the text has its path and why."""


class Part(BaseModel):
    """What ``index.json`` says of a file.

    Args:
        file: its name, in the index's folder and nowhere else.
        bytes: its size.
        sha256: of all of it.
        pieces: the SHA-256 of pieces of it.
    """

    model_config = ConfigDict(strict=True)

    file: str = Field(pattern=r"^[\w-]+\.\w+$")
    bytes: int = Field(ge=0)
    sha256: str
    pieces: str


def write_part(path: Path, write: Callable[[Path], None]) -> dict[str, str | int]:
    """Writes a file to the disk, and gives what :class:`Part` holds.

    Args:
        path: the file, of a name that nothing has yet.
        write: called with it.

    Raises:
        UnwritableError: the disk is full, say.
    """
    with writing(path):
        try:
            write(path)
        except RuntimeError as error:  # faiss has no error of its own for a full disk
            reason = str(error).strip().rpartition(": ")[2]
            raise UnwritableError(f"{path}: cannot be written ({reason}); what was written before stays") from error
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        return {"file": path.name, "bytes": path.stat().st_size, "sha256": sha256_of(path), "pieces": _pieces(path)}


def check_part(place: Path, part: Part, about: str, thorough: bool = False) -> Path:
    """Refuses a file that is not what was written.

    Args:
        place: the index's folder.
        part: what was written.
        about: the name of the file that says so.
        thorough: whether a large file is read whole too.

    Returns:
        Its path.

    Raises:
        UnfitError: it is missing, cut, changed, or of another index.
    """
    path = place / part.file
    try:
        size = path.stat().st_size
        if size != part.bytes:
            raise UnfitError(f"{path}: {size:,} bytes, not the {part.bytes:,} that {about} was written for")
        same = sha256_of(path) == part.sha256 if thorough or size <= WHOLE else _pieces(path) == part.pieces
    except FileNotFoundError:
        raise UnfitError(f"{path}: missing") from None
    except OSError as error:
        raise UnfitError(f"{path}: cannot be read ({error.strerror})") from None
    if not same:
        raise UnfitError(f"{path}: not the file that {about} was written for")
    return path


def _pieces(path: Path) -> str:
    digest, last = hashlib.sha256(), max(0, path.stat().st_size - _PIECE)
    with path.open("rb") as file:
        for number in range(_PIECES):
            file.seek(last * number // (_PIECES - 1))
            digest.update(file.read(_PIECE))
    return digest.hexdigest()
