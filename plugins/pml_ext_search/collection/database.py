"""A collection of embeddings: metadata in SQLite, and vectors in one memory-mapped file.

``images.sqlite`` has four tables:

- ``collection``: one row of JSON with the network and the index;
- ``embedded``: a row per embedded file;
- ``images``: a row per image of the indexed folder, or vector of the indexed file;
- ``damaged``: a row per file that is not a readable image.

``vectors.f32`` (``features.f32``) has the embeddings, float32, of length 1, ``[vectors, D]``. New vectors are flushed
before their rows are committed; vectors without rows are cut off by the next process. Deleted rows leave holes; at a
fifth of holes the file is rewritten. Each row has a checksum.
"""

import contextlib
import errno
import os
import re
import shlex
import sqlite3
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import time_ns
from typing import Any

import numpy as np

from pml_ext.errors import ConfigError, DataError, UnwritableError, remedy_of, shortened
from pml_ext_train.data import AS_KEPT, FolderRules
from pml_ext_train.files import final_path, locked_folder, writing
from pml_ext_train.networks import By
from pml_ext_train.retrieval import Vectors

from .class_folders import ClassFolders
from .problems import DamagedCollectionError, StoreWarning
from .state import Image, Index, State, crc_of, state_of

COLLECTION = "collection"  # the folder in a run's folder
DATABASE = "images.sqlite"
_SCHEMA = (
    "CREATE TABLE collection (about TEXT NOT NULL, crc INTEGER NOT NULL)",
    "CREATE TABLE embedded (path BLOB PRIMARY KEY, size INTEGER, time INTEGER, vector INTEGER, crc INTEGER) "
    "WITHOUT ROWID",
    "CREATE TABLE images (id INTEGER PRIMARY KEY, path BLOB UNIQUE, class_number INTEGER, size INTEGER, "
    "fingerprint INTEGER, vector INTEGER UNIQUE, crc INTEGER)",
)
_DAMAGED = (  # missing in collections of earlier versions
    "CREATE TABLE IF NOT EXISTS damaged (path BLOB PRIMARY KEY, size INTEGER, time INTEGER, reader TEXT, why BLOB) "
    "WITHOUT ROWID"
)
LOCK_TIMEOUT = 600.0  # seconds to wait for another process's transaction
STEMS: dict[By, str] = {"embeddings": "vectors", "features": "features"}  # of the vector files
_VECTORS = re.compile(r"(vectors|features)(\d*)(-\d+)?\.f32")  # "vectors64.f32" has the first 64 dimensions


def recorded(place: Path) -> tuple[By, int | None] | None:
    """What a folder's collection compares images by, and how many first dimensions; None without a collection.

    If the row cannot be read, the names of the vector files decide.
    """
    state = recorded_state(place)
    if state is not None:
        return state.by, state.cut
    for path in sorted(place.glob("*.f32")):
        if named := _VECTORS.fullmatch(path.name):
            stem, cut, _ = named.groups()
            return "features" if stem == "features" else "embeddings", int(cut) if cut else None
    return None


def recorded_state(place: Path) -> State | None:
    """The state of a folder's collection, or None if it cannot be read.

    SQLite may have to write, to roll back a killed process.
    """
    database = place.resolve() / DATABASE
    try:
        address = f"{database.as_uri()}?mode=rw"
        with contextlib.closing(sqlite3.connect(address, timeout=LOCK_TIMEOUT, uri=True)) as connection:
            ((about, crc),) = connection.execute("SELECT about, crc FROM collection").fetchall()
        return state_of(about, crc)
    except (sqlite3.Error, ValueError, TypeError, AttributeError):
        return None


def vector_files(place: Path) -> list[Path]:
    """Files of a folder that are named like a collection's vectors."""
    return [path for path in place.glob("*.f32") if path.name.startswith(tuple(STEMS.values()))]


class Transaction:
    """A transaction on a collection, with its state and vectors."""

    def __init__(self, connection: sqlite3.Connection, mapped: Callable[[State], Vectors]) -> None:
        self.connection = connection
        ((about, crc),) = connection.execute("SELECT about, crc FROM collection").fetchall()
        self.state = state_of(about, crc)
        self.vectors = mapped(self.state)

    def save(self, **changes: Any) -> None:
        """Change the state."""
        self.state = self.state.model_copy(update=changes)
        text = self.state.model_dump_json()
        self.connection.execute("UPDATE collection SET about = ?, crc = ?", (text, zlib.crc32(text.encode())))

    def is_intact(self, vector: Any, crc: Any, *values: object) -> bool:
        """Whether a row and its vector have the row's checksum."""
        in_file = isinstance(vector, int) and 0 <= vector < len(self.vectors)
        return in_file and crc_of(self.vectors[vector].data, *values) == crc

    def images(self, where: str = "", *values: object) -> Iterator[tuple[Image, bool]]:
        """Rows of ``images``, each with whether it and its vector are undamaged."""
        query = f"SELECT id, path, class_number, size, fingerprint, vector, crc FROM images {where}"
        index = self.state.index
        classes = None if index is None else index.classes
        class_folders = ClassFolders() if index is None else index.class_folders
        for id, path, class_number, size, fingerprint, vector, crc in self.connection.execute(query, values):
            text = os.fsdecode(path) if isinstance(path, (bytes, str)) else repr(path)
            is_intact = self.is_intact(vector, crc, id, path, class_number, size, fingerprint)
            class_name = ""
            if classes is None:
                class_name = class_folders.class_of(text)
            elif isinstance(class_number, int) and 0 <= class_number < len(classes):
                class_name = classes[class_number]
            else:
                is_intact = False
            yield Image(id, text, class_number, size, fingerprint, vector, class_name), is_intact


