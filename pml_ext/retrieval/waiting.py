"""Embeddings of a folder that are not written yet."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .listing import Listing
from .store import SHARD, EmbeddingStore, Numbers

SECONDS = 30.0  # after which a shard is written, however few images it has


class Waiting:
    """Embeddings that are not written yet; a shard is due after 1,000 images or 30 seconds.

    Args:
        store: where they go.
        listing: of the folder.
    """

    def __init__(self, store: EmbeddingStore, listing: Listing) -> None:
        self._store, self._listing, self._since = store, listing, time.monotonic()
        self._numbers: list[int] = []
        self._parts: list[NDArray[np.float32]] = []
        self.written: list[tuple[str, Numbers]] = []  # shards, and the images in each

    def add(self, numbers: Sequence[int], embeddings: NDArray[np.float32]) -> None:
        """Takes up a batch, and writes a shard if one is due."""
        self._numbers += numbers
        self._parts.append(embeddings)
        if len(self._numbers) >= SHARD or time.monotonic() - self._since >= SECONDS:
            self.write()

    def write(self) -> None:
        """Writes what there is."""
        if self._numbers:
            numbers, embeddings = np.array(self._numbers, dtype=np.int64), np.concatenate(self._parts)
            self._numbers, self._parts = [], []
            self.written.append((self._store.add(self._listing, numbers, embeddings), numbers))
        self._since = time.monotonic()
