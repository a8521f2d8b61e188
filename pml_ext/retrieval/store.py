"""Embeddings of image files, kept in Parquet files as they are computed, so that no file is embedded twice.

A shard has a row per image: the folder that was embedded and the path in it (bytes, since names need not be text), size
in bytes, time of modification in nanoseconds, class, and the embedding as the network gives it, float32, not of length
1. Its name has the identity of what computed it and the checksum of its bytes. A file whose size or time is another one
is embedded again; one that was replaced by another of the same size and time is not noticed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, UnwritableError, needs_extra, one_line, shortened
from ..files import alone_in, remove_left_overs, write_atomically, writing
from .listing import FileFacts, Listing

STORE = "embeddings"  # the folder in a run's folder
SHARD = 1000  # images of a shard, to a batch
_SMALL, _MANY = 8_000_000, 16  # as many shards of less than as many bytes are joined
_LARGE = 64_000_000  # bytes of a joined shard, about
_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{32})\.parquet")
_KEYS = ["folder", "path", "size", "modified_ns"]
Numbers = NDArray[np.int64]


class StoreWarning(UserWarning):
    """A store of embeddings is not as it was left, or cannot be written; what is not in it is embedded again."""


@dataclasses.dataclass
class Places:
    """Where the embeddings of images are in a store.

    Args:
        shards: names of the files.
        shard: of each image, by its number among these, -1 where the store does not have it, ``[N]``.
        row: of each image in its shard, ``[N]``.
    """

    shards: list[str]
    shard: Numbers
    row: Numbers

    def missing(self) -> Numbers:
        """The images that the store does not have, by number."""
        return np.flatnonzero(self.shard < 0)

    def add(self, name: str, numbers: Numbers) -> None:
        """Takes up images that lie in the order of ``numbers`` in a shard."""
        self.shards.append(name)
        self.shard[numbers] = len(self.shards) - 1
        self.row[numbers] = np.arange(len(numbers))


class EmbeddingStore:
    """The embeddings of one state of a run; see :func:`opened_store`.

    Args:
        place: the folder; None keeps what is added in memory.
        identity: of what computes embeddings, 16 hexadecimal digits.
        size: D, of an embedding.
    """

    def __init__(self, place: Path | None, identity: str, size: int) -> None:
        self.place, self._identity, self.size = place, identity, size
        self._held: dict[str, bytes] = {}
        self._rows: dict[str, Numbers] = {}  # by shard, the image of each row: a number, -1 gone, -2 of another folder

    def create(self) -> None:
        """Creates the folder, in one that is there.

        Raises:
            UnwritableError: the system refuses.
        """
        if self.place is not None:
            with writing(self.place):
                self.place.mkdir(exist_ok=True)

    def bytes_of(self, names: Sequence[str]) -> int:
        """The size of shards; those that are gone have none."""
        size = 0
        for name in names:
            with contextlib.suppress(OSError):
                size += self._path(name).stat().st_size
        return size

    def files(self, name: str) -> list[FileFacts]:
        """The files of a shard, by row; none of one that is gone or damaged."""
        table = self._read(name, _KEYS)
        if table is None:
            return []
        columns = [table[key].to_pylist() for key in _KEYS]
        return [
            FileFacts(os.path.join(os.fsdecode(folder), *os.fsdecode(path).split("/")), size, time)
            for folder, path, size, time in zip(*columns, strict=True)
        ]

    def embeddings(self, name: str) -> NDArray[np.float32] | None:
        """The embeddings of a shard, ``[rows, D]``; None of one that is gone or damaged."""
        table = self._read(name, ["embedding"])
        return None if table is None else self._embeddings_of(table)

    def find(self, listing: Listing) -> Places:
        """Where the images of a folder are, by path, size and time, whichever folder they were embedded with.

        Shards that are damaged are named in a warning and removed.

        Args:
            listing: of the folder.
        """
        numbers = {name: number for number, name in enumerate(listing.names)}
        unknown = np.full(len(numbers), -1, dtype=np.int64)
        places = Places([], unknown, unknown.copy())
        for name in self.names():
            table = self._read(name, _KEYS)
            if table is None:
                continue
            rows = _numbers_of_rows(table, numbers, listing.folder.resolve())
            self._rows[name] = rows
            fits = rows >= 0
            fits[fits] = (table["size"].to_numpy()[fits] == listing.sizes[rows[fits]]) & (
                table["modified_ns"].to_numpy()[fits] == listing.times[rows[fits]]
            )
            fits[fits] = places.shard[rows[fits]] < 0
            places.shards.append(name)
            places.shard[rows[fits]] = len(places.shards) - 1
            places.row[rows[fits]] = np.flatnonzero(fits)
        return places

    def add(self, listing: Listing, numbers: Numbers, embeddings: NDArray[np.float32]) -> str:
        """Writes a shard.

        Args:
            listing: of the folder.
            numbers: of the images in it, ``[B]``, none twice.
            embeddings: of these, ``[B, D]``.

        Returns:
            The shard's name.

        Raises:
            UnwritableError: the disk is full, say; the shards before stay.
        """
        with needs_extra("train", "a store of embeddings"):
            import pyarrow as pa
        chosen = [listing.names[number] for number in numbers]
        folder = os.fsencode(listing.folder.resolve())
        columns = {
            "folder": pa.array([folder] * len(chosen), pa.binary()),
            "path": pa.array(map(os.fsencode, chosen), pa.binary()),
            "size": pa.array(listing.sizes[numbers]),
            "modified_ns": pa.array(listing.times[numbers]),
            "class": pa.array(
                [os.fsencode(name.partition("/")[0]) if "/" in name else b"" for name in chosen], pa.binary()
            ),
            "embedding": pa.FixedSizeListArray.from_arrays(
                pa.array(np.ascontiguousarray(embeddings, dtype=np.float32).reshape(-1)), self.size
            ),
        }
        name = self._write(pa.table(columns))
        self._rows[name] = numbers
        return name

    def read(self, places: Places) -> tuple[Numbers, NDArray[np.float32]]:
        """The images that have an embedding, by number, ``[M]``, and their embeddings, ``[M, D]``.

        One shard is held beside these at a time.

        Raises:
            DataError: a shard is gone or damaged since :meth:`find`.
        """
        kept = np.flatnonzero(places.shard >= 0)
        embeddings = np.empty((len(kept), self.size), dtype=np.float32)
        for number, name in enumerate(places.shards):
            wanted = np.flatnonzero(places.shard[kept] == number)
            if not len(wanted):
                continue
            rows = self.embeddings(name)
            if rows is None:
                raise DataError(f"{self._path(name)}: gone or damaged while it was read; type the same command again")
            embeddings[wanted] = rows[places.row[kept[wanted]]]
        return kept, embeddings

    def compact(self, places: Places) -> None:
        """Joins small shards where there are many, and leaves out rows that are replaced, gone or there twice.

        That is done to more than 16 shards of less than 8 MB, and where a third of all rows is of no use. Shards that
        are joined stay until what takes their place is written.

        Args:
            places: of the images of the folder that was looked for, all of them embedded.
        """
        if self.place is None:
            return
        kept = {name: np.flatnonzero(self._is_kept(name, places)) for name in self._rows}
        rows = sum(map(len, self._rows.values()))
        small = [name for name in kept if self._path(name).stat().st_size < _SMALL]
        chosen = small if len(small) > _MANY else []
        if 3 * (rows - sum(map(len, kept.values()))) >= rows:
            chosen = list(dict.fromkeys([*chosen, *(name for name in kept if len(kept[name]) < len(self._rows[name]))]))
        if not chosen:
            return
        try:
            self._join(chosen, kept)
        except UnwritableError as error:  # nothing is lost
            warnings.warn(f"shards could not be joined: {error}", StoreWarning, stacklevel=4)

    def _join(self, chosen: Sequence[str], kept: dict[str, Numbers]) -> None:
        import pyarrow as pa

        written, read, waiting, size = [], [], [], 0
        for name in chosen:
            table = self._read(name)
            if table is not None:
                read.append(name)
                part = table.take(kept[name])
                waiting.append(part)
                size += part.nbytes
            if waiting and (size > _LARGE or name == chosen[-1]):
                written.append(self._write(pa.concat_tables(waiting)))
                waiting, size = [], 0
        for name in {*read} - {*written}:
            self._path(name).unlink(missing_ok=True)

    def _is_kept(self, name: str, places: Places) -> NDArray[np.bool_]:
        rows = self._rows[name]
        number = places.shards.index(name)
        used: NDArray[np.bool_] = rows == -2
        ours = np.flatnonzero(rows >= 0)
        used[ours] = (places.shard[rows[ours]] == number) & (places.row[rows[ours]] == ours)
        return used

    def names(self) -> list[str]:
        """Of all shards; none of a store that is not there."""
        if self.place is None:
            return []
        try:
            there = sorted(os.listdir(self.place))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            warnings.warn(
                f"{self.place}: cannot be read ({error.strerror or error}); what it has is embedded again",
                StoreWarning,
                stacklevel=4,
            )
            return []
        return [name for name in there if (match := _NAME.fullmatch(name)) is not None and match[1] == self._identity]

    def _path(self, name: str) -> Path:
        assert self.place is not None
        return self.place / name

    def _write(self, table: Any) -> str:
        import pyarrow as pa
        import pyarrow.parquet as pq

        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, use_dictionary=["folder", "class"], write_statistics=False)
        content = sink.getvalue().to_pybytes()
        name = f"{self._identity}-{hashlib.sha256(content).hexdigest()[:32]}.parquet"
        if self.place is None:
            self._held[name] = content
        else:
            write_atomically(self.place / name, lambda path: path.write_bytes(content))
        return name

    def _read(self, name: str, columns: list[str] | None = None) -> Any:
        """A shard's table; None for one that is gone, and with a warning for one that cannot be read or is damaged.

        A damaged one is removed.
        """
        with needs_extra("train", "a store of embeddings"):
            import pyarrow as pa
            import pyarrow.parquet as pq
        try:
            content = self._held[name] if self.place is None else self._path(name).read_bytes()
        except FileNotFoundError:  # another process has joined it with others
            return None
        except OSError as error:
            warnings.warn(
                f"{self._path(name)}: cannot be read ({error.strerror or error}); its images are embedded again",
                StoreWarning,
                stacklevel=4,
            )
            return None
        try:
            if hashlib.sha256(content).hexdigest()[:32] != name[17:49]:
                raise ValueError("its checksum does not fit")
            table = pq.read_table(pa.BufferReader(content), columns=columns)
            if "embedding" in table.column_names:
                self._embeddings_of(table)
            return table
        except MemoryError:  # which pyarrow has as one of its own
            raise
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            why = shortened(error if str(error) else one_line(error), 100)
            warnings.warn(
                f"{self._path(name)}: damaged ({why}); removed, its images are embedded again",
                StoreWarning,
                stacklevel=4,
            )
            with contextlib.suppress(OSError):
                self._path(name).unlink()
            return None

    def _embeddings_of(self, table: Any) -> NDArray[np.float32]:
        column = table["embedding"].combine_chunks()
        values: NDArray[np.float32] = column.flatten().to_numpy(zero_copy_only=False).reshape(len(table), self.size)
        if not np.isfinite(values).all():
            raise ValueError("NaN or infinity in it")
        return values


def _numbers_of_rows(table: Any, numbers: dict[str, int], folder: Path) -> Numbers:
    """The image of each row by number; -1 for one that is gone from the folder, -2 for one of another folder."""
    here = os.fsencode(folder)
    rows = np.full(len(table), -2, dtype=np.int64)
    folders = table["folder"].to_pylist()
    for row, (own, path) in enumerate(zip(folders, table["path"].to_pylist(), strict=True)):
        if own == here:
            rows[row] = numbers.get(os.fsdecode(path), -1)
        elif (whole := own.rstrip(b"/") + b"/" + path).startswith(here.rstrip(b"/") + b"/"):
            rows[row] = numbers.get(os.fsdecode(whole[len(here.rstrip(b"/")) + 1 :]), -2)
    return rows


@contextlib.contextmanager
def opened_store(place: Path, identity: str, size: int, own: bool) -> Iterator[EmbeddingStore]:
    """A store to read and write; a second process that wants it waits, with a warning.

    What killed processes left is removed, and in a run's own store the shards of its earlier states. A folder that may
    not be written is warned of: embeddings are kept in memory then.

    Args:
        place: the folder; created where it is missing.
        identity: of what computes embeddings.
        size: of an embedding.
        own: whether the folder is the run's own.

    Raises:
        UnwritableError: the disk is full, say.
    """
    if (why := _why_not(place)) is not None:
        warnings.warn(
            f"{place}: cannot be written ({why}), so embeddings are not kept; --store FOLDER names another "
            "place for them",
            StoreWarning,
            stacklevel=4,
        )
        yield EmbeddingStore(None, identity, size)
        return

    def waits() -> None:
        warnings.warn(
            f"{place}: another process embeds images into it; waiting until it is done", StoreWarning, stacklevel=6
        )

    with alone_in(place, waits):
        remove_left_overs(place, ())
        others = [match[0] for match in map(_NAME.fullmatch, os.listdir(place)) if match and match[1] != identity]
        if others and own:
            for name in others:
                (place / name).unlink(missing_ok=True)
            warnings.warn(
                f"{place}: {len(others)} file{'s' * (len(others) > 1)} of an earlier state of the run (other "
                "weights, preprocessing or precision) removed",
                StoreWarning,
                stacklevel=4,
            )
        yield EmbeddingStore(place, identity, size)


def _why_not(place: Path) -> str | None:
    """Why a folder, which is made, may not be written."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            return None
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR):
            return error.strerror
        raise
