"""Embeddings of a large collection as Parquet parts, written by any number of processes and read into an index.

A listing of images is cut into at most 1,024 *segments* of whole batches of 64, independent of the number of parts.
Each segment is written atomically as one Parquet file. A part is a range of segments. Two machines may compute the same
part: the files are the same.

Columns are ``path``, ``class``, ``size`` (bytes), ``time`` (of modification, ns since 1970; for images in tables
and shards, the CRC-32) and ``embedding`` (float32, of length 1, ``[D]``). The metadata hold the network's identity,
whether the rows are embeddings or features, the listing's digest and the skipped files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pml_ext.plugin import hookimpl

if TYPE_CHECKING:
    from pml_ext_train.retrieval import PartsService


@hookimpl
def pml_ext_services() -> dict[str, Callable[..., Any]]:
    """Return what embeds parts of large collections, and reads them."""
    return {"parts": _parts}


def _parts() -> PartsService:
    from . import service

    return service
