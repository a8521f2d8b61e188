"""A collection: its files, its database, its classes; damage, and processes that write at once."""

import contextlib
import multiprocessing
import random
import shutil
import sqlite3
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from pml_ext import load_run
from pml_ext.errors import DataError, UnwritableError
from pml_ext_search.collection.class_folders import ClassFolders
from pml_ext_search.collection.collection import Collection
from pml_ext_search.collection.database import recorded
from pml_ext_search.collection.embedded import Embedded
from pml_ext_search.collection.problems import StoreWarning
from pml_ext_search.collection.state import crc_of, in_shard
from pml_ext_search.embedding.batch_embedder import NetworkEmbedder
from pml_ext_search.query.search_index import _class_levels
from pml_ext_train.results import LoadedRun

from ..conftest import execute, flip, full, ids_of, rows
from ..drawings import write_some


@pytest.mark.parametrize(
    ("levels", "paths", "classes"),
    [
        (1, ["cats/a/1.png", "dogs/2.png", "3.png"], ["cats", "dogs", ""]),
        (2, ["cats/a/old/1.png", "dogs/2.png"], ["cats/a", "dogs"]),
        (None, ["cats/a/old/1.png", "dogs/2.png"], ["cats/a/old", "dogs"]),
        (1, ["train/cats/1.png", "test/dogs/old/2.png", "val/cats/3.png"], ["cats", "dogs", "cats"]),
        (None, ["train/cats/a/1.png", "test/dogs/2.png", "test/3.png"], ["cats/a", "dogs", ""]),
        (1, ["train/1.png", "test/2.png", "cats/3.png"], ["train", "test", "cats"]),
        (1, ["x.tar/cats/1.png", "x.tar/2.png"], ["cats", ""]),
    ],
)
def test_classes_are_named_by_sub_folders(levels, paths, classes):
    folders = ClassFolders.of_paths(paths, levels)
    assert [folders.class_of(path) for path in paths] == classes
    for path, name in zip(paths, classes, strict=True):
        if name and not path.startswith("x.tar"):  # in shards, classes lie inside of the shard
            assert any(path.startswith(f"{place}/") for place in folders.places_of(name))


@pytest.mark.parametrize(
    ("data", "options", "levels"),
    [
        ("folder:photos", {}, 1),
        ("folder:photos", {"levels": 2}, 2),
        ("folder:photos", {"classes": "leaf"}, None),
        ("digits", {}, 1),
    ],
)
def test_an_index_has_the_levels_of_its_run(data, options, levels):
    assert _class_levels(data, options) == levels


def test_an_index_names_classes_as_its_run_does(make, tmp_path):
    write_some(tmp_path / "photos" / "train", range(14))
    write_some(tmp_path / "photos" / "test" / "outer", range(14, 21))
    run = make()
    run.images.class_levels = 2
    trained = {f"class {number}" for number in range(7)}
    assert {*run.index(tmp_path / "photos").embedded.classes} == trained | {f"outer/{name}" for name in trained}
    (answer,) = run.query(tmp_path / "photos" / "test" / "outer" / "class 0" / "0014.png", k=2, within="class 0")
    assert answer.query_class == "outer/class 0"
    assert sorted(answer.paths) == ["train/class 0/0000.png", "train/class 0/0007.png"]
    assert answer.classes == ["class 0", "class 0"]


def test_a_fifth_of_holes_is_compacted(make, images, tmp_path):
    write_some(images, range(100))
    run = make()
    paths = run.index(images, factory="IVF4,Flat").embedded.paths
    mapped = run.embed_folder(images).embeddings
    before = mapped.clone()
    size = (tmp_path / "store" / "vectors.f32").stat().st_size
    for path in paths[:10]:
        (images / path).unlink()
    make().embed_folder(images)  # the index has them still
    assert (tmp_path / "store" / "vectors.f32").stat().st_size == size
    make().index(write_some(images, range(10, 25), brightness=100), factory="IVF4,Flat")
    (vectors,) = (tmp_path / "store").glob("vectors-*.f32")
    assert vectors.stat().st_size == len(list(images.glob("*/*.png"))) * 64 * 4
    assert torch.equal(mapped, before)
    scratch = load_run(run.folder, "cpu", store=tmp_path / "scratch")
    scratch.index(images, factory="IVF4,Flat")
    (now,) = run.query(images / paths[30], 5)
    (wanted,) = scratch.query(images / paths[30], 5)
    assert now.paths == wanted.paths
    assert now.distances == pytest.approx(wanted.distances, abs=1e-3)
    again = make().embed_folder(images)
    assert again.new == 0
    torch.testing.assert_close(again.embeddings, scratch.embed_folder(images).embeddings, rtol=0, atol=1e-5)
    assert run.gallery().check() == ([], [])


