"""A PostgreSQL server for the tests of stores, with a trained run and images from the tests of retrieval."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def loaded(name, file):
    spec = importlib.util.spec_from_file_location(name, file)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


postgresql = loaded("benchmarks_postgresql", ROOT / "benchmarks" / "postgresql.py")
retrieval = loaded("retrieval_conftest", ROOT / "tests" / "retrieval" / "conftest.py")
runs, folder, make, command = retrieval.runs, retrieval.folder, retrieval.make, retrieval.command


@pytest.fixture(scope="session")
def server():
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
