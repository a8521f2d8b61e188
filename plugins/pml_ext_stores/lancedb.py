"""LanceDB, in a folder or in object storage."""

import functools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pml_ext.errors import needs_extra
from pml_ext_train.retrieval import Rows, SearchFilter, SearchResult, Vectors

from .address import database_errors

with needs_extra("lancedb", "the store lancedb:"):
    import lancedb
    import pyarrow

INDEXED = 100_000  # minimum number of images for inverted lists; fewer are searched exhaustively
PROBES = 0.1  # fraction of the lists that a query searches


class LanceDB:
    """A table of LanceDB; from 100,000 images on, with inverted lists (IVF)."""

    def __init__(self, address: str, table: str, size: int) -> None:
        self._title = table
        self._size = size
        self._errors = functools.partial(database_errors, f"lancedb:{address}", RuntimeError, ValueError, OSError)
        self._address = address
        self._table: Any = None
        if "://" not in address and not os.path.exists(address):  # connecting would create the folder
            return
        with self._errors():
            try:
                self._table = lancedb.connect(address).open_table(table)
            except ValueError as error:
                if "not found" not in str(error):
                    raise

    def write(self, rows: Iterable[Rows]) -> None:
        """Merge each batch as a version of the table; create or extend a large table's lists."""
        with self._errors():
            for batch in rows:
                vectors = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(batch.vectors.reshape(-1)), self._size)
                table = pyarrow.table(
                    {
                        "id": batch.ids,
                        "checksum": batch.checksums,
                        "path": [*batch.paths],
                        "class": [*batch.classes],
                        "embedding": vectors,
                    }
                )
                if self._table is None:
                    self._table = lancedb.connect(self._address).create_table(self._title, table)
                else:
                    merge = self._table.merge_insert("id")
                    merge.when_matched_update_all().when_not_matched_insert_all().execute(table)
            if self._table is None:
                return
            count = self._table.count_rows()
            if count >= INDEXED and not self._table.list_indices():
                self._table.create_index("l2", math.isqrt(count), vector_column_name="embedding", index_type="IVF_FLAT")
                self._table.create_scalar_index("class")
            self._table.optimize()

    def search(self, vectors: Vectors, k: int, where: SearchFilter) -> list[list[SearchResult]]:
        """Search the nearest lists; all images if a class is given or there are no lists."""
        if self._table is None or not len(vectors):
            return [[] for _ in vectors]
        with self._errors():
            probes = max(1, math.ceil(PROBES * math.sqrt(self._table.count_rows())))
            found: list[list[SearchResult]] = []
            for vector in vectors:
                query = self._table.search(vector, vector_column_name="embedding").distance_type("l2").limit(k)
                query = query.select(["id", "path", "class", "_distance"]).nprobes(probes)
                if where.within is not None:
                    quoted = where.within.replace("'", "''")
                    # the nearest lists may have fewer than k images of the class
                    query = query.where(f"class = '{quoted}'", prefilter=True).bypass_vector_index()
                if where.radius is not None:
                    query = query.distance_range(upper_bound=math.nextafter(where.radius**2, math.inf))
                found.append(
                    [
                        SearchResult(row["id"], row["path"], row["class"], math.sqrt(max(row["_distance"], 0.0)))
                        for row in query.to_arrow().to_pylist()
                    ]
                )
        return found

    def delete(self, ids: Sequence[int]) -> None:
        """Delete rows."""
        if self._table is not None and ids:
            with self._errors():
                self._table.delete(f"id IN ({', '.join(map(str, ids))})")

    def count(self) -> int:
        """Count rows."""
        with self._errors():
            if self._table is not None:
                return int(self._table.count_rows())
            return 0

    def checksums(self) -> Mapping[int, int]:
        """Read all ids and checksums."""
        if self._table is None:
            return {}
        with self._errors():
            table = self._table.search().select(["id", "checksum"]).limit(max(1, self.count())).to_arrow()
        return dict(zip(table["id"].to_pylist(), table["checksum"].to_pylist(), strict=True))
