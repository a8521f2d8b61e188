"""Stores that hold a copy of an index."""

from typing import NamedTuple, Protocol

from .images import EmbeddedImages
from .stores import SearchFilter, SearchResult, Vectors


class Changes(NamedTuple):
    """Differences between two states of an index or store."""

    new: int
    changed: int
    gone: int
    same: int

    def __str__(self) -> str:
        return f"{self.new:,} new, {self.changed:,} changed, {self.gone:,} gone, {self.same:,} as before"


class Mirror(Protocol):
    """A store with a copy of an index; wrong answers raise an error."""

    @property
    def shown(self) -> str:
        """The store's address without secrets."""

    def count(self) -> int:
        """Number of images."""

    def search(self, vectors: Vectors, k: int, where: SearchFilter) -> list[list[SearchResult]]:
        """Up to k images for each vector ``[Q, D]``, nearest first."""

    def update(self, images: EmbeddedImages) -> Changes:
        """Write new and changed images, and delete those not in the index."""

    def recall_at_10(self, images: EmbeddedImages) -> float | None:
        """Recall@10 against exact search, on a sample; None for fewer than two images."""


class StoresService(Protocol):
    """The service ``"stores"``."""

    def open(self, address: str, identity: str, size: int) -> Mirror:
        """Open a network's table at an address such as ``lancedb:DIR``."""
