"""A collection of embeddings: metadata in SQLite, and vectors in one memory-mapped file.

``images.sqlite`` has three tables:

- ``collection``: one row of JSON, with the network that the vectors belong to and the index;
- ``embedded``: a row per file that was embedded, so that none is embedded twice;
- ``images``: a row per image of the indexed folder, or per vector of the indexed file, which is what a query searches.

``vectors.f32`` has the embeddings of both, float32, of length 1, ``[vectors, D]``; ``features.f32`` has features
instead, so that the file's name still says what a damaged database does not. It only grows: new vectors are flushed
before the transaction that commits their rows. A killed process leaves at most vectors without rows, which the next one
cuts off. Replaced and deleted rows leave holes; when a fifth of the file is holes, a new file takes its place.

Every row has the CRC-32 of its values and of its vector, so that a damaged one is noticed when it is read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import shlex
import sqlite3
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from time import time_ns
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pml_ext.tool import (
    SPLIT_FOLDERS,
    VALIDATION_FOLDERS,
    By,
    Changes,
    ConfigError,
    DataError,
    FileStat,
    Numbers,
    UnwritableError,
    Vectors,
    counted,
    final_path,
    locked_folder,
    needs_extra,
    path_bytes,
    sha256_of,
    shortened,
    write_atomically,
    writing,
)

from .faiss_index import FaissIndex, chosen_factory

with needs_extra("train", "a collection"):
    from pydantic import BaseModel

COLLECTION = "collection"  # the folder in a run's folder
DATABASE = "images.sqlite"
LAYOUT = 2  # of the tables here and of stores; part of a collection's identity, so that those of another are made again
_SCHEMA = (
    "CREATE TABLE collection (about TEXT NOT NULL, crc INTEGER NOT NULL)",
    "CREATE TABLE embedded (path BLOB PRIMARY KEY, size INTEGER, time INTEGER, vector INTEGER, crc INTEGER) "
    "WITHOUT ROWID",
    "CREATE TABLE images (id INTEGER PRIMARY KEY, path BLOB UNIQUE, class_number INTEGER, size INTEGER, "
    "fingerprint INTEGER, vector INTEGER UNIQUE, crc INTEGER)",
)
_LIVE = "SELECT vector FROM embedded UNION SELECT vector FROM images ORDER BY vector"
_LOCK_TIMEOUT = 600.0  # seconds to wait for another process's transaction
_MAX_HASHED_BYTES = 32_000_000  # bytes up to which the search file is hashed whenever it is opened
_MIN_RECALL = 0.9  # recall@10 below which a warning is given

_STEMS: dict[By, str] = {"embeddings": "vectors", "features": "features"}  # of the names of files of vectors


class RetrievalWarning(UserWarning):
    """A request was met in part: fewer answers, low recall, an image that cannot be shown."""


class StoreWarning(UserWarning):
    """A collection is damaged or cannot be written; its missing images are embedded again."""


class DamagedCollectionError(DataError):
    """A file of a collection is damaged; the message has its path and the command to rebuild it."""


def _unknown() -> Numbers:
    return np.empty(0, dtype=np.int64)


class ClassFolders(BaseModel, frozen=True):
    """The sub-folders in an image's path that name its class."""

    levels: int | None = 1  # how many, from the outermost; None: all
    below_splits: bool = False  # whether the outermost sub-folders are train and test, which name no class

    @classmethod
    def of_paths(cls, paths: Iterable[str], levels: int | None) -> ClassFolders:
        """Return the folders of classes among these images; those of ``train`` and ``test`` lie inside of them."""
        outermost = set()
        for path in paths:
            outermost.update(_folders_of(path)[:1])
        below_splits = {*SPLIT_FOLDERS} <= outermost <= {*SPLIT_FOLDERS, *VALIDATION_FOLDERS}
        return cls(levels=levels, below_splits=below_splits)

    def places_of(self, name: str) -> list[str]:
        """Return the folders that images of a class may lie in."""
        if not self.below_splits:
            return [name]
        return [f"{split}/{name}" for split in (*SPLIT_FOLDERS, *VALIDATION_FOLDERS)]

    def class_of(self, path: str) -> str:
        """Return the class of an image, "" for one that lies in no such folder."""
        folders = _folders_of(path)
        if self.below_splits:
            folders = folders[1:]
        return "/".join(folders[: self.levels])


