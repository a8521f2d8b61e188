"""PostgreSQL with pgvector."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pml_ext.errors import ConfigError, DataError, needs_extra
from pml_ext_train.retrieval import Rows, SearchFilter, SearchResult, Vectors

from .address import database_errors, masked
from .conninfo import read_address

with needs_extra("pgvector", "the store pgvector:"):
    import pgvector.psycopg
    import psycopg
    from psycopg import sql

CANDIDATES = 200  # minimum hnsw.ef_search: candidates of a graph search
MOST_CANDIDATES = 1000  # pgvector's limit of hnsw.ef_search
MOST_INDEXED = 2000  # pgvector's limit of the length of vectors in a graph; longer ones are searched one by one


class PgVector:
    """A table of PostgreSQL with an HNSW index of embeddings and a B-tree of classes."""

    def __init__(self, address: str, table: str, size: int) -> None:
        self._size = size
        self._address = address
        self._title = table
        self._errors = functools.partial(database_errors, f"pgvector:{address}", psycopg.Error)
        if read_address(address) is None:
            raise ConfigError(
                f"{masked(f'pgvector:{address}')}: no address of a PostgreSQL database; wanted "
                "postgresql://USER@HOST/DATABASE, with / and @ in a password as %2F and %40, or 'host=... dbname=...'"
            )
        self._names = {
            "table": sql.Identifier(table),
            "hnsw": sql.Identifier(f"{table}_hnsw"),
            "by_class": sql.Identifier(f"{table}_class"),
        }
        self._there = False
        with self._errors():
            self._connect()

    def _connect(self) -> None:
        self._connection = psycopg.connect(self._address, autocommit=True)
        if not self._execute("SELECT 1 FROM pg_extension WHERE extname = 'vector'").fetchone():
            self._execute("CREATE EXTENSION IF NOT EXISTS vector")
        (version,) = self._execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
        if tuple(map(int, version.split(".")[:2])) < (0, 8):
            raise DataError(f"pgvector: version {version} in this database; wanted 0.8 or later")
        pgvector.psycopg.register_vector(self._connection)
        self._there = self._execute("SELECT to_regclass(%s)", f'"{self._title}"').fetchone()[0] is not None

    def _execute(self, query: str, *values: Any) -> Any:
        if self._connection.closed:  # the server was started again
            self._connect()
        return self._connection.execute(sql.SQL(query).format(**self._names), values or None)  # type: ignore[arg-type]

    def write(self, rows: Iterable[Rows]) -> None:
        """Copy each batch in a transaction; the first call builds the graph."""
        with self._errors():
            columns = f"id bigint PRIMARY KEY, checksum bigint, path text, class text, embedding vector({self._size})"
            self._execute(f"CREATE TABLE IF NOT EXISTS {{table}} ({columns})")
            self._there = True
            for batch in rows:
                with self._connection.transaction():
                    self._execute("CREATE TEMP TABLE batch (LIKE {table}) ON COMMIT DROP")
                    with self._connection.cursor().copy("COPY batch FROM STDIN (FORMAT BINARY)") as copy:
                        copy.set_types(("int8", "int8", "text", "text", "vector"))
                        for id, checksum, *row in zip(*batch, strict=True):
                            copy.write_row((int(id), int(checksum), *row))
                    self._execute(
                        "INSERT INTO {table} SELECT * FROM batch ON CONFLICT (id) DO UPDATE SET "
                        "checksum = excluded.checksum, path = excluded.path, class = excluded.class, "
                        "embedding = excluded.embedding"
                    )
            with self._connection.transaction():
                # building a graph that does not fit into this memory is ten times slower
                self._execute("SET LOCAL maintenance_work_mem = '1GB'")
                if self._size <= MOST_INDEXED:
                    self._execute("CREATE INDEX IF NOT EXISTS {hnsw} ON {table} USING hnsw (embedding vector_l2_ops)")
                self._execute("CREATE INDEX IF NOT EXISTS {by_class} ON {table} (class)")
            self._execute("ANALYZE {table}")

    def search(self, vectors: Vectors, k: int, where: SearchFilter) -> list[list[SearchResult]]:
        """Search the graph, or exactly: with a class, for many answers, or for long vectors."""
        if not self._there:
            return [[] for _ in vectors]
        exact = where.within is not None or k > MOST_CANDIDATES or self._size > MOST_INDEXED
        query = sql.SQL(
            "SELECT * FROM (SELECT id, path, class, embedding <-> %(point)s AS distance FROM {table}{within} "
            "ORDER BY {order} LIMIT %(k)s) AS nearest{radius} ORDER BY distance"
        ).format(
            table=self._names["table"],
            # PostgreSQL uses the graph only for the plain distance, not for a sum
            order=sql.SQL("(embedding <-> %(point)s) + 0" if exact else "embedding <-> %(point)s"),
            within=sql.SQL(" WHERE class = %(within)s" if where.within is not None else ""),
            radius=sql.SQL(" WHERE distance <= %(radius)s" if where.radius is not None else ""),
        )
        values = [{"point": vector, "k": k, **where._asdict()} for vector in vectors]
        candidates = min(max(CANDIDATES, k), MOST_CANDIDATES)
        with self._errors():
            try:
                return self._answers(query, values, candidates)
            except psycopg.OperationalError:
                if not self._connection.closed:
                    raise
            self._connect()  # the server was started again
            return self._answers(query, values, candidates)

    def _answers(self, query: sql.Composed, values: list[dict[str, Any]], candidates: int) -> list[list[SearchResult]]:
        found: list[list[SearchResult]] = []
        with self._connection.transaction(), self._connection.cursor() as cursor:
            self._execute(f"SET LOCAL hnsw.ef_search = {candidates}")
            self._execute("SET LOCAL hnsw.iterative_scan = strict_order")
            cursor.executemany(query, values, returning=True)
            while len(found) < len(values):
                found.append([SearchResult(*row) for row in cursor.fetchall()])
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
            if self._there:
                return int(self._execute("SELECT count(*) FROM {table}").fetchone()[0])
            return 0

    def checksums(self) -> Mapping[int, int]:
        """Read all ids and checksums."""
        with self._errors():
            if self._there:
                return dict(self._execute("SELECT id, checksum FROM {table}").fetchall())
            return {}
