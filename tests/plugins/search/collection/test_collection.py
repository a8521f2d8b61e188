"""The collection: its files, what is compacted, and processes that append at once."""

import contextlib
import multiprocessing
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import torch

from pml_ext import load_run
from pml_ext_search.collection.collection import Collection
from pml_ext_search.collection.problems import StoreWarning
from pml_ext_search.embedding.batch_embedder import NetworkEmbedder
from pml_ext_train.results import LoadedRun

from ..conftest import full
from ..drawings import write_some


def test_a_fifth_of_holes_is_compacted(make, images, tmp_path):
    write_some(images, range(100))
    run = make()
    gallery = run.index(images, factory="IVF4,Flat")
    mapped = run.embed_folder(images).embeddings
    paths = gallery.embedded.paths
    before = mapped.clone()
    (answer,) = run.query(images / paths[30], 5)
    size = (tmp_path / "store" / "vectors.f32").stat().st_size
    for path in paths[:10]:
        (images / path).unlink()
    make().embed_folder(images)  # the index has them still
    assert (tmp_path / "store" / "vectors.f32").stat().st_size == size
    write_some(images, range(10, 25), brightness=100)
    make().index(images, factory="IVF4,Flat")
    (vectors,) = (tmp_path / "store").glob("vectors*.f32")
    count = len(list(images.glob("*/*.png")))
    assert (vectors.name != "vectors.f32", vectors.stat().st_size) == (True, count * 64 * 4)
    assert torch.equal(mapped, before)
    scratch = load_run(run.folder, "cpu", store=tmp_path / "scratch")
    scratch.index(images, factory="IVF4,Flat")
    query = images / answer.paths[0]
    (now,) = run.query(query, 5)
    (wanted,) = scratch.query(query, 5)
    assert now.paths == wanted.paths
    assert now.distances == pytest.approx(wanted.distances, abs=1e-3)
    assert make().embed_folder(images).new == 0
    torch.testing.assert_close(
        make().embed_folder(images).embeddings, scratch.embed_folder(images).embeddings, rtol=0, atol=1e-5
    )
    assert run.gallery().check() == ([], [])


def test_files_of_a_collection_have_the_documented_format(make, images):
    write_some(images, range(20))
    (images / "loose.png").write_bytes(next(images.glob("class 1/*")).read_bytes())
    embedded = make().index(images).embedded
    names = sorted(path.name for path in (images.parent / "store").iterdir())
    assert names == [".lock", "images.sqlite", "vectors.f32"]
    vectors = np.memmap(images.parent / "store" / "vectors.f32", np.float32, "r").reshape(-1, 64)
    with contextlib.closing(sqlite3.connect(images.parent / "store" / "images.sqlite")) as connection:
        table = connection.execute("SELECT id, path, size, fingerprint, vector FROM images").fetchall()
    for id, path, size, modified, vector in table:
        number = embedded.paths.index(path.decode())
        about = (images / path.decode()).stat()
        assert (embedded.ids[number], size, modified) == (id, about.st_size, about.st_mtime_ns)
        assert embedded.classes[number] == (path.decode().rpartition("/")[0])
        assert np.array_equal(vectors[vector], embedded.embeddings[number].numpy())
    torch.testing.assert_close(torch.from_numpy(vectors.copy()).norm(dim=1), torch.ones(21))


# Whose it is


def test_precision_and_preprocessing_are_of_the_identity(runs):
    run = LoadedRun(runs[0], "cpu")

    def identity(weights="w", precision="float32"):
        run.identity = weights
        run.recipe.engine.precision = precision
        return NetworkEmbedder(run).identity

    run.recipe = run.recipe.model_copy(deep=True)
    first = identity()
    assert {identity("v"), identity(precision="bfloat16")}.isdisjoint({first})
    run.description = run.description.model_copy(update={"squash": True})
    assert identity() != first


# Files


def test_files_of_others_in_the_store_stay(make, images):
    write_some(images, range(60))
    store = images.parent / "store"
    store.mkdir()
    names = ["vectors.f32", "vectors-2.f32", "search-1.faiss", "search-2.faiss", ".notes.5.tmp", ".x.tmp"]
    for name in names:
        (store / name).write_bytes(b"mine")
    run = make()
    with pytest.warns(StoreWarning, match=r"vectors-2.f32 is kept, because the collection does not list it"):
        run.index(images, factory="IVF4,Flat")
    for path in sorted(images.glob("*/*"))[:30]:
        path.unlink()
    run.index(images, factory="IVF4,Flat")
    run.index(images, factory="IVF2,Flat")
    assert [(store / name).read_bytes() for name in names] == [b"mine"] * len(names)
    own = {path.name for path in store.iterdir()} - {*names, ".lock", "images.sqlite"}
    assert len(own) == 2, own  # the vectors, and the index of faiss
    assert len(make().query(next(images.glob("*/*")), 5)[0].paths) == 5


def test_what_a_killed_process_left_is_deleted(make, images, monkeypatch):
    write_some(images, range(60))
    run = make()
    run.index(images)
    monkeypatch.setattr(
        "pml_ext_search.collection.collection.write_atomically",
        lambda path, write: path.write_bytes(b"half") and full(),
    )
    with pytest.raises(OSError, match="No space left"):
        run.index(images, factory="IVF4,Flat")
    monkeypatch.undo()
    (images.parent / "store" / ".search-2.faiss.5-6.tmp").write_bytes(b"half")
    run.index(images)
    names = {path.name for path in (images.parent / "store").iterdir()}
    assert names == {".lock", "images.sqlite", "vectors.f32"}


def test_processes_append_vectors_at_once(tmp_path):
    """Each row keeps its own vector."""

    def opened():
        return Collection(tmp_path, Path("run"), "1" * 16, 8)

    def append(start):
        collection = opened()
        for number in range(start, start + 40, 4):
            numbers = range(number, number + 4)
            rows = np.array([[each] * 8 for each in numbers], dtype=np.float32)
            collection.append([b"/%d" % each for each in numbers], [(each, 0) for each in numbers], rows)

    opened().create(replace=False)
    forked = multiprocessing.get_context("fork")
    processes = [forked.Process(target=append, args=(40 * each,)) for each in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    found, _ = opened().find({b"/%d" % number: (number, 0) for number in range(120)})
    vectors = opened().vectors_of(np.array([*found.values()]))
    assert vectors.tolist() == [[int(path[1:])] * 8 for path in found]
    assert len(found) == 120
    assert (tmp_path / "vectors.f32").stat().st_size == 120 * 8 * 4
