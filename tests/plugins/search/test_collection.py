"""The collection: nothing is embedded twice, whatever was interrupted, damaged, added, deleted or replaced."""

import contextlib
import math
import multiprocessing
import os
import random
import re
import shutil
import sqlite3
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock

from pml_ext import load_run
from pml_ext.errors import ConfigError, DataError
from pml_ext_search import embedding, folder_pass
from pml_ext_search.class_folders import ClassFolders
from pml_ext_search.collection import Collection
from pml_ext_search.database import recorded_by
from pml_ext_search.embedding import SkippedImage
from pml_ext_search.problems import StoreWarning
from pml_ext_search.trained import _class_levels

from .conftest import flip, full, killed
from .drawings import write_some


@pytest.fixture
def images(tmp_path):
    """An empty folder, beside the collection."""
    (tmp_path / "images").mkdir()
    return tmp_path / "images"


def rows(images):
    """How many files the collection beside a folder has embeddings of."""
    if not (images.parent / "store" / "images.sqlite").exists():
        return 0
    with contextlib.closing(sqlite3.connect(images.parent / "store" / "images.sqlite")) as connection:
        return connection.execute("SELECT count(*) FROM embedded").fetchone()[0]


def test_a_fifth_of_holes_is_compacted_and_readers_stay_right(make, images, tmp_path):
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


# Damage


def test_a_flipped_bit_gives_no_image_the_id_of_another(make, images):
    """Whichever bit: ids stay, or a word says that they do not."""
    write_some(images, range(24))
    run = make()
    run.index(images)
    next(images.glob("class 1/*")).unlink()
    write_some(images, [30])
    run.index(images)
    before = dict(zip(*of_index(run), strict=True))
    place = images.parent / "store"
    content = (images.parent / "store" / "images.sqlite").read_bytes()
    vectors = (place / "vectors.f32").read_bytes()
    draw = random.Random(0)
    told = 0
    for _ in range(150):
        (place / "vectors.f32").write_bytes(vectors)
        (place / "images.sqlite").write_bytes(content)
        flip(place / "images.sqlite", draw.randrange(len(content)), draw.randrange(8))
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                other = make()
                other.index(images)
                after = dict(zip(*of_index(other), strict=True))
            except DataError as error:
                heard.append(error)
        told += bool(heard)
        if not heard:
            assert after == before
            assert len(other.query(next(images.glob("class 2/*")), 5)[0].paths) == 5
    assert told > 5


def test_a_path_whose_type_was_changed_is_damage(make, images):
    """The last byte of a type's code is five bytes before its value: a blob becomes a text."""
    write_some(images, range(24))
    make().index(images)
    database = images.parent / "store" / "images.sqlite"
    content = database.read_bytes()
    path = os.fsencode(next(images.glob("class 3/*")))
    places = [match.start() for match in re.finditer(re.escape(path), content)]
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT count(*) FROM embedded WHERE typeof(path) = 'blob'").fetchone() == (24,)
    flip(database, places[-1] - 5)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT count(*) FROM embedded WHERE typeof(path) = 'text'").fetchone() == (1,)
    with pytest.warns(StoreWarning, match="1 image were damaged"):
        make().index(images)
    assert len(make().gallery().embedded.paths) == 24


def execute(images, statement):
    with contextlib.closing(sqlite3.connect(images.parent / "store" / "images.sqlite")) as connection:
        connection.execute(statement)
        connection.commit()


def test_a_state_that_is_no_text_is_damage(make, images):
    write_some(images, range(24))
    make().index(images)
    execute(images, "UPDATE collection SET about = CAST(x'80' AS TEXT)")
    with pytest.warns(StoreWarning, match="the collection is removed"):
        make().index(images)


def test_a_column_of_another_name_is_damage(make, images):
    write_some(images, range(24))
    make().index(images)
    execute(images, "ALTER TABLE embedded RENAME COLUMN size TO width")
    with pytest.raises(DataError, match="damaged"):
        make().index(images)


def of_index(run):
    embedded = run.gallery().embedded
    return embedded.paths, embedded.ids.tolist()


# Whose it is


