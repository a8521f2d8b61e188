"""Stores: what they hold and find beside a slow loop, interrupted writes, and the commands that use them."""

import itertools
import shutil

import numpy as np
import pytest

from pml_ext import load_run, registry
from pml_ext.errors import ConfigError, DataError
from pml_ext.plugin import Rows, SearchFilter
from pml_ext_browse import open_collections
from pml_ext_search.collection.problems import RetrievalWarning
from pml_ext_stores.address import masked
from pml_ext_stores.contract import check_contract

from ..search.conftest import ids_of
from .opened import opened, rows

pytestmark = pytest.mark.filterwarnings("ignore::pml_ext_search.SkippedImage")


def test_a_store_keeps_its_contract(address):
    """Searches with each filter find what a loop finds; rows are replaced, deleted and kept."""
    scheme, _, place = address.partition(":")
    check_contract(registry.factory("store", scheme), place)


def emptied(run, address, monkeypatch):
    """The store that a run opens from now on, without its images."""
    store = run.open_store(address)
    store.delete([*store.checksums()])
    monkeypatch.setattr(run, "open_store", lambda _: store)
    return store


def test_only_what_has_changed_is_written(address, make, folder, tmp_path, monkeypatch):
    run = make()
    images = shutil.copytree(folder, tmp_path / "images")
    run.index(images)
    store = emptied(run, address, monkeypatch)
    assert run.copy_to_store(address) == ((200, 0, 0, 0), 1.0)
    names = sorted(images.rglob("00*.png"))
    shutil.copy(names[3], names[0])
    names[1].unlink()
    shutil.copy(names[3], images / "new.png")
    before = ids_of(run)
    run.index(images)
    written = []
    write = store.write
    monkeypatch.setattr(store, "write", lambda rows: write(written.append(each) or each for each in rows))
    assert run.copy_to_store(address)[0] == (1, 1, 1, 198)
    assert sum(len(each.ids) for each in written) == 2
    after = ids_of(run)
    assert {*store.checksums()} == {*after.values()}
    assert all(before[path] == after[path] for path in before.keys() & after)
    for options in ({}, {"within": "3"}, {"radius": 0.8}):
        mine, theirs = (run.query([names[5], names[9]], store=store, **options) for store in (None, address))
        for one, other in zip(mine, theirs, strict=True):
            assert one.distances == pytest.approx(other.distances, abs=1e-3)
            assert not any(one.query.endswith(path) for path in other.paths)
    with pytest.raises(ConfigError, match="--within nothing: no image of this class in the store"):
        run.query(names[5], store=address, within="nothing")
    with pytest.warns(RetrievalWarning, match="the store gave no more images of the class 3"):
        assert len(run.query(names[5], k=100, store=address, within="3")[0].paths) < 100


def test_the_next_write_completes_a_failed_one(address, make, folder, monkeypatch):
    run = make(indexed=folder)
    store = emptied(run, address, monkeypatch)
    monkeypatch.setattr("pml_ext_stores.mirror.BATCH", 60)
    write = store.write

    def fail(_):
        raise DataError("the machine is gone")

    monkeypatch.setattr(store, "write", lambda rows: write(itertools.chain(itertools.islice(rows, 2), map(fail, rows))))
    with pytest.raises(DataError, match="the machine is gone"):
        run.copy_to_store(address)
    monkeypatch.setattr(store, "write", write)
    assert store.count() == 120
    assert run.copy_to_store(address) == ((80, 0, 0, 120), 1.0)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("qdrant:https://user:pa/s3cret@host:6333/x?api_key=s3cret", "qdrant:https://***@host:6333/x"),
        ("lancedb:s3://bucket/photos", "lancedb:s3://bucket/photos"),
        ("qdrant:a folder", "qdrant:a folder"),
    ],
)
def test_other_addresses_are_shown_without_a_password(address, shown):
    assert masked(address) == shown


def test_a_class_is_complete_beside_a_large_one(address):
    """The other class is nearer to each query than all of the class that is asked for."""
    store = opened(address)
    half = 1000
    noise = np.random.default_rng(0).standard_normal((2 * half, 8)).astype(np.float32) * 0.1
    noise[:half, 0] += 1
    noise[half:, 0] -= 1
    points = noise / np.linalg.norm(noise, axis=1, keepdims=True)
    ids = np.arange(2 * half)
    store.write([Rows(ids, ids, [f"{id}.jpg" for id in ids], ["near"] * half + ["far"] * half, points)])
    if address.startswith("pgvector:"):
        for setting in ("hnsw.max_scan_tuples = 100", "enable_sort = off", "enable_bitmapscan = off"):
            store._connection.execute(f"SET {setting}")
    (found,) = store.search(points[:1], 10, SearchFilter("far"))
    distances = np.linalg.norm(points[half:] - points[0], axis=1)
    assert [each.id for each in found] == (half + np.argsort(distances, kind="stable")[:10]).tolist()
    (every,) = store.search(points[:1], 1500, SearchFilter())
    assert len(every) == 1500


@pytest.mark.parametrize("scheme", ["lancedb", "qdrant"])
def test_reading_does_not_create_a_store(refused, runs, folder, tmp_path, scheme):
    pytest.importorskip({"lancedb": "lancedb", "qdrant": "qdrant_client"}[scheme], reason=f"needs the extra {scheme}")
    new = tmp_path / "new"
    assert "no images of" in refused("query", runs[0], folder / "3" / "0003.png", "--store", f"{scheme}:{new}")
    assert not new.exists()
    store = opened(f"{scheme}:{new}")
    store.delete([1])
    assert (store.count(), dict(store.checksums()), store.search(rows(1).vectors, 1, SearchFilter())) == (0, {}, [[]])
    assert not new.exists()
    store.write([rows(3)])
    assert store.count() == 3


