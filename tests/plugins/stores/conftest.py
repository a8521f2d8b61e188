"""A PostgreSQL server for the tests of stores, with a trained run and images from the tests of retrieval."""

import pytest

from benchmarks import postgresql

from ..search.conftest import command, folder, json_of, make, refused, text_of  # noqa: F401 (fixtures)


@pytest.fixture(scope="session")
def server():
    pytest.importorskip("psycopg", reason="needs the extra pgvector")
    if postgresql.programs() is None:
        pytest.skip("no PostgreSQL with pgvector: apt-get install postgresql postgresql-17-pgvector")
    with postgresql.running() as running:
        yield running


@pytest.fixture(params=["lancedb", "qdrant", "pgvector"])
def address(request, tmp_path):
    needed = {"lancedb": "lancedb", "qdrant": "qdrant_client", "pgvector": "psycopg"}[request.param]
    pytest.importorskip(needed, reason=f"needs the extra {request.param}")
    place = request.getfixturevalue("server").address if request.param == "pgvector" else tmp_path / "a store"
    return f"{request.param}:{place}"