def test_files_of_a_collection_have_the_documented_format(make, images):
    write_some(images, range(20))
    (images / "loose.png").write_bytes(next(images.glob("class 1/*")).read_bytes())
    embedded = make().index(images).embedded
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
    run = make(indexed=write_some(images, range(60)))
    monkeypatch.setattr(
        "pml_ext_search.collection.collection.write_atomically",
        lambda path, write: path.write_bytes(b"half") and full(),
    )
    with pytest.raises(OSError, match="No space left"):
        run.index(images, factory="IVF4,Flat")
    monkeypatch.undo()
    (images.parent / "store" / ".search-2.faiss.5-6.tmp").write_bytes(b"half")
    run.index(images)
    assert {path.name for path in run.place.iterdir()} == {".lock", "images.sqlite", "vectors.f32"}


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
    assert opened().vectors_of(np.array([*found.values()])).tolist() == [[int(path[1:])] * 8 for path in found]
    assert len(found) == 120
    assert (tmp_path / "vectors.f32").stat().st_size == 120 * 8 * 4


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("UPDATE collection SET about = CAST(x'80' AS TEXT)", pytest.warns(StoreWarning, match="is replaced")),
        ("ALTER TABLE embedded RENAME COLUMN size TO width", pytest.raises(DataError, match="damaged")),
    ],
)
def test_a_table_that_nobody_wrote_is_damage(make, images, statement, found):
    make().index(write_some(images, range(24)))
    execute(images, statement)
    with found:
        make().index(images)


def test_a_full_database_asks_for_room(make):
    full = sqlite3.connect(":memory:")
    full.execute("PRAGMA max_page_count = 2")
    full.execute("CREATE TABLE one (large)")
    wanted = r"images.sqlite: cannot be written .* stays\. Make room on the disk"
    with pytest.raises(UnwritableError, match=wanted), make().collection._errors(write=True):
        full.execute("INSERT INTO one VALUES (zeroblob(100000))")
    full.close()


def test_a_collection_of_an_earlier_state_is_replaced(runs, tmp_path):
    shutil.copytree(runs[0], tmp_path / "run", ignore=shutil.ignore_patterns("collection", "records", "figures"))
    write_some(tmp_path / "images", range(10))
    load_run(tmp_path / "run", "cpu").index(tmp_path / "images")
    shutil.copy(runs[1] / "checkpoints" / "model.pt", tmp_path / "run" / "checkpoints" / "model.pt")
    (tmp_path / "run" / "SHA256SUMS").unlink(missing_ok=True)
    other = load_run(tmp_path / "run", "cpu")
    with pytest.raises(DataError, match=r"collection was built by the run .* type: pml-ext index .*run .*images"):
        other.gallery()
    with pytest.warns(StoreWarning, match="was built by the run"):
        other.embed(sorted((tmp_path / "images").glob("*/*")))
    with pytest.warns(StoreWarning, match=r"the collection is replaced, .* an earlier state of the run"):
        assert other.embed_folder(tmp_path / "images").new == 10
    store = shutil.copytree(tmp_path / "run" / "collection", tmp_path / "store")
    with pytest.raises(DataError, match="store was built by the run .*run .*, not by .*; type --store FOLDER"):
        load_run(runs[0], "cpu", store=store).embed_folder(tmp_path / "images")


def test_readers_go_on_during_a_large_write(make, images, tmp_path, monkeypatch):
    write_some(images, range(5))
    run = make()
    run.embed_folder(images)
    monkeypatch.setattr("pml_ext_search.collection.database.LOCK_TIMEOUT", 0)
    with run.collection.transaction(write=True) as current:
        many = [(b"%0200d" % number, 1, 1, 0, 0) for number in range(40_000)]  # more than SQLite's cache has
        current.connection.executemany("INSERT INTO embedded VALUES (?, ?, ?, ?, ?)", many)
        with contextlib.closing(sqlite3.connect(tmp_path / "store" / "images.sqlite", timeout=0)) as reader:
            assert reader.execute("SELECT count(*) FROM embedded").fetchone() == (5,)