def test_commands_search_in_a_store(text_of, json_of, refused, runs, folder, tmp_path):
    pytest.importorskip("lancedb", reason="needs the extra lancedb")
    own = ("--store", tmp_path / "own")
    address = f"lancedb:{tmp_path / 'a lake'}"
    done = text_of("index", runs[0], folder, *own, "--to", address)
    assert "lancedb: 200 new, 0 changed, 0 gone, 0 as before" in done
    assert "lancedb: recall@10 1.000 of exact search" in done
    photo = folder / "3" / "0003.png"
    (mine,) = json_of("query", runs[0], photo, *own, "-k", 5)
    (theirs,) = json_of("query", runs[0], photo, "--store", address, "-k", 6)
    assert theirs["paths"] == ["3/0003.png", *mine["paths"]]  # no index here says that it is the image itself
    assert theirs["picture"] is None
    empty = refused("query", runs[1], photo, "--store", address)
    assert "no images of" in empty
    assert "--to" in empty


def test_the_page_searches_in_a_store(runs, folder, tmp_path):
    pytest.importorskip("lancedb", reason="needs the extra lancedb")
    place = shutil.copytree(runs[0], tmp_path / "run", ignore=shutil.ignore_patterns("collection"))
    run = load_run(place, "cpu")
    address = f"lancedb:{tmp_path / 'lake'}"
    run.index(folder)
    run.copy_to_store(address)
    (here,) = open_collections([place], device="cpu")
    (there,) = open_collections([place], device="cpu", store=address)
    there.embeddings = here.embeddings.clone()
    assert there.nearest(7, 5) == here.nearest(7, 5)
    mine, theirs = (page.nearest_to_file(folder / "3" / "0003.png", 5) for page in (here, there))
    assert [each.number for each in theirs] == [each.number for each in mine]
    there.store.delete([*there.store.checksums()])
    assert there.nearest(7, 5) == []


def test_a_large_table_has_lists_that_are_extended(tmp_path, monkeypatch):
    pytest.importorskip("lancedb", reason="needs the extra lancedb")
    monkeypatch.setattr("pml_ext_stores.lancedb.INDEXED", 300)
    store = opened(f"lancedb:{tmp_path / 'lake'}")
    images = rows(300)
    store.write([Rows(*(column[:290] for column in images))])
    assert not store._table.list_indices()
    store.write([Rows(*(column[290:] for column in images))])
    assert {index.columns[0] for index in store._table.list_indices()} == {"embedding", "class"}
    (found,) = store.search(images.vectors[1:2], 100, SearchFilter(images.classes[1]))
    assert [each.class_name for each in found] == [images.classes[1]] * 100  # all of a class, not of near lists
    assert found[0].id == 1
    store.write([rows(40, seed=5, first=280)])
    assert store.count() == 320


@pytest.fixture
def points(tmp_path):
    pytest.importorskip("qdrant_client", reason="needs the extra qdrant")
    return opened(f"qdrant:{tmp_path / 'points'}")


def test_points_are_sent_and_read_in_batches(points, monkeypatch):
    monkeypatch.setattr("pml_ext_stores.qdrant._SENT", 7)
    monkeypatch.setattr("pml_ext_stores.qdrant.BATCH", 10)
    images = rows(45)
    sent = []
    points.write([])  # creates the collection
    upsert = points._client.upsert
    monkeypatch.setattr(points._client, "upsert", lambda title, batch: sent.append(batch.ids) or upsert(title, batch))
    points.write([images])
    assert [id for ids in sent for id in ids] == images.ids.tolist()
    assert [len(ids) for ids in sent] == [7] * 6 + [3]
    assert points.checksums() == dict(zip(images.ids.tolist(), images.checksums.tolist(), strict=True))
    assert points.count() == 45


def test_an_error_is_one_line_with_the_address(points, tmp_path):
    images = rows(3)
    points.write([images])
    with pytest.raises(DataError, match=f"qdrant:{tmp_path / 'points'} failed") as caught:
        points.write([images._replace(vectors=np.zeros((3, 5), dtype=np.float32))])
    assert "\n" not in str(caught.value)


def test_a_server_that_stops_is_one_line(server, make, folder, command, json_of, tmp_path):
    images = shutil.copytree(folder, tmp_path / "with one more")
    shutil.copy(images / "0" / "0000.png", images / "0" / "copy.png")
    address = f"pgvector:{server.address.replace('postgres@', 'postgres:secret@')}"
    run = make(indexed=images)
    store = run.open_store(address)
    line = ("index", run.folder, images, "--store", run.place, "--to", address)
    server.stop()
    try:
        with pytest.raises(DataError) as caught:
            store.write([rows(3)])
        told = command(*line)
    finally:
        server.start()
    assert told.returncode == 2
    for text in (str(caught.value), told.stderr):
        assert f"pgvector:postgresql://127.0.0.1:{server.port}/postgres" in text
        assert "secret" not in text
        assert "type the command again to continue" in text
        assert text.strip().count("\n") <= 3
    about = json_of(*line)["store"]
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
    told = command("query", runs[0], (folder / "3" / "0003.png"), "--store", f"pgvector:{address}", "--json")
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
