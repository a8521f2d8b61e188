"""The embeddings of a network and their index."""

import dataclasses
import hashlib
import itertools
import json
import os
import sqlite3
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pml_ext.errors import counted, shortened
from pml_ext_train.data import Exclusion
from pml_ext_train.files import FileStat, file_and_page, path_bytes, sha256_of, write_atomically, writing
from pml_ext_train.retrieval import Changes, Numbers, Vectors

from .class_folders import ClassFolders
from .database import DATABASE, Database, Transaction
from .embedded import Embedded
from .faiss_index import FaissIndex, chosen_factory
from .problems import ExcludedImages, RetrievalWarning, StoreWarning
from .state import Image, Index, crc_of

BY_NAME = ""  # in place of a reader, for a file that is not an image by its name or kind
LAYOUT = 2  # of tables and stores; part of a collection's identity, so a new layout replaces older collections
_LIVE = "SELECT vector FROM embedded UNION SELECT vector FROM images ORDER BY vector"
_MAX_HASHED_BYTES = 32_000_000  # bytes up to which the search file is hashed whenever it is opened
_MIN_RECALL = 0.9  # recall@10 below which a warning is given


def _live_vectors(connection: sqlite3.Connection) -> Numbers:
    rows = connection.execute(_LIVE)
    return np.fromiter((number for (number,) in rows), dtype=np.int64)


def identity_of(*about: object) -> str:
    """Digest of everything that changes embeddings; identifies a collection."""
    return hashlib.sha256(json.dumps([LAYOUT, *about]).encode()).hexdigest()[:16]


def is_below(path: str, places: Set[str]) -> bool:
    """Whether a path is one of these places, or inside one."""
    folders_and_file = itertools.accumulate(path.split("/"), "{}/{}".format)  # "a", "a/b", "a/b/c"
    return not places.isdisjoint(folders_and_file)


def _range_of(folder: bytes) -> tuple[bytes, bytes]:
    """The first path below ``b"folder/"``, and the first one behind it: "0" follows "/"."""
    return folder, folder[:-1] + b"0"


def _warn_of_dropped(index: Index, gone: Iterable[str]) -> None:
    """Warn of images that left the index because patterns leave them out now, although their files are there."""
    exclusion = Exclusion(index.folder, index.rules.exclude or ())
    files = [file_and_page(Path(index.folder, path))[0] for path in gone]
    dropped = [file for file in files if exclusion.covers(file.relative_to(index.folder).as_posix()) and file.exists()]
    if dropped:
        text = f"dropped from the index: {counted(len(dropped), 'image')} that patterns leave out now"
        warnings.warn(text, ExcludedImages, stacklevel=6)


class DamagedFile(NamedTuple):
    """A file that is not a readable image."""

    stat: FileStat
    why: str  # without the path


