"""Rows of a collection: a damaged one is deleted and told, or refused, and never passed over."""

import contextlib
import random
import shutil
import sqlite3
import warnings

import pytest

from pml_ext.errors import DataError
from pml_ext_search.collection.problems import StoreWarning

from ..conftest import flip, of_index, rows
from ..drawings import write_some


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
