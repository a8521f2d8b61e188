"""Embeddings of single files: those that a store has are not computed again, and several new ones are written to it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import UnwritableError
from .listing import FileFacts, facts_of, listings_of
from .store import SHARD, EmbeddingStore, StoreWarning

LOOKED = 1_000_000  # bytes of a store that are looked through for a file, which takes about as long as to embed it
HELD = 64_000_000  # bytes of embeddings that are held, and a shard more
SEVERAL = 8  # new files that are written: a shard for each single one would be as many files

Rows = NDArray[np.float32]


class KeptFiles:
    """Embeddings of files, wherever they lie, through a run's store.

    What is new in the store is looked through, once, if it has a megabyte for each file at most. Nobody is waited for,
    and a store that cannot be written is warned of.

    Args:
        store: of the state of the run.
    """

    def __init__(self, store: EmbeddingStore) -> None:
        self._store = store
        self._looked: set[str] = set()  # shards
        self._found: dict[str, tuple[FileFacts, str, int]] = {}  # by path, with the shard and the row in it
        self._held: dict[str, Rows] = {}  # shards that were read, for the next files

    @contextlib.contextmanager
    def asked(self) -> Iterator[_Asked]:
        """One pass over files; what is new is written after each thousand, and when the pass ends, whichever way."""
        asked = _Asked(self)
        try:
            yield asked
        finally:
            asked.keep(SEVERAL)

    def known(self, facts: Sequence[FileFacts]) -> dict[int, NDArray[np.float32]]:
        """The embeddings of the files that the store has, by their numbers."""
        shards = self._store.names()
        fresh = [name for name in shards if name not in self._looked]
        if 0 < self._store.bytes_of(fresh) <= LOOKED * len(facts):
            for name in fresh:
                self._look(name, self._store.files(name))
        places: dict[str, list[tuple[int, int]]] = {name: [] for name in shards}
        for number, file in enumerate(facts):
            known, shard, row = self._found.get(file.place, (None, "", 0))
            if known == file and shard in places:
                places[shard].append((number, row))
        rows: dict[int, NDArray[np.float32]] = {}
        for shard, pairs in places.items():
            if pairs and (points := self._points(shard)) is not None:
                rows |= {number: points[row] for number, row in pairs}
        return rows

    def keep(self, new: dict[FileFacts, Rows]) -> None:
        """Writes embeddings of files as a shard."""
        try:
            self._store.create()
            for listing, files in listings_of([*new]):
                name = self._store.add(listing, np.arange(len(files)), np.stack([new[file] for file in files]))
                self._look(name, files)
        except UnwritableError as error:
            warnings.warn(f"embeddings are not kept: {error}", StoreWarning, stacklevel=6)

    def _look(self, shard: str, files: Sequence[FileFacts]) -> None:
        self._found |= {file.place: (file, shard, row) for row, file in enumerate(files)}
        self._looked.add(shard)

    def _points(self, shard: str) -> Rows | None:
        points = self._held.get(shard)
        if points is None and (points := self._store.embeddings(shard)) is not None:
            if sum(each.nbytes for each in [*self._held.values(), points]) > HELD:
                self._held = {}
            self._held[shard] = points
        return points


class _Asked:
    """See :meth:`KeptFiles.asked`."""

    def __init__(self, kept: KeptFiles) -> None:
        self._kept = kept
        self.new: dict[FileFacts, Rows] = {}

    def embeddings(self, files: Sequence[Path], compute: Callable[[Sequence[Path]], Rows]) -> Rows:
        """The embeddings of files, as the network gives them, ``[N, D]``.

        Args:
            files: one or more; one that is there twice is embedded once.
            compute: embeds those that the store does not have.

        Raises:
            DataError: of ``compute``.
        """
        facts = facts_of(files)
        known = self._kept.known(facts)
        missing = {facts[number]: number for number in reversed(range(len(files))) if number not in known}
        numbers = sorted(missing.values())
        if numbers:
            rows = compute([files[number] for number in numbers])
            fresh = {facts[number]: row for number, row in zip(numbers, rows, strict=True)}
            self.new |= {file: row for file, row in fresh.items() if file.is_known and np.isfinite(row).all()}
            known |= {number: fresh[file] for number, file in enumerate(facts) if number not in known}
            self.keep(SHARD)
        return np.stack([known[number] for number in range(len(files))])

    def keep(self, least: int) -> None:
        """Writes what is new, if that is as many files."""
        if len(self.new) >= least:
            self._kept.keep(self.new)
            self.new = {}
