"""Embeddings of single files: those that a store has are not computed again, and several new ones are written to it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, UnwritableError
from .listing import Listing, list_files
from .store import EmbeddingStore, Numbers, StoreWarning

LOOKED = 1_000_000  # bytes of a store that are looked through for a file, which takes about as long as to embed it
SEVERAL = 8  # new files that are written: a shard for each single one would be as many files

Rows = NDArray[np.float32]


class KeptFiles:
    """Embeddings of files, wherever they lie, through a run's store.

    The store is looked through if it has a megabyte for each file at most, and eight new files or more are written to
    it. Nobody is waited for, and a store that cannot be written is warned of.

    Args:
        store: of the state of the run.
    """

    def __init__(self, store: EmbeddingStore) -> None:
        self._store = store

    def embeddings(self, files: Sequence[Path], compute: Callable[[Sequence[Path]], Rows]) -> Rows:
        """The embeddings of files, as the network gives them, ``[N, D]``.

        Args:
            files: of which there is one or more; one that is there twice is embedded once.
            compute: embeds those that the store does not have, in its order.

        Raises:
            DataError: of ``compute``.
        """
        listing, numbers = list_files(files)
        kept, known = self._known(listing)
        rows = np.empty((len(listing.names), self._store.size), dtype=np.float32)
        rows[kept] = known
        new = np.setdiff1d(np.arange(len(listing.names)), kept)
        if len(new):
            rows[new] = compute([listing.folder / listing.names[number] for number in new])
            self._keep(listing, new, rows[new])
        return rows[numbers]

    def _known(self, listing: Listing) -> tuple[Numbers, Rows]:
        """The files that the store has, by number, and their embeddings."""
        nothing = np.empty(0, dtype=np.int64), np.empty((0, self._store.size), dtype=np.float32)
        if not 0 < self._store.bytes() <= LOOKED * len(listing.names):
            return nothing
        try:
            return self._store.read(self._store.find(listing))
        except DataError:  # another process has joined shards meanwhile
            return nothing

    def _keep(self, listing: Listing, numbers: Numbers, rows: Rows) -> None:
        if len(numbers) < SEVERAL or not np.isfinite(rows).all():
            return
        try:
            self._store.create()
            self._store.add(listing, numbers, rows)
        except UnwritableError as error:
            warnings.warn(f"embeddings are not kept: {error}", StoreWarning, stacklevel=6)