def test_a_collection_of_an_earlier_state_is_replaced(runs, tmp_path):
    ignored = shutil.ignore_patterns("collection", "records", "figures")
    shutil.copytree(runs[0], tmp_path / "run", ignore=ignored)
    write_some(tmp_path / "images", range(10))
    load_run(tmp_path / "run", "cpu").index(tmp_path / "images")
    shutil.copy(runs[1] / "checkpoints" / "model.pt", tmp_path / "run" / "checkpoints" / "model.pt")
    (tmp_path / "run" / "SHA256SUMS").unlink(missing_ok=True)
    other = load_run(tmp_path / "run", "cpu")
    with pytest.raises(DataError, match=r"collection was built by the run .* type: pml-ext index .*run .*images"):
        other.gallery()
    with pytest.warns(StoreWarning, match="was built by the run"):
        other.embed(sorted((tmp_path / "images").glob("*/*")))
    with pytest.warns(StoreWarning, match=r"collection: the collection is removed, .* of an earlier state of the run"):
        assert other.embed_folder(tmp_path / "images").new == 10
    with pytest.raises(DataError, match="store was built by the run .*run .*, not by .*; type --store FOLDER"):
        load_run(
            runs[0], "cpu", store=shutil.copytree(tmp_path / "run" / "collection", tmp_path / "store")
        ).embed_folder(tmp_path / "images")


def test_precision_and_preprocessing_are_of_the_identity(runs):
    network = load_run(runs[0], "cpu").network

    def identity(weights="w", precision="float32"):
        cpu = torch.device("cpu")
        return embedding.ImageEmbedder(Path("run"), network, cpu, weights, precision, Path("store")).collection.identity

    first = identity()
    assert {identity("v"), identity(precision="bfloat16")}.isdisjoint({first})
    network.preprocessing = network.preprocessing.model_copy(update={"squash": True})
    assert identity() != first


# Interruptions


def test_a_full_disk_is_one_line_and_what_was_written_stays(make, images, command, runs, monkeypatch):
    monkeypatch.setattr(folder_pass, "WRITTEN", 64)
    write_some(images, range(300))
    real = os.fsync
    written = []

    def full_later(file):
        if len(written) == 2:
            full()
        written.append(file)
        return real(file)

    monkeypatch.setattr(os, "fsync", full_later)
    done = command("index", runs[0], images, "--store", images.parent / "store")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "cannot be written (No space left on device); what was written before stays" in done.stderr
    monkeypatch.setattr(os, "fsync", real)
    assert rows(images) == 128
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make().embed_folder(images).new == 300 - 128


def test_a_killed_process_goes_on_from_its_last_rows(make, images, monkeypatch):
    """Killed with its workers at work; benchmarks/embedding_kills.py kills the command three times."""
    write_some(images, range(100))
    monkeypatch.setattr(folder_pass, "WRITTEN", 20)
    monkeypatch.setattr(folder_pass, "SECONDS", math.inf)
    killed(lambda: make(workers=2).embed_folder(images, batch_size=10), 3)
    kept = rows(images)
    vectors = images.parent / "store" / "vectors.f32"
    assert kept % 20 == 0
    assert 0 < kept < 100
    assert vectors.stat().st_size == (kept + 20) * 64 * 4
    with vectors.open("ab") as file:
        file.write(b"part of a vector")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is damaged, and nobody holds the lock
        embedded = make().embed_folder(images)
    assert embedded.new == 100 - kept
    assert vectors.stat().st_size == 100 * 64 * 4
    shutil.rmtree(images.parent / "store")
    torch.testing.assert_close(embedded.embeddings, make().embed_folder(images).embeddings, rtol=0, atol=1e-5)


# Files


def test_files_of_others_in_the_store_stay(make, images):
    write_some(images, range(60))
    store = images.parent / "store"
    store.mkdir()
    names = ["vectors.f32", "vectors-2.f32", "search-1.faiss", "search-2.faiss", ".notes.5.tmp", ".x.tmp"]
    for name in names:
        (store / name).write_bytes(b"mine")
    run = make()
    with pytest.warns(StoreWarning, match=r"vectors-2.f32 stays, as no table names it"):
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
        "pml_ext_search.collection.write_atomically", lambda path, write: path.write_bytes(b"half") and full()
    )
    with pytest.raises(OSError, match="No space left"):
        run.index(images, factory="IVF4,Flat")
    monkeypatch.undo()
    (images.parent / "store" / ".search-2.faiss.5-6.tmp").write_bytes(b"half")
    run.index(images)
    names = {path.name for path in (images.parent / "store").iterdir()}
    assert names == {".lock", "images.sqlite", "vectors.f32"}


def with_another_folder(make, images, tmp_path):
    """Return a run whose collection has an index of 30 images, and 30 of another folder."""
    write_some(images, range(30))
    write_some(tmp_path / "others", range(30, 60))
    run = make()
    run.index(images)
    run.embed_folder(tmp_path / "others")
    return run


