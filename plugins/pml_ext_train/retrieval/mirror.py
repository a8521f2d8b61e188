"""Stores that hold a copy of an index."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from .images import EmbeddedImages
from .stores import SearchFilter, SearchResult, Vectors


class Changes(NamedTuple):
    """Differences of a new index, or of a store, from the previous one; changed images have another size or time."""

    new: int
    changed: int
    gone: int
    same: int

    def __str__(self) -> str:
        return f"{self.new:,} new, {self.changed:,} changed, {self.gone:,} gone, {self.same:,} as before"


class Mirror(Protocol):
    """A store with a copy of an index. Its answers are checked; a wrong one raises an error."""

    @property
    def shown(self) -> str:
        """The store's address without secrets."""

    def count(self) -> int:
        """Return the number of images; 0 if nothing was copied."""

    def search(self, vectors: Vectors, k: int, where: SearchFilter) -> list[list[SearchResult]]:
        """Return up to k images for each vector ``[Q, D]``, nearest first."""

    def update(self, images: EmbeddedImages) -> Changes:
        """Write new and changed images, and delete images that are not in the index."""

    def recall_at_10(self, images: EmbeddedImages) -> float | None:
        """Return recall@10 against exact search, on a sample of the images; None for fewer than two."""


class StoresService(Protocol):
    """The service ``"stores"``."""

    def open(self, address: str, identity: str, size: int) -> Mirror:
        """Open the table of a network's embeddings, of length ``size``, at an address such as ``lancedb:DIR``."""
