"""The database of a collection: whose it is, what is damage, and who waits for whom."""

import contextlib
import random
import shutil
import sqlite3
import warnings

import pytest

from pml_ext import load_run
from pml_ext.errors import DataError, UnwritableError
from pml_ext_search.collection.database import recorded
from pml_ext_search.collection.problems import StoreWarning

from ..conftest import execute, flip, of_index, rows
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


def test_a_full_database_asks_for_room(make):
    full = sqlite3.connect(":memory:")
    full.execute("PRAGMA max_page_count = 2")
    full.execute("CREATE TABLE one (large)")
    wanted = r"images.sqlite: cannot be written .* stays\. Make room on the disk"
    with pytest.raises(UnwritableError, match=wanted), make().collection._errors(write=True):
        full.execute("INSERT INTO one VALUES (zeroblob(100000))")
    full.close()


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
    write_some(images, range(5))
    make().embed_folder(images)
    real = sqlite3.connect
    waits = []

    def connect(*arguments, timeout=5, **settings):
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
        with contextlib.closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("CREATE TABLE collection (stamps TEXT)")
    else:
        database.write_text("my list")
    before = database.read_bytes()
    with pytest.raises(DataError, match=r"images.sqlite belongs to another program; type --store FOLDER"):
        make().index(images)
    assert database.read_bytes() == before


# Rows: a damaged one is deleted or refused, and never passed over


def test_a_flipped_bit_exchanges_no_ids(make, images):
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


def test_a_damaged_row_of_another_folder_is_deleted(make, images, tmp_path):
    write_some(images, range(30))
    write_some(tmp_path / "others", range(30, 60))
    run = make()
    run.index(images)
    run.embed_folder(tmp_path / "others")
    with contextlib.closing(sqlite3.connect(tmp_path / "store" / "images.sqlite")) as connection, connection:
        for number, damaged in ((40, None), (41, "much"), (42, 10_000)):  # of the other folder
            connection.execute("UPDATE embedded SET vector = ? WHERE vector = ?", (damaged, number))
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
    with contextlib.closing(sqlite3.connect(tmp_path / "store" / "images.sqlite")) as database, database:
        database.execute("UPDATE images SET vector = ? WHERE id = 3", (vector,))
    with pytest.raises(DataError, match=r"images.sqlite: empty, cut or damaged \(a row of the index has no vector\)"):
        make().gallery()
