"""Databases that hold an index; see :func:`pml_ext.registry.hooks.pml_ext_stores`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Vectors = NDArray[np.float32]


class Rows(NamedTuple):
    """A batch of N images of an index."""

    ids: Numbers  # [N]
    checksums: Numbers  # [N], of the images' rows in the index, below 2^32
    paths: Sequence[str]  # relative to the indexed folder; bytes that are not valid UTF-8 are escaped
    classes: Sequence[str]  # "" for images without a class
    vectors: Vectors  # [N, D], of length 1


class SearchFilter(NamedTuple):
    """Conditions of a search; None for no condition."""

    within: str | None = None  # a class
    radius: float | None = None  # the largest Euclidean distance


class SearchResult(NamedTuple):
    """An image that was found."""

    id: int
    path: str
    class_name: str
    distance: float  # Euclidean


class Store(Protocol):
    """A table of a database. Errors that a user can fix are :class:`pml_ext.errors.DataError`."""

    def write(self, rows: Iterable[Rows]) -> None:
        """Insert or replace batches of images by id; earlier batches stay if a later one fails."""

    def search(self, vectors: Vectors, k: int, where: SearchFilter) -> list[list[SearchResult]]:
        """Up to k images for each vector ``[Q, D]``, nearest first."""

    def delete(self, ids: Sequence[int]) -> None:
        """Delete images; ignore unknown ids."""

    def count(self) -> int:
        """Number of images; 0 without a table."""

    def checksums(self) -> Mapping[int, int]:
        """Checksums by id, which show changes even after a failed write."""