class Collection(Database):
    """The embeddings of a network, with an index of some of them."""

    def find(
        self, files: Mapping[bytes, FileStat], folder: bytes | None = None
    ) -> tuple[dict[bytes, int], list[bytes]]:
        """Vector numbers of unchanged files, and missing paths below a folder."""
        with self.transaction() as current:
            return self.find_within(current, files, folder)

    def find_within(
        self, current: Transaction, files: Mapping[bytes, FileStat], folder: bytes | None = None
    ) -> tuple[dict[bytes, int], list[bytes]]:
        """As :meth:`find`, within a transaction."""
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
        if folder is not None:
            ranges = [_range_of(folder)]
        else:
            ranges = [(path, path + b"\0") for path in files]  # each a single path
        query = "SELECT path, size, time, vector, crc FROM embedded WHERE path >= ? AND path < ?"
        with self._errors():
            for first_and_end in ranges:
                yield from current.connection.execute(query, first_and_end)

    def damaged_files(self, folder: bytes, reader: str) -> dict[bytes, DamagedFile]:
        """The files below a folder that this reader could not read, by path."""
        query = "SELECT path, size, time, why FROM damaged WHERE path >= ? AND path < ? AND reader = ?"
        with self.transaction() as current:
            rows = current.connection.execute(f"{query} AND typeof(why) = 'blob'", (*_range_of(folder), reader))
            return {path: DamagedFile((size, time), os.fsdecode(why)) for path, size, time, why in rows}

    def damaged_paths(self, current: Transaction, folder: bytes) -> list[bytes]:
        """The damaged images below a folder; none in a collection of an earlier version."""
        if not current.connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'damaged'").fetchone():
            return []
        query = "SELECT path FROM damaged WHERE path >= ? AND path < ? AND reader != ?"
        return [path for (path,) in current.connection.execute(query, (*_range_of(folder), BY_NAME))]

    def keep_damaged(self, folder: bytes, skipped: Mapping[str, Mapping[bytes, DamagedFile]]) -> None:
        """Replace the record of files below a folder that are not readable images, by reader."""
        if all(files == self.damaged_files(folder, reader) for reader, files in skipped.items()):
            return
        with self.transaction(write=True) as current:
            current.connection.execute("DELETE FROM damaged WHERE path >= ? AND path < ?", _range_of(folder))
            for reader, files in skipped.items():
                rows = [(path, *file.stat, reader, os.fsencode(file.why)) for path, file in files.items()]
                current.connection.executemany("INSERT INTO damaged VALUES (?, ?, ?, ?, ?)", rows)

    def vectors_of(self, numbers: Numbers) -> Vectors:
        """Vectors by number, ``[N, D]``; a view of the mapped file if they are contiguous."""
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

    def rename(self, moved: Mapping[bytes, bytes]) -> None:
        """Keep the embeddings of moved files under their new paths."""
        with self.transaction(write=True) as current:
            connection = current.connection
            query = "SELECT path, size, time, vector, crc FROM embedded WHERE path = ?"
            rows = [row for path in moved for row in connection.execute(query, (path,))]
            connection.executemany("DELETE FROM embedded WHERE path = ?", [(path,) for path in moved])
            for path, size, time, vector, crc in rows:
                if current.is_intact(vector, crc, path, size, time):
                    new = moved[path]
                    values = (new, size, time, vector, crc_of(current.vectors[vector].data, new, size, time))
                    connection.execute("INSERT OR REPLACE INTO embedded VALUES (?, ?, ?, ?, ?)", values)

    def append_vectors(self, vectors: Vectors) -> int:
        """Write vectors, ``[N, D]``; return the number of the first."""
        with self.transaction(write=True) as current:
            return self._append(current, vectors)

    def _append(self, current: Transaction, vectors: Vectors) -> int:
        state = current.state
        self.check_identity(state)
        file_path = self.place / state.file
        end = 4 * state.size * state.vectors
        with writing(file_path), file_path.open("r+b" if file_path.exists() else "w+b") as file:
            file.truncate(end)  # cuts off the vectors of a killed process, whose rows were not committed
            file.seek(end)
            file.write(np.ascontiguousarray(vectors, dtype=np.float32).data)
            file.flush()
            os.fsync(file.fileno())
        current.save(vectors=state.vectors + len(vectors))
        return state.vectors

    def compact(self, gone: Sequence[bytes] = ()) -> None:
        """Delete missing files and damaged rows; rewrite a file of vectors with a fifth unused.

        Call it inside :meth:`locked`.
        """
        self._forget(gone)
        self._close_holes()
        self._delete_unused_files()

    def _forget(self, gone: Sequence[bytes]) -> None:
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
        with self.transaction() as current:
            state = current.state
            holes = state.vectors - len(_live_vectors(current.connection))
            whole = len(current.vectors) == state.vectors
        if whole and 5 * holes >= state.vectors > 0:
            path = self._new_file(self.stem, ".f32")
            with self.transaction(write=True) as current:
                self._move_vectors(current, path)

    def _delete_unused_files(self) -> None:
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
        live = _live_vectors(connection)
        write_atomically(path, current.vectors[live].tofile)
        new_number = {old: new for new, old in enumerate(live.tolist())}
        connection.create_function("moved", 1, new_number.get)
        connection.execute("UPDATE embedded SET vector = moved(vector)")
        # negative numbers first, since numbers are unique
        connection.execute("UPDATE images SET vector = -1 - moved(vector)")
        connection.execute("UPDATE images SET vector = -1 - vector")
        index = state.index
        if index is not None:
            first, last = connection.execute("SELECT min(vector), max(vector) FROM images").fetchone()
            are_contiguous = last - first + 1 == index.images
            index = index.model_copy(update={"first": first if are_contiguous else None})
        current.save(file=path.name, vectors=len(live), version=state.version + 1, index=index)

    # The index

    def write_index(self, embedded: Embedded, factory: str) -> Changes | None:
        """Replace the index in one transaction, inside :meth:`locked`.

        Returns the changes, or None if this folder was not indexed before.
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
            rules=embedded.rules,
        )
        if chosen := chosen_factory(factory, len(numbers)):
            faiss = FaissIndex.build(chosen, torch.from_numpy(self.vectors_of(numbers)))
            if faiss.recall is not None and faiss.recall < _MIN_RECALL:
                text = f"the index {chosen} finds {faiss.recall:.0%} of what exact search finds; type another --index"
                warnings.warn(f"{text} to find more", RetrievalWarning, stacklevel=4)
            path = self._new_file("search", ".faiss")
            write_atomically(path, faiss.write)
            measured = {"factory": chosen, "effort": faiss.effort, "recall": faiss.recall}
            measured |= {"file": path.name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}
            index = index.model_copy(update=measured)
        with self.transaction(write=True) as current:
            return self._replace_images(current, index, embedded)

    def _with_unlisted(self, embedded: Embedded) -> Embedded:
        """Keep the indexed images below unreadable folders, with their ids."""
        if not embedded.unlisted:
            return embedded
        places = frozenset(embedded.unlisted)
        with self.transaction() as current:
            index = current.state.index
            if index is None or index.folder != str(embedded.folder.resolve()):
                return embedded
            images = [image for image, fits in current.images() if fits and is_below(image.path, places)]
        if not images:
            return embedded
        all_paths = [*embedded.paths, *(image.path for image in images)]
        return dataclasses.replace(
            embedded,
            paths=all_paths,
            class_folders=ClassFolders.of_paths(all_paths, embedded.class_folders.levels),
            stats=np.concatenate([embedded.stats, np.array([image.stat for image in images], dtype=np.int64)]),
            numbers=np.concatenate([embedded.numbers, np.array([image.vector for image in images], dtype=np.int64)]),
        )

    def _replace_images(self, current: Transaction, index: Index, embedded: Embedded) -> Changes | None:
        state = current.state
        before = state.index
        known: dict[str, Image] = {}
        if before is not None and before.folder != index.folder:
            before = None
        if before is not None:
            known = {image.path: image for image, fits in current.images() if fits}
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
            if index.classes is None:
                _warn_of_dropped(index, known.keys() - set(embedded.paths))
            return Changes(new, changed, len(known) - kept, kept - changed)
        return None

    def read_faiss(self, index: Index, thorough: bool = False) -> FaissIndex | None:
        """Open the faiss index, or None for exact search; ``thorough`` hashes large files, too."""
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
