"""A collection of embeddings: rows in SQLite, and all vectors in one file that is mapped into memory.

``images.sqlite`` has three tables:

- ``collection``: one row of JSON, with the network that the vectors belong to and what is searched;
- ``embedded``: a row per file that was embedded, so that none is embedded twice;
- ``images``: a row per image of the indexed folder, which is what a query searches.

``vectors.f32`` has the embeddings of both, float32, of length 1, ``[vectors, D]``. It only grows: new vectors are
flushed before the transaction that commits their rows. A killed process leaves at most vectors without rows, which the
next one cuts off. Replaced and deleted rows leave holes; when a fifth of the file is holes, a new file takes its place.

Every row has the CRC-32 of its values and of its vector, so that a damaged one is noticed when it is read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import re
import shlex
import sqlite3
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..checksums import sha256_of
from ..errors import DataError, UnwritableError, shortened
from ..files import alone_in, writing
from .checks import StoreWarning
from .search import FaissIndex

COLLECTION = "collection"  # the folder in a run's folder
DATABASE = "images.sqlite"
_SCHEMA = (
    "CREATE TABLE collection (about TEXT NOT NULL, crc INTEGER NOT NULL)",
    "CREATE TABLE embedded (path BLOB PRIMARY KEY, size INTEGER, time INTEGER, length REAL, vector INTEGER, "
    "crc INTEGER) WITHOUT ROWID",
    "CREATE TABLE images (id INTEGER PRIMARY KEY, path BLOB UNIQUE, size INTEGER, time INTEGER, class BLOB, "
    "vector INTEGER UNIQUE, crc INTEGER)",
)
_OWN_FILES = re.compile(r"images\.sqlite(-journal)?|vectors(-\d+)?\.f32|search-\d+\.faiss")
_PATIENCE = 600.0  # seconds to wait for another process's transaction
_ROWS = 1 << 16  # vectors that are copied or checked at a time
_HASHED = 32_000_000  # bytes up to which the search file is hashed whenever it is opened
_PASSING = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_BUSY", "SQLITE_LOCKED")

Numbers = NDArray[np.int64]
Vectors = NDArray[np.float32]


class DamagedCollectionError(DataError):
    """A file of a collection is damaged; the text has its path, and what to type."""

    def __init__(self, path: Path, why: str, command: str) -> None:
        super().__init__(f"{path}: empty, cut or damaged ({why}); type: {command}")
        self.why = why


@dataclasses.dataclass(frozen=True)
class Owner:
    """The network that a collection belongs to; its identity is that of weights, preprocessing and precision."""

    run: Path
    identity: str
    size: int  # of embeddings


@dataclasses.dataclass(frozen=True)
class Index:
    """The images that a query searches."""

    folder: str  # without links
    images: int
    skipped: dict[str, str]  # why, by path
    first: int | None  # the number of the first vector, where all lie one after another
    factory: str = ""  # of faiss; "" for exact search
    effort: int | None = None
    recall_at_10: float | None = None
    file: str = ""  # of faiss's index, with its size and SHA-256
    bytes: int = 0
    sha256: str = ""


@dataclasses.dataclass(frozen=True)
class State:
    """The row of the table ``collection``."""

    run: str
    identity: str
    size: int
    file: str = "vectors.f32"
    vectors: int = 0  # in the file, holes included
    version: int = 0  # raised when the index or the numbers of vectors change
    next_id: int = 0  # the first that no image has had
    index: Index | None = None


class Image(NamedTuple):
    """A row of the table ``images``; the path is relative to the indexed folder."""

    id: int
    path: str
    size: int
    time: int
    class_name: str
    vector: int


@dataclasses.dataclass(frozen=True)
class Changes:
    """The images of a new index beside those of the index before: changed ones have another size or time."""

    new: int
    changed: int
    gone: int
    same: int

    def __str__(self) -> str:
        return f"{self.new:,} new, {self.changed:,} changed, {self.gone:,} gone, {self.same:,} as before"


def crc_of(vector: Any, *values: object) -> int:
    """Return the CRC-32 of a row's values and of its vector, whose number may change."""
    return zlib.crc32(vector, zlib.crc32(repr(values).encode()))


def path_bytes(path: str) -> bytes:
    """Return a path as the tables have it: the bytes on the disk, since names need not be text."""
    return os.fsencode(path.replace(os.sep, "/"))