def _folders_of(path: str) -> list[str]:
    """Return the sub-folders in a path; of an image in a shard, those in the shard."""
    inside = path.rpartition(".tar/")[2]
    return inside.split("/")[:-1]


@dataclasses.dataclass(frozen=True)
class Embedded:
    """Images of a folder, or vectors of a file, and their embeddings; an array that is not known is empty."""

    folder: Path  # or the file of vectors
    paths: Sequence[str]  # relative to the folder; of vectors their ids
    embeddings: Tensor  # [N, D], of length 1
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)  # why a file is no readable image, by path
    stats: Numbers = dataclasses.field(default_factory=_unknown)  # sizes and fingerprints, [N, 2]; see Image
    new: int | None = None  # how many were embedded now
    numbers: Numbers = dataclasses.field(default_factory=_unknown)  # of their vectors in the collection, [N]
    ids: Numbers = dataclasses.field(default_factory=_unknown)  # of images of an index, [N]
    unlisted: Sequence[str] = ()  # folders and files that could not be looked at
    class_numbers: Numbers = dataclasses.field(default_factory=_unknown)  # of vectors, in class_names, [N]
    class_names: tuple[str, ...] | None = None  # of vectors
    class_folders: ClassFolders = dataclasses.field(default_factory=ClassFolders)  # of images

    @property
    def classes(self) -> Sequence[str]:
        """The class of every image, by its sub-folders, "" for one without; the class of every vector."""
        if self.class_names is None:
            return [self.class_folders.class_of(path) for path in self.paths]
        return [self.class_names[number] for number in self.class_numbers]

    @property
    def checksums(self) -> Numbers:
        """The checksum of each image's id, path, class, size, fingerprint and vector, ``[N]``."""
        checksums = []
        vectors = self.embeddings.cpu().numpy()
        columns = (self.ids.tolist(), self.paths, self.classes, self.stats.tolist(), vectors)
        for id, path, class_name, stat, vector in zip(*columns, strict=True):
            checksums.append(crc_of(vector.data, id, path_bytes(path), class_name, *stat))
        return np.array(checksums)


class Index(BaseModel, frozen=True):
    """The images that a query searches."""

    folder: str  # without links; the file of vectors
    images: int
    classes: tuple[str, ...] | None = None  # of vectors, by number; None for images
    class_folders: ClassFolders = ClassFolders()  # of images
    first: int | None  # row of the first vector if they are contiguous
    factory: str = ""  # of faiss; "" for exact search
    effort: int = 0
    recall: float | None = None
    file: str = ""  # of faiss's index, with its size and SHA-256
    bytes: int = 0
    sha256: str = ""


class State(BaseModel, frozen=True):
    """The row of the table ``collection``."""

    run: str
    identity: str
    size: int
    by: By = "embeddings"  # what the vectors are
    file: str = "vectors.f32"
    made: int = 0  # nanoseconds since 1970: tells apart collections that were made anew in one folder
    vectors: int = 0  # in the file, holes included
    version: int = 0  # raised when the index or the numbers of vectors change
    next_id: int = 0  # the first that no image has had
    index: Index | None = None
    files: tuple[str, ...] = ()  # all that were written, or begun, and not deleted since

    @property
    def used_files(self) -> set[str]:
        """The names of the files that belong to this state, beside the database."""
        if self.index is not None:
            return {self.file, self.index.file} - {""}
        return {self.file}

    @property
    def own_files(self) -> set[str]:
        """The names of all files of the collection, beside the database."""
        return {*self.files, *self.used_files}


@functools.lru_cache(16)
def _state_of(about: str, crc: int) -> State:
    if zlib.crc32(about.encode()) != crc:
        raise ValueError("its checksum does not fit")
    return State.model_validate_json(about)


class Image(NamedTuple):
    """A row of the table ``images``, which is an image of the indexed folder or a vector of the indexed file."""

    id: int
    path: str  # relative to the folder; of a vector its id
    class_number: int | None  # of a vector, among the index's classes
    size: int  # of the file, or of the vector's numbers, in bytes
    fingerprint: int  # the file's time of modification; of a vector the CRC-32 of its numbers
    vector: int
    class_name: str

    @property
    def stat(self) -> FileStat:
        """Size and fingerprint."""
        return self.size, self.fingerprint


