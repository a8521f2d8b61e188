"""Embeddings in files for other programs: ``.npz`` and ``.parquet``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import needs_extra
from ..files import write_atomically
from .embedding import Embedded


def save_embeddings(embedded: Embedded, path: Path) -> None:
    """Writes embeddings, paths and classes to an ``.npz`` or ``.parquet`` file.

    Args:
        embedded: the images.
        path: of the file; the columns of one that ends in ``.parquet`` are ``path``, ``class``, ``size``,
            ``modified_ns`` and ``embedding``. Paths and classes are text, or bytes if one of them is no UTF-8.
    """
    save = save_parquet if path.suffix == ".parquet" else save_npz
    write_atomically(path, lambda temporary: save(temporary, embedded))


def save_parquet(path: Path, embedded: Embedded) -> None:
    """Writes embeddings, paths and classes to a Parquet file as it comes, without a temporary one."""
    with needs_extra("train", "a .parquet file"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    points = embedded.embeddings.cpu().numpy()

    def texts(names: Sequence[str]) -> Any:
        try:
            return pa.array(names, pa.string())
        except UnicodeEncodeError:
            return pa.array([os.fsencode(name) for name in names], pa.binary())

    columns = {"path": texts(embedded.paths), "class": texts(embedded.classes)}
    if embedded.sizes is not None and embedded.times is not None:
        columns |= {"size": pa.array(embedded.sizes), "modified_ns": pa.array(embedded.times)}
    columns["embedding"] = pa.FixedSizeListArray.from_arrays(pa.array(points.reshape(-1)), points.shape[1])
    pq.write_table(pa.table(columns), path, use_dictionary=["class"])


def save_npz(path: Path, embedded: Embedded) -> None:
    """Writes embeddings, paths and classes to a file as it comes, without a temporary one."""
    points = embedded.embeddings.cpu().numpy()
    with path.open("wb") as file:
        np.savez(file, embeddings=points, paths=np.array(embedded.paths), classes=np.array(embedded.classes))
