"""Stores: what they hold and find beside a slow loop, writes that were stopped, and the commands that use them."""

import shutil

import numpy as np
import pytest

from pml_ext import registry
from pml_ext.errors import ConfigError, DataError
from pml_ext.plugin import Rows, SearchFilter
from pml_ext_search.collection.problems import RetrievalWarning
from pml_ext_stores.address import masked
from pml_ext_stores.contract import check_contract

from .opened import opened, rows

pytestmark = pytest.mark.filterwarnings("ignore::pml_ext_search.SkippedImage")


def test_a_store_keeps_its_contract(address):
    """Searches with each filter find what a loop finds; rows are replaced, deleted and kept."""
    scheme, _, place = address.partition(":")
    check_contract(registry.factory("store", scheme), place)


def test_only_what_has_changed_is_written(address, make, folder, tmp_path, monkeypatch):
    run = make()
    images = tmp_path / "images"
    shutil.copytree(folder, images)
    run.index(images)
    store = run.open_store(address)
    store.delete([*store.checksums()])
    monkeypatch.setattr(run, "open_store", lambda _: store)
    changes, recall = run.copy_to_store(address)
    assert (changes, recall) == ((200, 0, 0, 0), 1.0)
    names = sorted(images.rglob("00*.png"))
    shutil.copy(names[3], names[0])
    names[1].unlink()
    shutil.copy(names[3], images / "new.png")
    ids = dict(zip(run.gallery().embedded.paths, run.gallery().embedded.ids.tolist(), strict=True))
    run.index(images)
    written = []
    write = store.write
    monkeypatch.setattr(store, "write", lambda rows: write(written.append(each) or each for each in rows))
    assert run.copy_to_store(address)[0] == (1, 1, 1, 198)
    assert sum(len(each.ids) for each in written) == 2
    embedded = run.gallery().embedded
    assert {*store.checksums()} == {*embedded.ids.tolist()}
    assert all(ids[path] == id for path, id in zip(embedded.paths, embedded.ids.tolist(), strict=True) if path in ids)
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
    run = make()
    run.index(folder)
    store = run.open_store(address)
    store.delete([*store.checksums()])
    monkeypatch.setattr(run, "open_store", lambda _: store)
    monkeypatch.setattr("pml_ext_stores.mirror.BATCH", 60)
    write = store.write

    def stopped(rows):
        def some():
            yield next(rows)
            yield next(rows)
            raise DataError("the machine is gone")

        write(some())

    monkeypatch.setattr(store, "write", stopped)
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
    classes = ["near"] * half + ["far"] * half
    ids = np.arange(2 * half)
    store.write([Rows(ids, ids, [f"{id}.jpg" for id in ids], classes, points)])
    if address.startswith("pgvector:"):
        for setting in ("hnsw.max_scan_tuples = 100", "enable_sort = off", "enable_bitmapscan = off"):
            store._connection.execute(f"SET {setting}")
    (found,) = store.search(points[:1], 10, SearchFilter("far"))
    distances = np.linalg.norm(points[half:] - points[0], axis=1)
    assert [each.id for each in found] == (half + np.argsort(distances, kind="stable")[:10]).tolist()
    (every,) = store.search(points[:1], 1500, SearchFilter())
    assert len(every) == 1500


@pytest.mark.parametrize("scheme", ["lancedb", "qdrant"])
def test_reading_does_not_create_a_store(command, runs, folder, tmp_path, scheme):
    pytest.importorskip({"lancedb": "lancedb", "qdrant": "qdrant_client"}[scheme], reason=f"needs the extra {scheme}")
    new = tmp_path / "new"
    told = command("query", runs[0], folder / "3" / "0003.png", "--store", f"{scheme}:{new}")
    assert (told.returncode, "no images of" in told.stderr) == (2, True)
    assert not new.exists()
    store = opened(f"{scheme}:{new}")
    store.delete([1])
    assert (store.count(), dict(store.checksums()), store.search(rows(1).vectors, 1, SearchFilter())) == (0, {}, [[]])
    assert not new.exists()
    store.write([rows(3)])
    assert store.count() == 3