def crc_of(vector: Any, *values: object) -> int:
    """Return the CRC-32 of a row's values and of its vector, whose number may change."""
    return zlib.crc32(vector, zlib.crc32(repr(values).encode()))


def in_shard(path: str) -> str:
    """Return the path of an image's shard, or its own path if it is in no shard."""
    shard, tar, _ = path.partition(".tar/")
    return shard + tar.rstrip("/")


def recorded_by(place: Path) -> By | None:
    """Return what a folder's collection compares images by; None if there is no collection.

    The database is opened to write as well, since a process that was killed may have left a journal to roll back.
    This reads a row, without the vectors and their checks: a damaged collection is told when it is opened. Where the
    row cannot be read, the names of the files of vectors say it.
    """
    database = place.resolve() / DATABASE
    try:
        address = f"{database.as_uri()}?mode=rw"
        with contextlib.closing(sqlite3.connect(address, timeout=_LOCK_TIMEOUT, uri=True)) as connection:
            ((about, crc),) = connection.execute("SELECT about, crc FROM collection").fetchall()
        return _state_of(about, crc).by
    except (sqlite3.Error, ValueError, TypeError, AttributeError):
        for by, stem in _STEMS.items():
            if any(place.glob(f"{stem}*.f32")):
                return by
        return None


def _vector_files(place: Path) -> list[Path]:
    """Return the files of a folder that may be a collection's vectors, by their names."""
    files: list[Path] = []
    for stem in _STEMS.values():
        files += place.glob(f"{stem}*.f32")
    return files


def _live_vectors(connection: sqlite3.Connection) -> Numbers:
    """Return the numbers of the vectors that an image has, ascending."""
    rows = connection.execute(_LIVE)
    return np.fromiter((number for (number,) in rows), dtype=np.int64)


def is_below(path: str, places: Set[str]) -> bool:
    """Return whether a path is one of some files and folders, or lies in one of the folders."""
    folders_and_file = itertools.accumulate(path.split("/"), "{}/{}".format)  # "a", "a/b", "a/b/c"
    return not places.isdisjoint(folders_and_file)


class Transaction:
    """A transaction on a collection, with the state and the vectors that belong to it."""

    def __init__(self, collection: Collection, connection: sqlite3.Connection) -> None:
        self.connection = connection
        ((about, crc),) = connection.execute("SELECT about, crc FROM collection").fetchall()
        self.state = _state_of(about, crc)
        self.vectors = collection.mapped(self.state)

    def save(self, **changes: Any) -> None:
        """Change the state."""
        self.state = self.state.model_copy(update=changes)
        text = self.state.model_dump_json()
        self.connection.execute("UPDATE collection SET about = ?, crc = ?", (text, zlib.crc32(text.encode())))

    def is_intact(self, vector: Any, crc: Any, *values: object) -> bool:
        """Return whether a row's checksum is that of its values and its vector."""
        in_file = isinstance(vector, int) and 0 <= vector < len(self.vectors)
        return in_file and crc_of(self.vectors[vector].data, *values) == crc

    def images(self, where: str = "", *values: object) -> Iterator[tuple[Image, bool]]:
        """Read rows of ``images``, each with whether it and its vector are undamaged."""
        query = f"SELECT id, path, class_number, size, fingerprint, vector, crc FROM images {where}"
        index = self.state.index
        classes = None if index is None else index.classes
        class_folders = ClassFolders() if index is None else index.class_folders
        for id, path, class_number, size, fingerprint, vector, crc in self.connection.execute(query, values):
            if isinstance(path, (bytes, str)):
                text = os.fsdecode(path)
            else:
                text = repr(path)
            is_intact = self.is_intact(vector, crc, id, path, class_number, size, fingerprint)
            class_name = ""
            if classes is None:
                class_name = class_folders.class_of(text)
            elif isinstance(class_number, int) and 0 <= class_number < len(classes):
                class_name = classes[class_number]
            else:
                is_intact = False
            yield Image(id, text, class_number, size, fingerprint, vector, class_name), is_intact