class Database:
    """The database and files of a network's embeddings."""

    def __init__(
        self,
        place: Path,
        run: Path | None,
        identity: str,
        size: int,
        by: By = "embeddings",
        source: str = "FOLDER",
        cut: int | None = None,
    ) -> None:
        self.source = source  # what is indexed, in commands
        self.place = place.absolute()
        self.run = run  # None for other embedders
        self.identity = identity
        self.size = size
        self.by = by
        self.cut = cut
        self.stem = f"{STEMS[by]}{cut or ''}"
        self.database = self.place / DATABASE
        self._index: Index | None = None  # the last one read, for errors

    @property
    def exists(self) -> bool:
        """Whether the folder has a collection, damaged or not."""
        filled = self.database.is_file() and self.database.stat().st_size > 0
        return filled or bool(vector_files(self.place))

    @contextlib.contextmanager
    def locked(self, replace: bool) -> Iterator[None]:
        """Lock the folder and create the collection; wait for another process with a warning."""
        text = f"{self.place}: another process embeds images into it; waiting until it is done"
        with locked_folder(self.place, StoreWarning(text)):
            self.create(replace)
            yield

    @contextlib.contextmanager
    def transaction(self, write: bool = False, create: bool = False) -> Iterator[Transaction]:
        """Open a transaction; an error rolls it back."""
        if not create and not (self.database.is_file() and self.database.stat().st_size):
            raise self.damaged("missing or empty")
        address = f"{self.database.as_uri()}?mode={'rwc' if create else 'rw'}"
        with self._errors(write):
            opened = sqlite3.connect(address, timeout=LOCK_TIMEOUT, isolation_level=None, uri=True)
            with contextlib.closing(opened) as connection:  # closing rolls back
                connection.execute("PRAGMA temp_store = MEMORY")
                connection.execute("PRAGMA cache_spill = OFF")  # a large write locks readers out only as it commits
                connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                if create and not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    self._create_tables(connection)
                if create:
                    connection.execute(_DAMAGED)
                try:
                    current = Transaction(connection, self.mapped)
                except (ValueError, TypeError, AttributeError) as error:
                    raise self.damaged(shortened(error, 100)) from None
                self._index = current.state.index
                yield current
                connection.execute("COMMIT")

    def _create_tables(self, connection: sqlite3.Connection) -> None:
        for table in _SCHEMA:
            connection.execute(table)
        name = f"{self.stem}.f32"
        number = 0
        while (self.place / name).exists():
            number += 1
            name = f"{self.stem}-{number}.f32"
        first = State(
            run=str(self.run or ""),
            identity=self.identity,
            size=self.size,
            by=self.by,
            cut=self.cut,
            file=name,
            made=time_ns(),
        )
        text = first.model_dump_json()
        connection.execute("INSERT INTO collection VALUES (?, ?)", (text, zlib.crc32(text.encode())))

    @contextlib.contextmanager
    def _errors(self, write: bool = False) -> Iterator[None]:
        """Translate SQLite errors into DamagedCollectionError, UnwritableError or DataError."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # damage can also be a text that Python cannot decode
            name = getattr(error, "sqlite_errorname", "SQLITE_ERROR")
            if not isinstance(error, sqlite3.OperationalError) or name == "SQLITE_ERROR":
                raise self.damaged(shortened(error, 100)) from error
            if write:
                remedy = remedy_of(OSError(errno.ENOSPC, "")) if name == "SQLITE_FULL" else ""
                text = f"{self.database}: cannot be written ({error}); what was written before stays{remedy}"
                raise UnwritableError(text) from error
            raise DataError(f"{self.database}: cannot be read ({error})") from error

    def mapped(self, state: State) -> Vectors:
        """Memory-map the vectors; a truncated file gives fewer."""
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
        """The error of a damaged file, by default the database."""
        return DamagedCollectionError(f"{path or self.database}: empty, cut or damaged ({why}); type: {self.command()}")

    def create(self, replace: bool) -> None:
        """Create the collection, or replace a damaged one; with ``replace``, also another network's."""
        why = self._reason_to_replace(replace)
        if why:
            self._remove(why)
        with writing(self.place):
            self.place.mkdir(parents=True, exist_ok=True)
        with self.transaction(write=True, create=True):
            pass

    def _reason_to_replace(self, replace: bool) -> str:
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
                return "from an earlier state of the run (other weights, preprocessing or precision) or of this program"
        except DamagedCollectionError as error:
            if there:
                return str(error).partition("; type: ")[0]
            return ""

    def _remove(self, why: str) -> None:
        self._check_own()
        text = f"{self.place}: the collection is replaced, and its images are embedded again, because it is {why}"
        removed = {DATABASE, f"{DATABASE}-journal", *self._named_files()}
        names_of_vectors = {path.name for path in vector_files(self.place)}
        left = sorted(names_of_vectors - removed)
        if left:
            text += f"; {left[0]} is kept, because the collection does not list it; delete it if you do not need it"
        warnings.warn(text, StoreWarning, stacklevel=7)
        self._delete(removed)

    def _check_own(self) -> None:
        if not self.database.is_file() or not self.database.stat().st_size:
            return
        try:
            with contextlib.closing(sqlite3.connect(f"{self.database.as_uri()}?mode=ro", uri=True)) as connection:
                names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            own = {"collection", "embedded", "images"} <= names
        except (sqlite3.Error, UnicodeDecodeError):  # damaged; ours has vectors beside it
            own = bool(vector_files(self.place))
        if not own:
            raise DataError(f"{self.database} belongs to another program; type --store FOLDER to choose another folder")

    def _named_files(self) -> set[str]:
        try:
            with self.transaction() as current:
                return current.state.own_files
        except DataError:
            return set()

    def _delete(self, names: Iterable[str]) -> None:
        paths = {self.place / name for name in names}
        for temporary in list(self.place.glob(".*.tmp")):
            if final_path(temporary) in paths:
                paths.add(temporary)
        for path in paths:
            with contextlib.suppress(PermissionError):  # on Windows, while a reader has it mapped
                path.unlink(missing_ok=True)

    def _new_file(self, stem: str, ending: str) -> Path:
        """An unused path for a new file, which is recorded as the collection's."""
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

    # Errors

    def indexed_folder(self) -> str:
        """The indexed folder or file of vectors, or an empty string."""
        with self.transaction() as current:
            return "" if current.state.index is None else current.state.index.folder

    def rules_of_index(self) -> FolderRules:
        """Which files of a folder an update reads; nothing is chosen without an index."""
        state = recorded_state(self.place)
        return AS_KEPT if state is None or state.index is None else state.index.rules

    @property
    def is_in_run(self) -> bool:
        """Whether it lies in the run's folder, where ``index`` replaces another network's."""
        return self.run is not None and self.place == (self.run / COLLECTION).absolute()

    def command(self) -> str:
        """The command that makes the index again."""
        index = self._index or Index(folder=self.source, images=0, first=None)
        if self.run is None:
            return f"open_index(embedder, {str(self.place)!r}).index({index.folder!r})"
        options = ["--index", index.factory] if index.factory else []
        command = self.index_command(index.folder, *options)
        return command if self.cut is None else f"{command} --size {self.cut}"

    def check_command(self) -> str:
        """The command that names missing, changed and damaged files."""
        return self.index_command("--check")

    def index_command(self, *arguments: str) -> str:
        """The command ``index`` for this collection, with further arguments."""
        return self.command_of("index", *arguments)

    def command_of(self, name: str, *arguments: str) -> str:
        """A command for this collection, with further arguments."""
        command = ["pml-ext", name, str(self.run), *arguments]
        if not self.is_in_run:
            command += ["--store", str(self.place)]
        if self.by != "embeddings":
            command += ["--by", self.by]
        return shlex.join(command)

    def check_by(self, state: State) -> None:
        """ConfigError for features instead of embeddings, for embeddings of another size, or the reverse."""
        remedy = f"type --store FOLDER for a collection of its own, or delete {self.place}"
        if state.by != self.by:
            raise ConfigError(
                f"{self.place} has the {state.by} of images, not their {self.by}; leave out --by, {remedy}"
            )
        if state.cut != self.cut:
            raise ConfigError(
                f"{self.place} has {state.cut or 'all'} dimensions of each embedding, not {self.cut or 'all'}; leave "
                f"out --size, {remedy}"
            )

    def check_identity(self, state: State) -> None:
        """DataError for another network's collection, ConfigError for another output's."""
        self.check_by(state)
        if state.identity == self.identity:
            return
        if self.is_in_run:
            remedy = f"type: {self.command()}"
        else:
            remedy = (
                f"type --store FOLDER for a collection of its own, or delete {self.place} first, then type: "
                f"{self.command()}"
            )
        maker = f"the run {state.run}" if state.run else "another embedder"
        raise DataError(
            f"{self.place} was built by {maker} ({state.identity}), not by "
            f"{self.run or 'this embedder'} ({self.identity}); {remedy}"
        )
