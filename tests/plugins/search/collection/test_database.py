"""The database of a collection: whose it is, what is damage, and who waits for whom."""

import contextlib
import shutil
import sqlite3

import pytest

from pml_ext import load_run
from pml_ext.errors import DataError
from pml_ext_search.collection.database import recorded_by
from pml_ext_search.collection.problems import StoreWarning

from ..conftest import execute
from ..drawings import write_some


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("UPDATE collection SET about = CAST(x'80' AS TEXT)", pytest.warns(StoreWarning, match="is replaced")),
        ("ALTER TABLE embedded RENAME COLUMN size TO width", pytest.raises(DataError, match="damaged")),
    ],
)
def test_a_table_that_nobody_wrote_is_damage(make, images, statement, found):
    write_some(images, range(24))
    make().index(images)
    execute(images, statement)
    with found:
        make().index(images)


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
    with pytest.warns(StoreWarning, match=r"the collection is replaced, .* an earlier state of the run"):
        assert other.embed_folder(tmp_path / "images").new == 10
    with pytest.raises(DataError, match="store was built by the run .*run .*, not by .*; type --store FOLDER"):
        load_run(
            runs[0], "cpu", store=shutil.copytree(tmp_path / "run" / "collection", tmp_path / "store")
        ).embed_folder(tmp_path / "images")


def test_readers_go_on_while_a_large_write_is_not_committed(make, images, tmp_path, monkeypatch):
    write_some(images, range(5))
    run = make()
    run.embed_folder(images)
    monkeypatch.setattr("pml_ext_search.collection.database.LOCK_TIMEOUT", 0)
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
    with pytest.raises(DataError, match=r"images.sqlite belongs to another program; type --store FOLDER"):
        make().index(images)
    assert database.read_bytes() == before
