"""Qdrant: a server, or a folder."""

import functools
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pml_ext.errors import needs_extra
from pml_ext_train.retrieval import Rows, SearchFilter, SearchResult, Vectors

from .address import database_errors

with needs_extra("qdrant", "the store qdrant:"):
    from qdrant_client import QdrantClient, models
    from qdrant_client.http.exceptions import ApiException

CANDIDATES = 200  # minimum hnsw_ef: candidates of a graph search
_SENT = 1000  # points per request
BATCH = 10_000  # points that are read at a time


class Qdrant:
    """A Qdrant collection with Euclidean distance; the payload is path, class and checksum."""

    def __init__(self, address: str, table: str, size: int) -> None:
        self._table = table
        self._size = size
        self._client: Any = None
        self._errors = functools.partial(
            database_errors, f"qdrant:{address}", ApiException, RuntimeError, ValueError, OSError
        )
        self._address = address
        self._there = False
        if "://" not in address and not os.path.exists(address):  # connecting would create the folder
            return
        with self._errors():
            self._connect()
            self._there = self._client.collection_exists(table)  # type: ignore[attr-defined]

    def _connect(self) -> None:
        place: dict[str, Any] = {"path": self._address}
        if "://" in self._address:
            place = {"url": self._address, "api_key": os.environ.get("QDRANT_API_KEY"), "timeout": 60}
        with warnings.catch_warnings(action="ignore"):  # about the server's version and many points
            self._client = QdrantClient(**place)

    def write(self, rows: Iterable[Rows]) -> None:
        """Send points in requests of 1,000, each atomic on a server, but not in a folder."""
        with self._errors(), warnings.catch_warnings(action="ignore"):
            if not self._there:
                if self._client is None:
                    self._connect()
                about = models.VectorParams(size=self._size, distance=models.Distance.EUCLID)
                self._client.create_collection(self._table, vectors_config=about)
                self._client.create_payload_index(self._table, "class", models.PayloadSchemaType.KEYWORD)
                self._there = True
            for batch in rows:
                for start in range(0, len(batch.ids), _SENT):
                    part = slice(start, start + _SENT)
                    rows_of = zip(batch.paths[part], batch.classes[part], batch.checksums[part].tolist(), strict=True)
                    payloads = [{"path": path, "class": name, "checksum": checksum} for path, name, checksum in rows_of]
                    ids = batch.ids[part].tolist()
                    vectors = batch.vectors[part].tolist()
                    self._client.upsert(self._table, models.Batch(ids=ids, vectors=vectors, payloads=payloads))

    def search(self, vectors: Vectors, k: int, where: SearchFilter) -> list[list[SearchResult]]:
        """Search a server's graph, or all points of a folder."""
        if not self._there or not len(vectors):
            return [[] for _ in vectors]
        options: dict[str, Any] = {"limit": k, "score_threshold": where.radius, "with_payload": True}
        options["params"] = models.SearchParams(hnsw_ef=max(CANDIDATES, k))
        if where.within is not None:
            condition = models.FieldCondition(key="class", match=models.MatchValue(value=where.within))
            options["filter"] = models.Filter(must=[condition])
        requests = [models.QueryRequest(query=vector, **options) for vector in vectors.tolist()]
        with self._errors(), warnings.catch_warnings(action="ignore"):  # about parameters without effect in a folder
            answers = self._client.query_batch_points(self._table, requests)
        return [
            [
                SearchResult(int(each.id), each.payload["path"], each.payload["class"], each.score)
                for each in answer.points
            ]
            for answer in answers
        ]

    def delete(self, ids: Sequence[int]) -> None:
        """Delete points."""
        if self._there and len(ids):  # an empty request is an error
            with self._errors():
                self._client.delete(self._table, models.PointIdsList(points=list(ids)))

    def count(self) -> int:
        """Count points."""
        with self._errors():
            if self._there:
                return int(self._client.count(self._table, exact=True).count)
            return 0

    def checksums(self) -> Mapping[int, int]:
        """Read all ids and checksums."""
        found = dict[int, int]()
        after = None
        more = self._there
        with self._errors():
            while more:
                points, after = self._client.scroll(self._table, limit=BATCH, offset=after, with_payload=["checksum"])
                found |= {int(point.id): point.payload["checksum"] for point in points}
                more = after is not None
        return found