def test_a_damaged_row_of_another_folder_is_deleted_and_told(make, images, tmp_path):
    run = with_another_folder(make, images, tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "store" / "images.sqlite")) as connection, connection:
        for number, damaged in ((40, None), (41, "much"), (42, 10_000)):  # of the other folder
            connection.execute("UPDATE embedded SET vector = ? WHERE vector = ?", (damaged, number))
    for path in sorted(images.glob("*/*"))[:20]:
        path.unlink()
    with pytest.warns(StoreWarning, match="3 rows of images were damaged and are deleted"):
        run.index(images)
    assert rows(images) == 10 + 27
    assert run.embed_folder(tmp_path / "others").new == 3


def test_a_damaged_row_of_an_index_is_not_passed_over(make, images, tmp_path):
    run = with_another_folder(make, images, tmp_path)
    write_some(images, range(60, 63))
    run.index(images)  # whose vectors are in two parts of the file now
    with contextlib.closing(sqlite3.connect(tmp_path / "store" / "images.sqlite")) as connection, connection:
        connection.execute("UPDATE images SET vector = NULL WHERE vector = 10")
    with pytest.warns(StoreWarning, match="1 row of images were damaged and are deleted; .* type: pml-ext index"):
        run.embed_folder(tmp_path / "others")
    with pytest.raises(DataError, match="a row of the index has no vector.*type: pml-ext index"):
        make().gallery()


def test_readers_go_on_while_a_large_write_is_not_committed(make, images, tmp_path, monkeypatch):
    write_some(images, range(5))
    run = make()
    run.embed_folder(images)
    monkeypatch.setattr("pml_ext_search.database.LOCK_TIMEOUT", 0)
    with run.collection.transaction(write=True) as current:
        many = [(b"%0200d" % number, 1, 1, 0, 0) for number in range(40_000)]  # more than SQLite's cache has
        current.connection.executemany("INSERT INTO embedded VALUES (?, ?, ?, ?, ?)", many)
        with contextlib.closing(sqlite3.connect(tmp_path / "store" / "images.sqlite", timeout=0)) as reader:
            assert reader.execute("SELECT count(*) FROM embedded").fetchone() == (5,)


def test_what_a_collection_has_is_read_once_another_process_is_done(make, images, tmp_path, monkeypatch):
    write_some(images, range(5))
    make().embed_folder(images)
    real = sqlite3.connect
    waits = []

    def connect(*arguments, timeout=5, **settings):
        waits.append(timeout)
        return real(*arguments, timeout=timeout, **settings)

    monkeypatch.setattr(sqlite3, "connect", connect)
    assert recorded_by(tmp_path / "store") == "embeddings"
    assert waits == [600]


def test_classes_stay_while_a_split_cannot_be_looked_at(make, images, monkeypatch):
    write_some(images / "train", range(20))
    write_some(images / "test", range(20, 30))
    run = make()
    before = dict(zip(run.index(images).embedded.paths, run.gallery().embedded.classes, strict=True))
    real = os.scandir

    def scandir(place):
        if str(place) == str(images / "test"):
            raise PermissionError(13, "Permission denied", str(place))
        return real(place)

    monkeypatch.setattr("os.scandir", scandir)
    with pytest.warns(SkippedImage, match="test: cannot be read"):
        embedded = run.index(images).embedded
    assert dict(zip(embedded.paths, embedded.classes, strict=True)) == before


@pytest.mark.parametrize("kind", ["database", "text"])
def test_a_database_of_others_is_refused(make, images, kind):
    write_some(images, range(10))
    database = images.parent / "store" / "images.sqlite"
    database.parent.mkdir()
    if kind == "database":
        with contextlib.closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("CREATE TABLE collection (stamps TEXT)")
    else:
        database.write_text("my list")
    before = database.read_bytes()
    with pytest.raises(DataError, match=r"images.sqlite is not of a collection; wanted a folder of its own"):
        make().index(images)
    assert database.read_bytes() == before


