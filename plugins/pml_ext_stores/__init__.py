"""Vector databases that hold and search an index."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pml_ext.plugin import hookimpl

if TYPE_CHECKING:
    from pml_ext.testing import Named
    from pml_ext_train.retrieval import Store, StoresService


@hookimpl
def pml_ext_stores() -> dict[str, Callable[..., Any]]:
    """LanceDB, PostgreSQL with pgvector, and Qdrant."""
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


@hookimpl
def pml_ext_checks() -> dict[str, Callable[..., Any]]:
    """The check of stores."""
    return {"store": check_store}


def check_store(named: Named) -> str:
    """A store keeps and finds what is written; one that needs a server is not tried."""
    from .contract import check_in_folder

    return check_in_folder(named)


@hookimpl
def pml_ext_services() -> dict[str, Callable[..., Any]]:
    """The service that fills and searches a store."""
    return {"stores": _stores}


def _stores() -> StoresService:
    from . import mirror

    return mirror