class Transaction:
    """A transaction on a collection, with the state and the vectors that belong to it."""

    def __init__(self, collection: Collection, connection: sqlite3.Connection) -> None:
        self.connection, self._collection = connection, collection
        rows = connection.execute("SELECT about, crc FROM collection").fetchall()
        if len(rows) != 1 or zlib.crc32(str(rows[0][0]).encode()) != rows[0][1]:
            raise ValueError("its checksum does not fit")
        values = json.loads(rows[0][0])
        index = values.pop("index")
        self.state = State(**values, index=None if index is None else Index(**index))
        self._vectors: Vectors | None = None

    def save(self, state: State) -> None:
        """Replace the state."""
        text = json.dumps(dataclasses.asdict(state))
        self.connection.execute("UPDATE collection SET about = ?, crc = ?", (text, zlib.crc32(text.encode())))
        self.state = state

    def vectors(self) -> Vectors:
        """Map the vectors into memory; those that a cut file lacks are missing at the end."""
        if self._vectors is None:
            path, size, count = self._collection.place / self.state.file, self.state.size, 0
            with contextlib.suppress(FileNotFoundError):
                count = min(self.state.vectors, path.stat().st_size // (4 * size))
            self._vectors = np.empty((0, size), dtype=np.float32)
            if count:  # mapped copy-on-write, since torch warns of arrays that are read-only
                self._vectors = np.asarray(np.memmap(path, np.float32, "c", shape=(count, size)))
        return self._vectors

    def fits(self, vector: Any, crc: Any, *values: object) -> bool:
        """Return whether a row's checksum is that of its values and its vector."""
        vectors = self.vectors()
        in_file = isinstance(vector, int) and 0 <= vector < len(vectors)
        return in_file and crc_of(vectors[vector].data, *values) == crc

    def images(self, where: str = "", *values: object) -> Iterator[tuple[Image, bool]]:
        """Read rows of ``images``, each with whether it and its vector are undamaged."""
        query = f"SELECT id, path, size, time, class, vector, crc FROM images {where}"
        for id, path, size, time, name, vector, crc in self.connection.execute(query, values):
            fits = self.fits(vector, crc, id, path, size, time, name)
            yield Image(id, _text(path), size, time, _text(name), vector), fits


class Collection:
    """The embeddings of a network on the disk."""

    def __init__(self, place: Path, owner: Owner) -> None:
        self.place, self.owner = place.absolute(), owner
        self._state: State | None = None  # the last that was read, for errors

    @property
    def database(self) -> Path:
        """The file with the rows."""
        return self.place / DATABASE

    @property
    def exists(self) -> bool:
        """Whether there is a collection in the folder, damaged or not."""
        with contextlib.suppress(OSError):
            if self.database.stat().st_size:
                return True
        return next(self.place.glob("vectors*.f32"), None) is not None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other passes over folders; a second process waits, with a warning."""

        def waits() -> None:
            text = f"{self.place}: another process embeds images into it; waiting until it is done"
            warnings.warn(text, StoreWarning, stacklevel=6)

        with writing(self.place):
            self.place.mkdir(parents=True, exist_ok=True)
        try:
            with alone_in(self.place, waits):
                yield
        finally:
            if not self.exists:  # nothing was written
                with contextlib.suppress(OSError):
                    self.place.rmdir()

    @contextlib.contextmanager
    def transaction(self, write: bool = False) -> Iterator[Transaction]:
        """Open a transaction; an error undoes what was written in it."""
        if not self.database.is_file() or not self.database.stat().st_size:
            raise self.damaged("missing or empty")
        with self._connected("rw", write) as connection:
            try:
                current = Transaction(self, connection)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise self.damaged(shortened(error, 100)) from None
            self._state = current.state
            yield current

    def damaged(self, why: str, path: Path | None = None) -> DamagedCollectionError:
        """Return the error of a damaged file, by default of the database."""
        return DamagedCollectionError(path or self.database, why, self.command())

    @contextlib.contextmanager
    def _connected(self, mode: str, write: bool) -> Iterator[sqlite3.Connection]:
        try:
            address = f"{self.database.as_uri()}?mode={mode}"
            connection = sqlite3.connect(address, timeout=_PATIENCE, isolation_level=None, uri=True)
            try:
                connection.execute("PRAGMA temp_store = MEMORY")
                connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                yield connection
                connection.execute("COMMIT")
            finally:
                connection.close()  # which undoes what is not committed
        except sqlite3.Error as error:
            if str(getattr(error, "sqlite_errorname", "")).startswith(_PASSING):
                verb, kind = ("written", UnwritableError) if write else ("read", DataError)
                end = "; what was written before stays" * write
                raise kind(f"{self.database}: cannot be {verb} ({error}){end}") from error
            raise self.damaged(shortened(error, 100)) from error

    def is_usable(self) -> bool:
        """Whether there is a collection of this network."""
        try:
            with self.transaction() as current:
                return current.state.identity == self.owner.identity
        except (DataError, OSError):
            return False

    def create(self, replace: bool) -> None:
        """Create the collection where there is none; a damaged one is replaced, with a warning."""
        why = ""
        try:
            with self.transaction() as current:
                problem = current.connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                if problem != "ok":
                    raise self.damaged(problem)
                if current.state.identity == self.owner.identity:
                    return
                if not replace:
                    raise DataError(self._foreign(current.state))
                why = "of an earlier state of the run (other weights, preprocessing or precision)"
        except DamagedCollectionError as error:
            if self.exists:
                why = f"damaged ({error.why})"
        if why:
            warnings.warn(
                f"{self.place}: the collection is {why}; it is removed, its images are embedded again and get new ids",
                StoreWarning,
                stacklevel=6,
            )
            self.remove()
        with self._connected("rwc", True) as connection:
            if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                for table in _SCHEMA:
                    connection.execute(table)
                text = json.dumps(dataclasses.asdict(State(str(self.owner.run), self.owner.identity, self.owner.size)))
                connection.execute("INSERT INTO collection VALUES (?, ?)", (text, zlib.crc32(text.encode())))

    def remove(self) -> None:
        """Remove the collection's files."""
        for path in self.place.iterdir():
            if _OWN_FILES.fullmatch(path.name):
                path.unlink(missing_ok=True)

    # Embedded files

    def find(
        self, folder: bytes, files: dict[bytes, tuple[int, int]]
    ) -> tuple[dict[bytes, tuple[int, float]], list[bytes]]:
        """Look up files below a folder."""
        found: dict[bytes, tuple[int, float]] = {}
        gone, damaged = [], 0
        with self.transaction() as current:
            query = "SELECT path, size, time, length, vector, crc FROM embedded WHERE path >= ? AND path < ?"
            rows = current.connection.execute(query, (folder, folder[:-1] + b"0"))
            for path, size, time, length, vector, crc in rows:
                if path not in files:
                    gone.append(path)
                elif not current.fits(vector, crc, path, size, time, length):
                    damaged += 1
                elif files[path] == (size, time):
                    found[path] = vector, length
        self._warn_of_damaged(damaged)
        return found, gone

    def embeddings_of(self, files: dict[bytes, tuple[int, int]]) -> dict[bytes, Vectors]:
        """Look up single files; return the vectors and lengths, ``[D + 1]``, of those that are as they were."""
        found, damaged = {}, 0
        with self.transaction() as current:
            if current.state.identity != self.owner.identity:
                return {}
            query = "SELECT size, time, length, vector, crc FROM embedded WHERE path = ?"
            for path, wanted in files.items():
                for size, time, length, vector, crc in current.connection.execute(query, (path,)):
                    if not current.fits(vector, crc, path, size, time, length):
                        damaged += 1
                    elif wanted == (size, time):
                        found[path] = np.append(current.vectors()[vector], np.float32(length))
        self._warn_of_damaged(damaged)
        return found

    def _warn_of_damaged(self, rows: int) -> None:
        if rows:
            images = "1 image was" if rows == 1 else f"{rows} images were"
            text = f"{self.place}: the embedding of {images} damaged; embedded again"
            warnings.warn(text, StoreWarning, stacklevel=6)

    def append(self, paths: Sequence[bytes], facts: Sequence[tuple[int, int]], rows: Vectors) -> int:
        """Write vectors of length 1 and the lengths that the network gave them; return the first vector's number."""
        vectors = np.ascontiguousarray(rows[:, :-1], dtype=np.float32)
        with self.transaction(write=True) as current:
            first = self._extend(current, vectors)
            values = [
                (path, *known, length, first + row, crc_of(vectors[row].data, path, *known, length))
                for row, (path, known, length) in enumerate(zip(paths, facts, rows[:, -1].tolist(), strict=True))
            ]
            current.connection.executemany("INSERT OR REPLACE INTO embedded VALUES (?, ?, ?, ?, ?, ?)", values)
        return first

    def append_vectors(self, vectors: Vectors) -> int:
        """Write vectors without files, and return the number of the first."""
        with self.transaction(write=True) as current:
            return self._extend(current, vectors)

    def _extend(self, current: Transaction, vectors: Vectors) -> int:
        state = current.state
        self.check_owner(state)
        path, end = self.place / state.file, 4 * state.size * state.vectors
        with writing(path), path.open("r+b" if path.exists() else "w+b") as file:
            if file.seek(0, os.SEEK_END) > end:  # vectors of a process that was killed before it committed their rows
                file.truncate(end)
            file.seek(end)
            for start in range(0, len(vectors), _ROWS):
                file.write(np.ascontiguousarray(vectors[start : start + _ROWS], dtype=np.float32).data)
            file.flush()
            os.fsync(file.fileno())
        current.save(dataclasses.replace(state, vectors=state.vectors + len(vectors)))
        return state.vectors

    def forget(self, paths: Sequence[bytes]) -> None:
        """Delete the rows of files that are gone."""
        if paths:
            with self.transaction(write=True) as current:
                current.connection.executemany("DELETE FROM embedded WHERE path = ?", [(path,) for path in paths])

    def compact(self) -> None:
        """Move the vectors to a new file where a fifth of the old one is holes, and remove files that are not in use.

        To be called inside :meth:`locked`. Readers that have the old file mapped keep it until they read the version.
        """
        self._move_vectors()
        with self.transaction() as current:
            index = current.state.index
            used = {current.state.file, index.file if index is not None else ""}
            for path in self.place.iterdir():
                if _OWN_FILES.fullmatch(path.name) and not path.name.startswith(DATABASE) and path.name not in used:
                    with contextlib.suppress(PermissionError):  # on Windows, while a reader has it mapped
                        path.unlink(missing_ok=True)

    def _move_vectors(self) -> None:
        new = self.place
        try:
            with self.transaction(write=True) as current:
                state, connection = current.state, current.connection
                query = "SELECT vector FROM embedded UNION SELECT vector FROM images ORDER BY vector"
                live = np.fromiter((row[0] for row in connection.execute(query)), dtype=np.int64)
                vectors = current.vectors()
                if 5 * (state.vectors - len(live)) < state.vectors or len(vectors) < state.vectors:
                    return
                new = self.place / f"vectors-{state.version + 1}.f32"
                with writing(new), new.open("wb") as file:
                    for start in range(0, len(live), _ROWS):
                        file.write(vectors[live[start : start + _ROWS]].data)
                    file.flush()
                    os.fsync(file.fileno())
                connection.execute("CREATE TEMP TABLE moved (old INTEGER PRIMARY KEY, new INTEGER)")
                connection.executemany(
                    "INSERT INTO moved VALUES (?, ?)", ((row, number) for number, row in enumerate(live.tolist()))
                )
                connection.execute("UPDATE embedded SET vector = (SELECT new FROM moved WHERE old = vector)")
                # below 0 first, so that no two images have the same number meanwhile
                connection.execute("UPDATE images SET vector = (SELECT -1 - new FROM moved WHERE old = vector)")
                connection.execute("UPDATE images SET vector = -1 - vector")
                index = state.index
                if index is not None:
                    numbers = connection.execute("SELECT min(vector), max(vector) FROM images").fetchone()
                    together = numbers[1] - numbers[0] + 1 == index.images
                    index = dataclasses.replace(index, first=numbers[0] if together else None)
                version = state.version + 1
                current.save(dataclasses.replace(state, file=new.name, vectors=len(live), version=version, index=index))
        except UnwritableError as error:
            warnings.warn(f"the collection could not be compacted: {error}", StoreWarning, stacklevel=4)

    # The index

    def write_index(
        self,
        folder: Path,
        names: Sequence[str],
        facts: Sequence[tuple[int, int]],
        vectors: Numbers,
        skipped: dict[str, str],
        build: Callable[[Vectors], FaissIndex | None],
    ) -> Changes | None:
        """Replace what a query searches, in one transaction; to be called inside :meth:`locked`."""
        source = str(folder.resolve())
        order = np.argsort(vectors)
        ordered = vectors[order]
        first = int(ordered[0]) if int(ordered[-1]) - int(ordered[0]) + 1 == len(ordered) else None
        with self.transaction() as current:
            mapped, version = current.vectors(), current.state.version + 1
        faiss = build(mapped[ordered] if first is None else mapped[first : first + len(ordered)])
        index = Index(source, len(names), skipped, first)
        path = self.place / f"search-{version}.faiss"
        try:
            if faiss is not None:
                _write_faiss(path, faiss)
                index = dataclasses.replace(
                    index,
                    factory=faiss.factory,
                    effort=faiss.effort,
                    recall_at_10=faiss.recall,
                    file=path.name,
                    bytes=path.stat().st_size,
                    sha256=sha256_of(path),
                )
            with self.transaction(write=True) as current:
                changes = self._replace_images(current, index, names, facts, vectors, mapped, version)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return changes

    def _replace_images(
        self,
        current: Transaction,
        index: Index,
        names: Sequence[str],
        facts: Sequence[tuple[int, int]],
        vectors: Numbers,
        mapped: Vectors,
        version: int,
    ) -> Changes | None:
        state, before = current.state, current.state.index
        known: dict[str, Image] = {}
        if before is not None and before.folder == index.folder:
            known = {image.path: image for image, fits in current.images() if fits}
            if len(known) < before.images:
                text = f"{self.database}: {before.images - len(known)} rows of the index were damaged"
                warnings.warn(f"{text}; their images get new ids", StoreWarning, stacklevel=6)
        next_id, changed, rows = state.next_id, 0, []
        for name, (size, time), vector in zip(names, facts, vectors.tolist(), strict=True):
            image = known.get(name)
            if image is None:
                id, next_id = next_id, next_id + 1
            else:
                id, changed = image.id, changed + ((image.size, image.time) != (size, time))
            values = id, path_bytes(name), size, time, path_bytes(class_of(name))
            rows.append((*values, vector, crc_of(mapped[vector].data, *values)))
        current.connection.execute("DELETE FROM images")
        current.connection.executemany("INSERT INTO images VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        current.save(dataclasses.replace(state, version=version, next_id=next_id, index=index))
        if before is None or before.folder != index.folder:
            return None
        kept = len(names) - (next_id - state.next_id)
        return Changes(len(names) - kept, changed, len(known) - kept, kept - changed)

    def read_faiss(self, index: Index, thorough: bool = False) -> FaissIndex | None:
        """Open the file that faiss searches; None for exact search."""
        if not index.file:
            return None
        path = self.place / index.file
        try:
            same = path.stat().st_size == index.bytes
            if same and (thorough or index.bytes <= _HASHED):
                same = sha256_of(path) == index.sha256
            if not same:
                raise self.damaged(f"not the file that {DATABASE} was written for", path)
            faiss = FaissIndex.read(path, index.factory)
        except (OSError, RuntimeError) as error:
            raise self.damaged(shortened(error, 100), path) from None
        faiss.effort, faiss.recall = index.effort or 0, index.recall_at_10
        return faiss

    # Errors

    def command(self) -> str:
        """Return the command that makes the index again."""
        state = self._state
        words = ["pml-ext", "index", str(self.owner.run)]
        options = ["--store", str(self.place)] if self.place != (self.owner.run / COLLECTION).absolute() else []
        if state is None or state.index is None:
            return f"{shlex.join(words)} FOLDER{' ' * bool(options)}{shlex.join(options)}"
        factory = ["--index", state.index.factory] if state.index.factory else []
        return shlex.join([*words, state.index.folder, *options, *factory])

    def check_owner(self, state: State) -> None:
        """Refuse a collection of another network."""
        if state.identity != self.owner.identity:
            raise DataError(self._foreign(state))

    def _foreign(self, state: State) -> str:
        return (
            f"{self.place} was built by the run {state.run} ({state.identity}), not by {self.owner.run} "
            f"({self.owner.identity}); type: {self.command()}"
        )


def class_of(path: str) -> str:
    """Return the first sub-folder of a path; "" where it has none."""
    return path.partition("/")[0] if "/" in path else ""


def why_unwritable(place: Path) -> str | None:
    """Return why a folder, which is created, may not be written; None where it may."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            return None
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR):
            return error.strerror
        raise UnwritableError(f"{place}: cannot be written ({error.strerror or error})") from error


def _write_faiss(path: Path, faiss: FaissIndex) -> None:
    with writing(path):
        try:
            faiss.write(path)
        except RuntimeError as error:  # faiss has no error of its own for a full disk
            reason = str(error).strip().rpartition(": ")[2]
            raise UnwritableError(f"{path}: cannot be written ({reason}); what was written before stays") from error
        with path.open("rb+") as file:
            os.fsync(file.fileno())


def _text(value: Any) -> str:
    return os.fsdecode(value) if isinstance(value, (bytes, str)) else repr(value)
