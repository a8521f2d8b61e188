"""Features on disk: a file of float32 or float16 rows, and a table of their keys."""

import contextlib
import hashlib
import json
import os
import re
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pml_ext.errors import DataError, UnwritableError, one_line

from ..data import LabeledImages
from ..files import FileStat, writing
from ..files.stat import MISSING, file_stat, path_bytes

Vectors = NDArray[np.floating[Any]]

_TABLE = (
    "CREATE TABLE IF NOT EXISTS rows (key BLOB PRIMARY KEY, size INTEGER, time INTEGER, row INTEGER, crc INTEGER) "
    "WITHOUT ROWID"
)
_WAIT = 600.0  # seconds for another process's transaction


class FeatureStore:
    """Vectors ``[N, F]`` in a folder, by a key and a file's size and time.

    Rows are only appended, so readers may map the file. Several processes may append.
    """

    def __init__(self, folder: Path, size: int, dtype: type[np.floating[Any]] = np.float32) -> None:
        self.folder = folder
        self.dtype = np.dtype(dtype)
        self._size = size
        self._database = folder / "keys.sqlite"
        self._file = folder / f"vectors.f{8 * self.dtype.itemsize}"

    def find(self, stats: Mapping[bytes, FileStat]) -> tuple[dict[bytes, int], int]:
        """Return the rows of unchanged keys, and the number of damaged rows."""
        rows: dict[bytes, int] = {}
        damaged = 0
        if not self._database.exists():
            return rows, damaged
        vectors = self.vectors()
        with self._transaction() as connection:
            for key, stat in stats.items():
                found = connection.execute(
                    "SELECT row, crc FROM rows WHERE key = ? AND size = ? AND time = ?", (key, *stat)
                ).fetchone()
                if found is None:
                    continue
                row, crc = found
                if row < len(vectors) and zlib.crc32(vectors[row].tobytes()) == crc:
                    rows[key] = row
                else:
                    damaged += 1
        return rows, damaged

    def append(self, keys: Sequence[bytes], stats: Sequence[FileStat], vectors: Vectors) -> dict[bytes, int]:
        """Write vectors ``[N, F]`` over a killed process's remains; return their rows."""
        self.folder.mkdir(parents=True, exist_ok=True)
        vectors = np.ascontiguousarray(vectors, dtype=self.dtype)
        with self._transaction() as connection:
            connection.execute(_TABLE)
            (first,) = connection.execute("SELECT COALESCE(MAX(row) + 1, 0) FROM rows").fetchone()
            with writing(self._file), open(self._file, "r+b" if self._file.exists() else "w+b") as file:
                file.seek(first * self._size * vectors.itemsize)
                file.write(vectors.tobytes())
                file.flush()
                os.fsync(file.fileno())
            entries = [
                (key, *stat, first + number, zlib.crc32(vectors[number].tobytes()))
                for number, (key, stat) in enumerate(zip(keys, stats, strict=True))
            ]
            connection.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?, ?)", entries)
        return {key: first + number for number, key in enumerate(keys)}

    def vectors(self) -> Vectors:
        """Map the complete rows of the file, ``[M, F]``."""
        count = self._file.stat().st_size // (self.dtype.itemsize * self._size) if self._file.exists() else 0
        if count == 0:
            return np.empty((0, self._size), dtype=self.dtype)
        # copy-on-write, since torch warns of arrays that are read-only
        return np.asarray(np.memmap(self._file, self.dtype, "c", shape=(count, self._size)))

    def clear(self) -> None:
        """Delete the vectors of a damaged store."""
        self._database.unlink(missing_ok=True)
        self._file.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """DataError for a damaged database, UnwritableError for a locked, read-only or full one."""
        try:
            opened = sqlite3.connect(self._database, timeout=_WAIT, isolation_level=None)
            with contextlib.closing(opened) as connection, connection:  # commits, or rolls back
                connection.execute("BEGIN IMMEDIATE")
                yield connection
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "SQLITE_ERROR")
            if isinstance(error, sqlite3.OperationalError) and name != "SQLITE_ERROR":  # that is of a missing table
                text = f"{self._database}: cannot be written now ({one_line(error)})"
                raise UnwritableError(f"{text}; earlier entries are kept") from error
            text = f"{self._database}: damaged ({one_line(error)})"
            raise DataError(f"{text}; delete {self.folder} to compute it again") from error


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of an object without a representation of its own, in that of a module
# Names of batch norms, and the order of what timm's hold, differ in a network that several processes have trained.
_BATCH_NORM = re.compile(r"\b_?(Sync|Joined)?BatchNorm(Act)?([123]d)?\(")
_ACT_BEFORE_DROP = re.compile(r"( *\(act\): .*\n)( *\(drop\): .*\n)")


def trunk_digest(trunk: nn.Module, about: Any) -> str:
    """Digest of a trunk's modules and weights, and of ``about``."""
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    modules = _BATCH_NORM.sub("BatchNorm(", _ADDRESS.sub("", str(trunk)))
    digest.update(_ACT_BEFORE_DROP.sub(r"\2\1", modules).encode())
    for name, tensor in trunk.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def keys_of(images: LabeledImages, view: int) -> list[bytes]:
    """Key of each image in a view: its file or pixels, and its box."""
    if images.paths is None:
        pixels: Any = images.images
        sources = [hashlib.sha256(image.contiguous().numpy().data).digest() for image in pixels]
    else:
        sources = [file_bytes(path) for path in images.paths]
    boxes = [b""] * len(sources) if images.boxes is None else [repr(box.tolist()).encode() for box in images.boxes]
    return [key_of(source, box, view) for source, box in zip(sources, boxes, strict=True)]


def key_of(source: bytes, box: bytes = b"", view: int = 0) -> bytes:
    """Key of an image's features; by default of the whole, unaugmented image."""
    return b"%s\0%s\0%d" % (source, box, view)


def file_bytes(path: str | Path) -> bytes:
    """A file's resolved path."""
    return path_bytes(os.path.realpath(path))


def stat_of(path: Path | None) -> FileStat:
    """Size and time of a file; constant for pixels or a missing file."""
    if path is None:
        return (0, 0)
    return file_stat(Path(path)) or MISSING


def seed_of(key: bytes) -> int:
    """Seed of an image's random transforms."""
    return int.from_bytes(hashlib.sha256(key).digest()[:7])
