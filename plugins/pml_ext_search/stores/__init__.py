"""Stores: databases that hold and search the images of an index, ``pml-ext index RUN --to SCHEME:ADDRESS``."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pml_ext.tool import DataError, one_line, shortened

BATCH = 10_000  # images per batch of a write
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
    """The filter of a search; None disables a condition."""

    within: str | None = None  # a class
    radius: float | None = None  # the largest Euclidean distance


class SearchResult(NamedTuple):
    """An answer."""

    id: int
    path: str
    class_name: str
    distance: float  # Euclidean


class Store(Protocol):
    """The interface of a store, a table of a database; see :func:`pml_ext.registry.hooks.pml_ext_stores`.

    Errors that a user can mend are :class:`pml_ext.errors.DataError`.
    """

    def write(self, rows: Iterable[Rows]) -> None:
        """Insert batches of images, replacing those with the same ids, and update the table's index.

        What was written remains if a later batch fails.
        """

    def search(self, vectors: Vectors, k: int, where: SearchFilter) -> list[list[SearchResult]]:
        """Return up to k images for each vector ``[Q, D]``, nearest first."""

    def delete(self, ids: Sequence[int]) -> None:
        """Delete images; ignore unknown ids."""

    def count(self) -> int:
        """Return the number of images; 0 if there is no table."""

    def checksums(self) -> Mapping[int, int]:
        """Return the checksum of each image by its id: they show what has changed, also after a failed write."""


def builtin_stores() -> dict[str, Callable[..., Store]]:
    """Return the factories of this package's stores, by scheme; see :func:`pml_ext.registry.hooks.pml_ext_stores`."""
    return {"lancedb": _lancedb, "pgvector": _pgvector, "qdrant": _qdrant}


def _lancedb(address: str, table: str, size: int) -> Store:
    """LanceDB, in a folder or in object storage: ``lancedb:DIR``, ``lancedb:s3://bucket/photos``."""
    from .lancedb import LanceDB

    return LanceDB(address, table, size)


def _pgvector(address: str, table: str, size: int) -> Store:
    """PostgreSQL with pgvector of 0.8 or later: ``pgvector:postgresql://user@host/database``."""
    from .pgvector import PgVector

    return PgVector(address, table, size)


def _qdrant(address: str, table: str, size: int) -> Store:
    """Qdrant, a server or a folder: ``qdrant:http://localhost:6333``, ``qdrant:DIR``; key in ``QDRANT_API_KEY``."""
    from .qdrant import Qdrant

    return Qdrant(address, table, size)


def masked(address: str) -> str:
    """Return the address of a store without what may be secret: of PostgreSQL, host and database."""
    scheme, colon, rest = address.partition(":")
    if scheme == "pgvector":
        from .pgvector import public_part

        return scheme + colon + public_part(rest)
    if "://" not in address:
        return re.sub(r"(password\s*=).*", r"\1***", address)
    start, _, rest = address.partition("://")
    user, _, place = rest.rpartition("@")
    hidden = "***@" if user else ""
    return f"{start}://{hidden}{place.partition('?')[0]}"


@contextlib.contextmanager
def database_errors(name: str, *errors: type[Exception]) -> Iterator[None]:
    """Convert a database's errors into a one-line DataError, without the password of its address."""
    try:
        yield
    except errors as error:
        why = shortened(one_line(error), 300)
        text = f"{masked(name)} failed ({why}); what was written before stays, type the command again to go on"
        raise DataError(text) from error
