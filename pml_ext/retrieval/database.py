"""The images of an index in a vector database: LanceDB, embedded as SQLite is, which also lies on object storage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ..errors import ConfigError, needs_extra
from .exact import nearest_of
from .index import Gallery, IndexedImages
from .table import arrow

TABLE = "images"
_KIND, _ROWS = "lancedb:", 10_000  # what comes before DIR; rows that are written at a time
_SAMPLE, _NEIGHBORS = 20, 10  # images that ask the database, and the answers that are compared


def export_to(to: str, held: Gallery) -> dict[str, Any]:
    """Writes a table ``images`` with ``id``, ``path``, ``class`` and ``vector``, whose older one it replaces.

    A path that is no UTF-8 is written as ``pml-ext query`` prints it. Afterwards 20 of the images ask the database for
    their 10 nearest, and so does exact search.

    Args:
        to: ``"lancedb:DIR"``.
        held: the index.

    Returns:
        ``rows``; ``agreement``, the share of the database's answers that are as near as those of exact search.

    Raises:
        ConfigError: another kind of database, or none that can be written there.
        MissingExtraError: lancedb is not installed.
    """
    if not to.startswith(_KIND) or to == _KIND:
        raise ConfigError(f"--export {to}: wanted lancedb:DIR, a folder or an address such as s3://bucket/path")
    with needs_extra("lancedb", f"--export {to}"):
        import lancedb
    pa, embedded = arrow(), held.embedded
    if not isinstance(embedded, IndexedImages):
        raise ConfigError("wanted an index that was written; type: pml-ext index RUN FOLDER")
    size = embedded.embeddings.shape[1]
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("path", pa.string()),
            ("class", pa.string()),
            ("vector", pa.list_(pa.float32(), size)),
        ]
    )
    try:
        rows = pa.RecordBatchReader.from_batches(schema, _batches(embedded, schema))
        table = lancedb.connect(to.removeprefix(_KIND)).create_table(TABLE, rows, schema=schema, mode="overwrite")
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"--export {to}: cannot be written ({error})") from None
    return {"rows": table.count_rows(), "agreement": _agreement(table, embedded)}


def _batches(embedded: IndexedImages, schema: Any) -> Iterator[Any]:
    pa = arrow()
    for start in range(0, len(embedded.paths), _ROWS):
        part = slice(start, start + _ROWS)
        points = embedded.embeddings[part].cpu().numpy().reshape(-1)
        columns = [
            pa.array(embedded.ids[part]),
            pa.array([_text(path) for path in embedded.paths[part]]),
            pa.array([_text(name) for name in embedded.classes[part]]),
            pa.FixedSizeListArray.from_arrays(pa.array(points), embedded.embeddings.shape[1]),
        ]
        yield pa.record_batch(columns, schema=schema)


def _agreement(table: Any, embedded: IndexedImages) -> float:
    points, count = embedded.embeddings, len(embedded.paths)
    k = min(_NEIGHBORS, count)
    chosen = torch.from_numpy(np.unique(np.linspace(0, count - 1, _SAMPLE).round().astype(np.int64)))
    farthest = nearest_of(points[chosen], k, points)[0][:, -1]
    right = 0
    for point, limit in zip(points[chosen].cpu().numpy(), farthest.tolist(), strict=True):
        answers = table.search(point).limit(k).to_arrow()  # of squared distances
        right += int((np.sqrt(answers["_distance"].to_numpy().clip(0)) <= limit + 1e-3).sum())
    return right / (k * len(chosen))


def _text(name: str) -> str:
    r"""A file's name as text: a byte that is no UTF-8 is shown as ``\udc..``."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
