"""PostgreSQL with pgvector."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pml_ext.tool import DataError, needs_extra

from . import Found, Rows, Vectors, Where, database_errors

with needs_extra("pgvector", "the store pgvector:"):
    import pgvector.psycopg
    import psycopg
    from psycopg import sql

CANDIDATES = 200  # minimum hnsw.ef_search: candidates of a graph search


class PgVector:
    """A table of PostgreSQL with an HNSW index of its embeddings and a B-tree of its classes."""

    def __init__(self, address: str, table: str, size: int) -> None:
        self._size, self._errors = size, functools.partial(database_errors, f"pgvector:{address}", psycopg.Error)
        names = {"table": table, "hnsw": f"{table}_hnsw", "by_class": f"{table}_class"}
        self._names = {key: sql.Identifier(name) for key, name in names.items()}
        self._there = False
        with self._errors():
            self._connection = psycopg.connect(address, autocommit=True)
            if not self._execute("SELECT 1 FROM pg_extension WHERE extname = 'vector'").fetchone():
                self._execute("CREATE EXTENSION IF NOT EXISTS vector")
            (version,) = self._execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
            pgvector.psycopg.register_vector(self._connection)
            self._there = self._execute("SELECT to_regclass(%s)", f'"{table}"').fetchone()[0] is not None
        if tuple(map(int, version.split(".")[:2])) < (0, 8):
            raise DataError(f"pgvector: version {version} in this database; wanted 0.8 or later")

    def _execute(self, query: str, *values: Any) -> Any:
        return self._connection.execute(sql.SQL(query).format(**self._names), values or None)  # type: ignore[arg-type]

    def write(self, rows: Iterable[Rows]) -> None:
        """Copy each batch in a transaction; the first call then builds the graph, later calls extend it."""
        with self._errors():
            columns = f"id bigint PRIMARY KEY, mark bigint, path text, class text, embedding vector({self._size})"
            self._execute(f"CREATE TABLE IF NOT EXISTS {{table}} ({columns})")
            self._there = True
            for batch in rows:
                with self._connection.transaction():
                    self._execute("CREATE TEMP TABLE batch (LIKE {table}) ON COMMIT DROP")
                    with self._connection.cursor().copy("COPY batch FROM STDIN (FORMAT BINARY)") as copy:
                        copy.set_types(("int8", "int8", "text", "text", "vector"))
                        for id, mark, *row in zip(*batch, strict=True):
                            copy.write_row((int(id), int(mark), *row))
                    self._execute(
                        "INSERT INTO {table} SELECT * FROM batch ON CONFLICT (id) DO UPDATE SET mark = excluded.mark, "
                        "path = excluded.path, class = excluded.class, embedding = excluded.embedding"
                    )
            with self._connection.transaction():
                # a graph that does not fit into this memory takes ten times as long to build
                self._execute("SET LOCAL maintenance_work_mem = '1GB'")
                self._execute("CREATE INDEX IF NOT EXISTS {hnsw} ON {table} USING hnsw (embedding vector_l2_ops)")
                self._execute("CREATE INDEX IF NOT EXISTS {by_class} ON {table} (class)")
            self._execute("ANALYZE {table}")

    def search(self, vectors: Vectors, k: int, where: Where) -> list[list[Found]]:
        """Search the graph; with a class, go on until k of its images are found or pgvector's limit is reached."""
        if not self._there:
            return [[] for _ in vectors]
        query = sql.SQL(
            "SELECT * FROM (SELECT id, path, class, embedding <-> %(point)s AS distance FROM {table}{within} "
            "ORDER BY embedding <-> %(point)s LIMIT %(k)s) AS nearest{radius} ORDER BY distance"
        ).format(
            table=self._names["table"],
            within=sql.SQL(" WHERE class = %(within)s" if where.within is not None else ""),
            radius=sql.SQL(" WHERE distance <= %(radius)s" if where.radius is not None else ""),
        )
        values = [{"point": vector, "k": k, **where._asdict()} for vector in vectors]
        found: list[list[Found]] = []
        with self._errors(), self._connection.transaction(), self._connection.cursor() as cursor:
            self._execute(f"SET LOCAL hnsw.ef_search = {min(max(CANDIDATES, k), 1000)}")
            self._execute("SET LOCAL hnsw.iterative_scan = strict_order")
            cursor.executemany(query, values, returning=True)
            while len(found) < len(values):
                found.append([Found(*row) for row in cursor.fetchall()])
                cursor.nextset()
        return found

    def delete(self, ids: Sequence[int]) -> None:
        """Delete images in one transaction."""
        if self._there:
            with self._errors():
                self._execute("DELETE FROM {table} WHERE id = ANY(%s)", list(ids))

    def count(self) -> int:
        """Count rows."""
        with self._errors():
            return int(self._execute("SELECT count(*) FROM {table}").fetchone()[0]) if self._there else 0

    def marks(self) -> Mapping[int, int]:
        """Read all ids and marks."""
        with self._errors():
            return dict(self._execute("SELECT id, mark FROM {table}").fetchall()) if self._there else {}