class Collection:
    """The embeddings of a network, identified by a hash of weights, preprocessing and precision.

    With ``by="features"`` they are the features of its trunk.
    """

    def __init__(
        self, place: Path, run: Path, identity: str, size: int, by: By = "embeddings", source: str = "FOLDER"
    ) -> None:
        self.source = source  # what is indexed, as a command has it
        self.place = place.absolute()
        self.run = run
        self.identity = identity
        self.size = size
        self.by = by
        self.database = self.place / DATABASE
        self._index: Index | None = None  # the last that was read, for errors

    @property
    def exists(self) -> bool:
        """Whether there is a collection in the folder, damaged or not."""
        filled = self.database.is_file() and self.database.stat().st_size > 0
        return filled or bool(_vector_files(self.place))

    @contextlib.contextmanager
    def locked(self, replace: bool) -> Iterator[None]:
        """Lock the folder and :meth:`create` the collection; another process waits, with a warning."""
        text = f"{self.place}: another process embeds images into it; waiting until it is done"
        with locked_folder(self.place, StoreWarning(text)):
            self.create(replace)
            yield

    @contextlib.contextmanager
    def transaction(self, write: bool = False, create: bool = False) -> Iterator[Transaction]:
        """Open a transaction; an error undoes what was written in it."""
        if not create and not (self.database.is_file() and self.database.stat().st_size):
            raise self.damaged("missing or empty")
        address = f"{self.database.as_uri()}?mode={'rwc' if create else 'rw'}"
        with self._errors(write):
            opened = sqlite3.connect(address, timeout=_LOCK_TIMEOUT, isolation_level=None, uri=True)
            with contextlib.closing(opened) as connection:  # closing rolls back
                connection.execute("PRAGMA temp_store = MEMORY")
                connection.execute("PRAGMA cache_spill = OFF")  # a large write locks readers out only as it commits
                connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                if create and not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    self._create_tables(connection)
                try:
                    current = Transaction(self, connection)
                except (ValueError, TypeError, AttributeError) as error:
                    raise self.damaged(shortened(error, 100)) from None
                self._index = current.state.index
                yield current
                connection.execute("COMMIT")

    def _create_tables(self, connection: sqlite3.Connection) -> None:
        """Create the tables, with the state of a collection whose file of vectors nobody has written."""
        for table in _SCHEMA:
            connection.execute(table)
        stem = _STEMS[self.by]
        name = f"{stem}.f32"
        number = 0
        while (self.place / name).exists():
            number += 1
            name = f"{stem}-{number}.f32"
        first = State(run=str(self.run), identity=self.identity, size=self.size, by=self.by, file=name, made=time_ns())
        text = first.model_dump_json()
        connection.execute("INSERT INTO collection VALUES (?, ?)", (text, zlib.crc32(text.encode())))

    @contextlib.contextmanager
    def _errors(self, write: bool = False) -> Iterator[None]:
        """Raise errors of SQLite as those of a damaged, an unwritable or an unreadable database."""
        try:
            yield
        except UnicodeDecodeError as error:  # of a text, a name or a message of a damaged database
            raise self.damaged(shortened(error, 100)) from error
        except sqlite3.Error as error:
            # without a name: Python could not decode a text of the database
            name = getattr(error, "sqlite_errorname", "SQLITE_ERROR")
            if not isinstance(error, sqlite3.OperationalError) or name == "SQLITE_ERROR":
                raise self.damaged(shortened(error, 100)) from error
            if write:
                text = f"{self.database}: cannot be written ({error}); what was written before stays"
                raise UnwritableError(text) from error
            raise DataError(f"{self.database}: cannot be read ({error})") from error

    def mapped(self, state: State) -> Vectors:
        """Memory-map the vectors: fewer than the state says if the file is truncated."""
        path = self.place / state.file
        count = 0
        if path.exists():
            vectors_in_file = path.stat().st_size // (4 * state.size)
            count = min(state.vectors, vectors_in_file)
        if count == 0:
            return np.empty((0, state.size), dtype=np.float32)
        # copy-on-write, since torch warns of arrays that are read-only
        return np.asarray(np.memmap(path, np.float32, "c", shape=(count, state.size)))

    def damaged(self, why: str, path: Path | None = None) -> DamagedCollectionError:
        """Return the error of a damaged file, by default of the database."""
        return DamagedCollectionError(f"{path or self.database}: empty, cut or damaged ({why}); type: {self.command()}")

    def create(self, replace: bool) -> None:
        """Create the collection if there is none, or in place of a damaged one.

        With ``replace``, also in place of one of another network.
        """
        why = self._reason_to_replace(replace)
        if why:
            self._remove(why)
        with writing(self.place):
            self.place.mkdir(parents=True, exist_ok=True)
        with self.transaction(write=True, create=True):
            pass

    def _reason_to_replace(self, replace: bool) -> str:
        """Return why the collection that is there has to be made again, "" if it has not, or if there is none."""
        there = self.exists  # asked first: another thread may create it meanwhile
        try:
            with self.transaction() as current:
                problem = current.connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                if problem != "ok":
                    raise self.damaged(problem)
                self.check_by(current.state)
                if current.state.identity == self.identity:
                    return ""
                if not replace:
                    self.check_identity(current.state)
                return "of an earlier state of the run (other weights, preprocessing or precision) or of this program"
        except DamagedCollectionError as error:
            if there:
                return str(error).partition("; type: ")[0]
            return ""

    def _remove(self, why: str) -> None:
        """Delete the collection's files, with a warning that says why; refuse a database of somebody else."""
        self._check_own()
        text = f"{self.place}: the collection is removed, its images are embedded again: it is {why}"
        removed = {DATABASE, f"{DATABASE}-journal", *self._named_files()}
        vector_files = {path.name for path in _vector_files(self.place)}
        left = sorted(vector_files - removed)
        if left:
            text += f"; {left[0]} stays, as no table names it: delete it if it is not yours"
        warnings.warn(text, StoreWarning, stacklevel=7)
        self._delete(removed)

    def _check_own(self) -> None:
        """Refuse a database of somebody else: one that SQLite reads and that lacks our tables, or one by itself."""
        if not self.database.is_file() or not self.database.stat().st_size:
            return
        try:
            with contextlib.closing(sqlite3.connect(f"{self.database.as_uri()}?mode=ro", uri=True)) as connection:
                names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            own = {"collection", "embedded", "images"} <= names
        except (sqlite3.Error, UnicodeDecodeError):  # damaged: then our vectors lie beside it
            own = bool(_vector_files(self.place))
        if not own:
            raise DataError(f"{self.database} is not of a collection; wanted a folder of its own, with --store FOLDER")

    def _named_files(self) -> set[str]:
        """Return the names of the files that the database names; none where it is damaged."""
        try:
            with self.transaction() as current:
                return current.state.own_files
        except DataError:
            return set()

    def _delete(self, names: Iterable[str]) -> None:
        """Delete files of the collection, and what killed processes left of them under temporary names."""
        paths = {self.place / name for name in names}
        for temporary in list(self.place.glob(".*.tmp")):
            if final_path(temporary) in paths:
                paths.add(temporary)
        for path in paths:
            with contextlib.suppress(PermissionError):  # on Windows, while a reader has it mapped
                path.unlink(missing_ok=True)

    def _new_file(self, stem: str, ending: str) -> Path:
        """Return the path of a new file, which no file of somebody else has, and list it as the collection's."""
        with self.transaction(write=True) as current:
            state = current.state
            unused = state.own_files - state.used_files
            number = state.version + 1
            name = f"{stem}-{number}{ending}"
            while name not in unused and (self.place / name).exists():
                number += 1
                name = f"{stem}-{number}{ending}"
            current.save(files=tuple(sorted(state.own_files | {name})))
        return self.place / name

    # Embedded files

    def find(
        self, files: Mapping[bytes, FileStat], folder: bytes | None = None
    ) -> tuple[dict[bytes, int], list[bytes], Vectors]:
        """Return the vector numbers of unchanged files, the paths below a folder that are gone, and all vectors."""
        with self.transaction() as current:
            found, gone = self.find_within(current, files, folder)
            return found, gone, current.vectors

    def find_within(
        self, current: Transaction, files: Mapping[bytes, FileStat], folder: bytes | None = None
    ) -> tuple[dict[bytes, int], list[bytes]]:
        """Return the vector numbers of unchanged files, and the paths below a folder that are gone."""
        self.check_identity(current.state)
        found: dict[bytes, int] = {}
        gone: list[bytes] = []
        damaged = 0
        for path, size, time, vector, crc in self._embedded_rows(current, files, folder):
            if not isinstance(path, bytes):  # a flipped bit can change the type of a value
                damaged += 1
            elif path not in files:
                gone.append(path)
            elif not current.is_intact(vector, crc, path, size, time):
                damaged += 1
            elif files[path] == (size, time):
                found[path] = vector
        if damaged:
            text = f"{self.place}: embeddings of {counted(damaged, 'image')} were damaged; embedded again"
            warnings.warn(text, StoreWarning, stacklevel=6)
        return found, gone

    def _embedded_rows(
        self, current: Transaction, files: Mapping[bytes, FileStat], folder: bytes | None
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of ``embedded`` below a folder, or without one, of the files."""
        if folder is not None:
            ranges = [(folder, folder[:-1] + b"0")]  # from "folder/" to "folder0": "0" follows "/"
        else:
            ranges = [(path, path + b"\0") for path in files]  # each a single path
        query = "SELECT path, size, time, vector, crc FROM embedded WHERE path >= ? AND path < ?"
        with self._errors():
            for first_and_end in ranges:
                yield from current.connection.execute(query, first_and_end)

    def vectors_of(self, numbers: Numbers) -> Vectors:
        """Return vectors, ``[N, D]``; a view of the mapped file if they are contiguous."""
        with self.transaction() as current:
            first = int(numbers[0]) if len(numbers) else 0
            if np.array_equal(numbers, np.arange(first, first + len(numbers))):
                return current.vectors[first : first + len(numbers)]
            return current.vectors[numbers]

    def append(self, paths: Sequence[bytes], stats: Sequence[FileStat], vectors: Vectors) -> dict[bytes, int]:
        """Write the vectors of files, ``[N, D]``; return their numbers by path."""
        with self.transaction(write=True) as current:
            first = self._append(current, vectors)
            values = []
            for row, (path, size_and_mtime) in enumerate(zip(paths, stats, strict=True)):
                crc = crc_of(vectors[row].data, path, *size_and_mtime)
                values.append((path, *size_and_mtime, first + row, crc))
            current.connection.executemany("INSERT OR REPLACE INTO embedded VALUES (?, ?, ?, ?, ?)", values)
        return dict(zip(paths, range(first, first + len(vectors)), strict=True))

    def append_vectors(self, vectors: Vectors) -> int:
        """Write vectors, ``[N, D]``, for an index that is written next; return the number of the first."""
        with self.transaction(write=True) as current:
            return self._append(current, vectors)

    def _append(self, current: Transaction, vectors: Vectors) -> int:
        """Write vectors to the end of their file, and their count to the state; return the number of the first."""
        state = current.state
        self.check_identity(state)
        file_path = self.place / state.file
        end = 4 * state.size * state.vectors
        with writing(file_path), file_path.open("r+b" if file_path.exists() else "w+b") as file:
            file.truncate(end)  # vectors of a process that was killed before it committed their rows
            file.seek(end)
            file.write(np.ascontiguousarray(vectors, dtype=np.float32).data)
            file.flush()
            os.fsync(file.fileno())
        current.save(vectors=state.vectors + len(vectors))
        return state.vectors

    def compact(self, gone: Sequence[bytes] = ()) -> None:
        """Delete rows of missing files, and damaged rows; rewrite the vectors if a fifth of the file is unused.

        To be called inside :meth:`locked`. Readers that have the old file mapped keep it until they read the version.
        """
        self._forget(gone)
        self._close_holes()
        self._delete_unused_files()

    def _forget(self, gone: Sequence[bytes]) -> None:
        """Delete the rows of missing files, and damaged ones, whose number is of no vector."""
        damaged = 0
        with self.transaction(write=True) as current:
            connection = current.connection
            connection.executemany("DELETE FROM embedded WHERE path = ?", [(path,) for path in gone])
            is_damaged = "typeof(vector) != 'integer' OR vector NOT BETWEEN 0 AND ?"
            last = current.state.vectors - 1
            for table in ("embedded", "images"):
                deleted = connection.execute(f"DELETE FROM {table} WHERE {is_damaged}", (last,))
                damaged += deleted.rowcount
        if damaged:
            text = f"{self.place}: {counted(damaged, 'row')} of images were damaged and are deleted"
            warnings.warn(f"{text}; to have these images again, type: {self.command()}", StoreWarning, stacklevel=6)

    def _close_holes(self) -> None:
        """Move the vectors to a new file if a fifth of the old one belongs to no row."""
        with self.transaction() as current:
            state = current.state
            holes = state.vectors - len(_live_vectors(current.connection))
            whole = len(current.vectors) == state.vectors
        if whole and 5 * holes >= state.vectors > 0:
            path = self._new_file(_STEMS[self.by], ".f32")
            with self.transaction(write=True) as current:
                self._move_vectors(current, path)

    def _delete_unused_files(self) -> None:
        """Delete the collection's files that its state has no more, and forget those that are gone."""
        with self.transaction(write=True) as current:
            state = current.state
            self._delete(state.own_files - state.used_files)
            left = {name for name in state.own_files if (self.place / name).exists()}
            files = tuple(sorted(left | state.used_files))
            if files != state.files:
                current.save(files=files)

    def _move_vectors(self, current: Transaction, path: Path) -> None:
        state = current.state
        connection = current.connection
        version = current.state.version + 1
        live = _live_vectors(connection)
        write_atomically(path, current.vectors[live].tofile)
        new_number = {old: new for new, old in enumerate(live.tolist())}
        connection.create_function("moved", 1, new_number.get)
        connection.execute("UPDATE embedded SET vector = moved(vector)")
        # below 0 first, so that no two images have the same number meanwhile
        connection.execute("UPDATE images SET vector = -1 - moved(vector)")
        connection.execute("UPDATE images SET vector = -1 - vector")
        index = state.index
        if index is not None:
            first, last = connection.execute("SELECT min(vector), max(vector) FROM images").fetchone()
            are_contiguous = last - first + 1 == index.images
            index = index.model_copy(update={"first": first if are_contiguous else None})
        current.save(file=path.name, vectors=len(live), version=version, index=index)

    # The index

    def write_index(self, embedded: Embedded, factory: str) -> Changes | None:
        """Replace the index, in one transaction; to be called inside :meth:`locked`.

        Returns:
            The changes; None where another folder, or none, was indexed before.
        """
        embedded = self._with_unlisted(embedded)
        numbers = np.sort(embedded.numbers)
        are_contiguous = numbers[-1] - numbers[0] + 1 == len(numbers)
        first = int(numbers[0]) if are_contiguous else None
        folder = str(embedded.folder.resolve())
        index = Index(
            folder=folder,
            images=len(numbers),
            first=first,
            classes=embedded.class_names,
            class_folders=embedded.class_folders,
        )
        if chosen := chosen_factory(factory, len(numbers)):
            faiss = FaissIndex.build(chosen, torch.from_numpy(self.vectors_of(numbers)))
            if faiss.recall is not None and faiss.recall < _MIN_RECALL:
                text = f"the index {chosen} finds {faiss.recall:.0%} of what exact search finds; another --index"
                warnings.warn(f"{text} finds more", RetrievalWarning, stacklevel=4)
            path = self._new_file("search", ".faiss")
            write_atomically(path, faiss.write)
            measured = {"factory": chosen, "effort": faiss.effort, "recall": faiss.recall}
            measured |= {"file": path.name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}
            index = index.model_copy(update=measured)
        with self.transaction(write=True) as current:
            return self._replace_images(current, index, embedded)

    def _with_unlisted(self, embedded: Embedded) -> Embedded:
        """Add the indexed images that could not be looked at, as they were; their ids stay."""
        if not embedded.unlisted:
            return embedded
        places = frozenset(embedded.unlisted)
        with self.transaction() as current:
            index = current.state.index
            if index is None or index.folder != str(embedded.folder.resolve()):
                return embedded
            paths = []
            stats = []
            numbers = []
            for image, fits in current.images():
                if fits and is_below(image.path, places):
                    paths.append(image.path)
                    stats.append(image.stat)
                    numbers.append(image.vector)
        if not paths:
            return embedded
        all_paths = [*embedded.paths, *paths]
        return dataclasses.replace(
            embedded,
            paths=all_paths,
            class_folders=ClassFolders.of_paths(all_paths, embedded.class_folders.levels),
            stats=np.concatenate([embedded.stats, np.array(stats, dtype=np.int64)]),
            numbers=np.concatenate([embedded.numbers, np.array(numbers, dtype=np.int64)]),
        )

    def _replace_images(self, current: Transaction, index: Index, embedded: Embedded) -> Changes | None:
        state = current.state
        before = current.state.index
        known = dict[str, Image]()
        if before is not None and before.folder != index.folder:
            before = None
        if before is not None:
            for indexed, fits in current.images():
                if fits:
                    known[indexed.path] = indexed
            if len(known) < before.images:
                text = f"{self.database}: {before.images - len(known)} rows of the index were damaged"
                warnings.warn(f"{text}; their images get new ids", StoreWarning, stacklevel=6)
        next_id = state.next_id
        changed = 0
        rows = []
        class_numbers: list[int | None] = [None] * len(embedded.paths)
        if embedded.class_names is not None:
            class_numbers = embedded.class_numbers.tolist()
        columns = (embedded.paths, class_numbers, embedded.stats.tolist(), embedded.numbers.tolist())
        for name, class_number, stat, vector in zip(*columns, strict=True):
            image = known.get(name)
            if image is None:
                id = next_id
                next_id += 1
            else:
                id = image.id
                if (image.class_number, *image.stat) != (class_number, *stat):
                    changed += 1
            values = (id, path_bytes(name), class_number, *stat)
            crc = crc_of(current.vectors[vector].data, *values)
            rows.append((*values, vector, crc))
        new = next_id - state.next_id
        kept = len(rows) - new
        current.connection.execute("DELETE FROM images")
        current.connection.executemany("INSERT INTO images VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        current.save(version=state.version + 1, next_id=next_id, index=index)
        if before is not None:
            return Changes(new, changed, len(known) - kept, kept - changed)
        return None

    def read_faiss(self, index: Index, thorough: bool = False) -> FaissIndex | None:
        """Open the faiss index; None for exact search."""
        if not index.file:
            return None
        path = self.place / index.file
        try:
            same = path.stat().st_size == index.bytes
            if same and (thorough or index.bytes <= _MAX_HASHED_BYTES):
                same = sha256_of(path) == index.sha256
            if not same:
                raise self.damaged(f"not the file that {DATABASE} was written for", path)
            return FaissIndex.read(path, index.factory, index.effort, index.recall)
        except (OSError, RuntimeError) as error:
            raise self.damaged(shortened(error, 100), path) from None

    # Errors

    @property
    def _is_in_run(self) -> bool:
        """Whether this is the collection of the run's folder, which ``index`` makes again for another network."""
        return self.place == (self.run / COLLECTION).absolute()

    def command(self) -> str:
        """Return the command that makes the index again."""
        index = self._index or Index(folder=self.source, images=0, first=None)
        command = ["pml-ext", "index", str(self.run), index.folder]
        if not self._is_in_run:
            command += ["--store", str(self.place)]
        if index.factory:
            command += ["--index", index.factory]
        if self.by != "embeddings":
            command += ["--by", self.by]
        return shlex.join(command)

    def check_by(self, state: State) -> None:
        """Refuse a collection of features where embeddings are wanted, and the other way round."""
        if state.by != self.by:
            raise ConfigError(
                f"{self.place} has the {state.by} of images, not their {self.by}; leave out --by, type --store FOLDER "
                f"for a collection of its own, or delete {self.place}"
            )

    def check_identity(self, state: State) -> None:
        """Refuse a collection of another network, or of another of its outputs."""
        self.check_by(state)
        if state.identity == self.identity:
            return
        if self._is_in_run:
            remedy = f"type: {self.command()}"
        else:
            remedy = (
                f"type --store FOLDER for a collection of its own, or delete {self.place} first, then type: "
                f"{self.command()}"
            )
        raise DataError(
            f"{self.place} was built by the run {state.run} ({state.identity}), not by {self.run} "
            f"({self.identity}); {remedy}"
        )
