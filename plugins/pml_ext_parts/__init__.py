"""Embeddings of a large collection in Parquet files, for many processes.

A listing of images is cut into at most 1,024 *segments* of whole batches of 64; each becomes one file. A part is a
range of segments. Two machines that compute the same part write equal files.

Columns are ``path``, ``class``, ``size`` (bytes), ``time`` (of modification, ns since 1970; in tables and shards the
CRC-32) and ``embedding`` (float32, of length 1, ``[D]``). The metadata have the network's identity, the listing's
digest and the skipped files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pml_ext.plugin import hookimpl

if TYPE_CHECKING:
    from pml_ext_train.retrieval import PartsService


@hookimpl
def pml_ext_services() -> dict[str, Callable[..., Any]]:
    """The service of embeddings in parts."""
    return {"parts": _parts}


def _parts() -> PartsService:
    from . import service

    return service
