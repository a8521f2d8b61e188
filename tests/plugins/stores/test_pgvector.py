"""PostgreSQL with pgvector: a server that stops, and addresses with a password."""

import json
import shutil

import numpy as np
import pytest

from pml_ext import registry
from pml_ext.errors import DataError
from pml_ext.plugin import Rows, SearchFilter

from .opened import opened, rows

pytestmark = pytest.mark.filterwarnings("ignore::pml_ext_search.SkippedImage")


def test_a_server_that_stops_is_one_line(server, make, folder, runs, command, tmp_path):
    images = tmp_path / "with one more"
    shutil.copytree(folder, images)
    shutil.copy(images / "0" / "0000.png", images / "0" / "copy.png")
    address = f"pgvector:{server.address.replace('postgres@', 'postgres:secret@')}"
    run = make("of commands")
    run.index(images)
    store = run.open_store(address)
    server.stop()
    try:
        with pytest.raises(DataError) as caught:
            store.write([rows(3)])
        told = command("index", runs[0], images, "--store", tmp_path / "of commands", "--to", address)
    finally:
        server.start()
    assert told.returncode == 2
    for text in (str(caught.value), told.stderr):
        assert f"pgvector:postgresql://127.0.0.1:{server.port}/postgres" in text
        assert "secret" not in text
        assert "type the command again to continue" in text
        assert text.strip().count("\n") <= 3
    done = command("index", runs[0], images, "--store", tmp_path / "of commands", "--to", address, "--json")
    about = json.loads(done.stdout)["store"]
    assert about["to"] == f"pgvector:postgresql://127.0.0.1:{server.port}/postgres"
    assert (about["recall_at_10"] >= 0.95, about["new"] + about["changed"] + about["same"]) == (True, 201)


def test_long_vectors_are_searched_without_a_graph(server):
    points = np.random.default_rng(0).standard_normal((30, 2048)).astype(np.float32)
    store = registry.factory("store", "pgvector")(server.address, "test_long", 2048)
    ids = np.arange(30)
    store.write([Rows(ids, ids, [f"{id}.jpg" for id in ids], [""] * 30, points)])
    for id, found in zip((3, 7), store.search(points[[3, 7]], 5, SearchFilter()), strict=True):
        distances = np.linalg.norm(points - points[id], axis=1)
        assert [result.id for result in found] == np.argsort(distances)[:5].tolist()


ADDRESSES = [
    "host=127.0.0.1 port=1 user=postgres password=s3cret dbname=photos",
    "host=127.0.0.1 port=1 user=postgres password='s3cret' dbname=photos",
    "postgresql://127.0.0.1:1/photos?user=postgres&password=s3cret",
    "postgresql://postgres:s3cret@127.0.0.1:1/photos",
    "postgresql://postgres:%40s3cret%2F@127.0.0.1:1/photos",
]
MISREAD = [
    "postgresql://postgres:1/s3cret@127.0.0.1:1/photos",
    "postgresql://postgres:x/s3cret@127.0.0.1:1/photos",
    "postgresql://postgres:x@s3cret@127.0.0.1:1/photos",
    "postgresql://postgres:x?a/s3cret@127.0.0.1:1/photos",
    "host=127.0.0.1 port=1 password=x s3cret dbname=photos",
]


@pytest.mark.parametrize("address", [*ADDRESSES, *MISREAD])
def test_no_error_prints_a_password(command, runs, folder, tmp_path, address):
    pytest.importorskip("psycopg", reason="needs the extra pgvector")
    photo = folder / "3" / "0003.png"
    told = command("query", runs[0], photo, "--store", f"pgvector:{address}", "--json")
    assert told.returncode == 2
    assert "s3cret" not in told.stdout + told.stderr
    shown = "pgvector:postgresql://127.0.0.1:1/photos failed" if address in ADDRESSES else "/ and @ in a password as"
    assert shown in told.stderr
    own = command("index", runs[0], folder, "--store", tmp_path / "own", "--to", address)
    assert (own.returncode, "s3cret" in own.stdout + own.stderr) == (2, False)


def test_a_search_outlives_a_restart_of_the_server(server):
    store = opened(f"pgvector:{server.address}")
    images = rows(30)
    store.write([images])
    server.stop()
    try:
        with pytest.raises(DataError, match="failed"):
            store.search(images.vectors[:1], 1, SearchFilter())
    finally:
        server.start()
    assert store.search(images.vectors[:1], 1, SearchFilter())[0][0].id == 0
    server.stop()
    server.start()
    assert store.search(images.vectors[:1], 1, SearchFilter())[0][0].id == 0
    server.stop()
    server.start()
    with pytest.raises(DataError, match="failed"):
        store.count()
    assert store.count() == 30