def test_reading_a_collection_waits_for_another_process(make, images, tmp_path, monkeypatch):
    make().embed_folder(write_some(images, range(5)))
    real = sqlite3.connect
    waits = []

    def connect(*arguments, timeout, **settings):
        waits.append(timeout)
        return real(*arguments, timeout=timeout, **settings)

    monkeypatch.setattr(sqlite3, "connect", connect)
    assert recorded(tmp_path / "store") == ("embeddings", None)
    assert waits == [600]


@pytest.mark.parametrize("kind", ["database", "text"])
def test_a_database_of_others_is_refused(make, images, kind):
    write_some(images, range(10))
    database = images.parent / "store" / "images.sqlite"
    database.parent.mkdir()
    if kind == "database":
        execute(images, "CREATE TABLE collection (stamps TEXT)")
    else:
        database.write_text("my list")
    before = database.read_bytes()
    with pytest.raises(DataError, match=r"images.sqlite belongs to another program; type --store FOLDER"):
        make().index(images)
    assert database.read_bytes() == before


@pytest.mark.nightly
def test_a_flipped_bit_exchanges_no_ids(make, images):
    """Whichever bit: ids stay, or a word says that they do not."""
    run = make(indexed=write_some(images, range(24)))
    next(images.glob("class 1/*")).unlink()
    write_some(images, [30])
    run.index(images)
    before = ids_of(run)
    database = images.parent / "store" / "images.sqlite"
    vectors = images.parent / "store" / "vectors.f32"
    content = database.read_bytes()
    points = vectors.read_bytes()
    draw = random.Random(0)
    told = 0
    for _ in range(150):
        vectors.write_bytes(points)
        database.write_bytes(content)
        flip(database, draw.randrange(len(content)), draw.randrange(8))
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                other = make()
                other.index(images)
                after = ids_of(other)
            except DataError as error:
                heard.append(error)
        told += bool(heard)
        if not heard:
            assert after == before
            assert len(other.query(next(images.glob("class 2/*")), 5)[0].paths) == 5
    assert told > 5


def test_a_damaged_row_of_another_folder_is_deleted(make, images, tmp_path):
    write_some(images, range(30))
    write_some(tmp_path / "others", range(30, 60))
    run = make(indexed=images)
    run.embed_folder(tmp_path / "others")
    for number, damaged in ((40, None), (41, "much"), (42, 10_000)):  # of the other folder
        execute(images, "UPDATE embedded SET vector = ? WHERE vector = ?", damaged, number)
    for path in sorted(images.glob("*/*"))[:20]:
        path.unlink()
    with pytest.warns(StoreWarning, match="3 rows of images were damaged and are deleted"):
        run.index(images)
    assert rows(images) == 10 + 27
    assert run.embed_folder(tmp_path / "others").new == 3


@pytest.mark.parametrize("vector", [99, "one"])
def test_a_row_without_a_vector_is_damage(make, few, tmp_path, vector):
    images = shutil.copytree(few[0], tmp_path / "images")
    make().index(images)
    sorted(images.glob("*/*.png"))[5].unlink()
    make().index(images)  # whose vectors do not lie one after another
    execute(images, "UPDATE images SET vector = ? WHERE id = 3", vector)
    with pytest.raises(DataError, match=r"images.sqlite: empty, cut or damaged \(a row of the index has no vector\)"):
        make().gallery()


def test_a_checksum_covers_all_that_stores_keep():
    stats = np.array([[10, 1], [20, 2], [30, 3]])
    points = torch.eye(3)
    images = Embedded(Path("/photos"), ["a/1.png", "a/2.png", "b/3.png"], points, stats=stats, ids=np.array([4, 5, 6]))
    assert images.checksums[1] == crc_of(points[1].numpy().data, 5, b"a/2.png", images.classes[1], 20, 2)
    assert len(set(images.checksums.tolist())) == 3


@pytest.mark.parametrize(
    ("path", "shard"), [("a/1.png", "a/1.png"), ("x.tar/a/1.png", "x.tar"), ("b/x.tar/1.png", "b/x.tar")]
)
def test_an_image_in_a_shard_names_it(path, shard):
    assert in_shard(path) == shard