@pytest.mark.parametrize("inner", ["class 1", "class 1/inner"])
def test_images_that_cannot_be_looked_at_keep_ids(make, images, monkeypatch, inner):
    write_some(images, range(30))
    (images / "class 1" / "inner").mkdir()
    shutil.copy(next(images.glob("class 2/*")), images / "class 1" / "inner" / "more.png")
    run = make()
    run.index(images, factory="IVF4,Flat")
    before = dict(zip(*of_index(run), strict=True))
    real = os.scandir

    def scandir(place):
        if str(place) == str(images / inner):
            raise PermissionError(13, "Permission denied", str(place))
        return real(place)

    monkeypatch.setattr("os.scandir", scandir)
    for factory in ("IVF4,Flat", ""):
        with pytest.warns(SkippedImage, match=f"{inner}: cannot be read"):
            gallery = run.index(images, factory=factory)
        assert dict(zip(*of_index(run), strict=True)) == before
        assert gallery.changes == (0, 0, 0, 31)
        assert len(run.query(next(images.glob("class 2/*")), 30)[0].paths) == 30
    monkeypatch.undo()
    assert run.index(images).changes == (0, 0, 0, 31)
    assert dict(zip(*of_index(run), strict=True)) == before
    assert make().embed_folder(images).new == 0


def test_unreadable_files_are_named_until_they_are_mended(make, images):
    write_some(images, range(5))
    broken = images / "class 0" / "broken.jpg"
    broken.write_bytes(b"no image")
    (images / "gone.png").symlink_to(images / "nowhere.png")
    (images / "elsewhere").symlink_to(images / "class 1")
    with pytest.raises(ConfigError, match="--workers -1: wanted 0 or more"):
        make(workers=-1).embed_folder(images)
    for new in (5, 0):
        with pytest.warns(SkippedImage) as heard:
            embedded = make(workers=1).embed_folder(images)
        assert (embedded.new, sorted(embedded.skipped)) == (new, ["class 0/broken.jpg", "elsewhere", "gone.png"])
        told = sorted(str(one.message).partition(": ")[2][:39] for one in heard if one.category is SkippedImage)
        assert told == [
            "a link to a folder, which is not follow",
            "a link to what is not there",
            "not a readable image (UnidentifiedImage",
        ]
    broken.write_bytes((images / "class 0" / "0000.png").read_bytes())
    assert make().embed_folder(images).new == 1


# Several processes


def test_a_second_pass_over_a_folder_waits_with_a_word(make, images, monkeypatch):
    write_some(images, range(5))
    (images.parent / "store").mkdir()
    first = FileLock(images.parent / "store" / ".lock")
    first.acquire()
    real = warnings.warn

    def told(text, *rest, **more):
        if "waiting" in str(text):
            first.release()  # it is done
        real(text, *rest, **more)

    run = make()
    monkeypatch.setattr("warnings.warn", told)
    with pytest.warns(StoreWarning, match="another process embeds images into"):
        embedded = run.embed_folder(images)
    assert embedded.new == 5


def test_processes_append_at_once(tmp_path):
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
    found, _, vectors = opened().find({b"/%d" % number: (number, 0) for number in range(120)})
    assert {int(path[1:]): vectors[number].tolist() for path, number in found.items()} == {
        n: [n] * 8 for n in range(120)
    }
    assert (tmp_path / "vectors.f32").stat().st_size == 120 * 8 * 4


def test_progress_is_reported(make, images, command, runs, monkeypatch):
    write_some(images, range(130))
    told = []
    make(listener=told.append).embed_folder(images)
    assert [(now.done, now.images) for now in told] == [(64, 130), (128, 130), (130, 130)]
    assert all(now.rate > 0 for now in told)
    assert told[-1].seconds_left == 0
    monkeypatch.setattr("pml_ext.cli.output.SECONDS", 0.0)
    shutil.rmtree(images.parent / "store")
    done = command("embed", runs[0], images, "-o", images.parent / "all.npz", "--store", images.parent / "store")
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    assert re.fullmatch(r"embedded 128 of 130 images: \d+ images/s, \d:\d\d:\d\d left", lines[1])


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


def test_an_index_names_classes_as_its_run_does(make, tmp_path):
    assert _class_levels("folder:photos", {}) == 1
    assert _class_levels("folder:photos", {"levels": 2}) == 2
    assert _class_levels("folder:photos", {"classes": "leaf"}) is None
    assert _class_levels("digits", {}) == 1
    write_some(tmp_path / "photos" / "train", range(14))
    write_some(tmp_path / "photos" / "test" / "outer", range(14, 21))
    run = make()
    run.images.class_levels = 2
    gallery = run.index(tmp_path / "photos")
    trained = {f"class {number}" for number in range(7)}
    assert {*gallery.embedded.classes} == trained | {f"outer/{name}" for name in trained}
    (answer,) = run.query(tmp_path / "photos" / "test" / "outer" / "class 0" / "0014.png", k=2, within="class 0")
    assert answer.query_class == "outer/class 0"
    assert sorted(answer.paths) == ["train/class 0/0000.png", "train/class 0/0007.png"]
    assert answer.classes == ["class 0", "class 0"]
