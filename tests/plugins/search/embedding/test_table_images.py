"""Images that a table lists, cut along its boxes, and their index."""

import os
import warnings

import numpy as np
import pytest
from PIL import Image

from pml_ext import load_run
from pml_ext.errors import ConfigError, DataError
from pml_ext_search.embedding.embedding import SkippedImage
from pml_ext_search.embedding.table_images import cut_images


@pytest.fixture
def table(tmp_path):
    """A table of two photographs, one with two boxes."""
    generator = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for name in ("a", "b"):
        pixels = generator.integers(256, size=(20, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{name}.png")
    return written(tmp_path, "lynx,photos/a.png,0,0,10,20", "fox,photos/a.png,12,5,30,20", "fox,photos/b.png,,,,")


def written(place, *rows):
    file = place / "animals.csv"
    file.write_text("\n".join(["label,path,x_1,y_1,x_2,y_2", *rows]))
    return file


def cuts(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))


def test_each_box_is_an_image_of_its_own(table, tmp_path):
    folder = tmp_path / "cut"
    cut_images(table, folder, 3, {})
    assert cuts(folder) == [
        "fox/photos-a.png.12-5-30-20.png",
        "fox/photos-b.png.png",
        "lynx/photos-a.png.0-0-10-20.png",
    ]
    whole = np.asarray(Image.open(tmp_path / "photos" / "a.png"))
    cut = np.asarray(Image.open(folder / "fox" / "photos-a.png.12-5-30-20.png"))
    assert np.array_equal(cut, whole[5:20, 12:30])
    cut_images(table, folder, 1, {})  # nothing is new
    assert Image.open(folder / "fox" / "photos-b.png.png").mode == "RGB"


def test_what_a_table_no_longer_lists_is_deleted(table, tmp_path):
    folder = tmp_path / "cut"
    cut_images(table, folder, 3, {})
    (folder / "lynx" / ".photos-a.png.0-0-10-20.png.1-2-3.tmp").touch()  # of a command that was killed
    os.utime(tmp_path / "photos" / "a.png", ns=(5, 5))
    written(tmp_path, "fox,photos/a.png,12,5,30,20")
    cut_images(table, folder, 3, {})
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    assert [path.relative_to(folder).as_posix() for path in files] == ["fox/photos-a.png.12-5-30-20.png"]
    assert files[0].stat().st_mtime_ns == 5  # written again: the photograph is another


def test_photographs_that_cannot_be_read_are_left_out(table, tmp_path):
    (tmp_path / "photos" / "b.png").write_bytes(b"no image")
    with pytest.warns(SkippedImage, match=r"b.png: not a readable image"):
        cut_images(table, tmp_path / "cut", 3, {})
    assert len(cuts(tmp_path / "cut")) == 2
    (tmp_path / "photos" / "b.png").unlink()
    with pytest.raises(
        DataError, match=r"b.png: no such file, but .*animals.csv lists it \(1 are missing\); paths are"
    ):
        cut_images(table, tmp_path / "cut", 3, {})


def test_boxes_are_indexed_and_found(runs, table, tmp_path):
    trained = load_run(runs[0], device="cpu", store=tmp_path / "collection")
    gallery = trained.index(table)
    assert len(gallery) == 3
    folder = tmp_path / "collection-images"
    assert trained.indexed_folder() == folder
    (answer,) = trained.query(folder / "fox" / "photos-a.png.12-5-30-20.png", k=2)
    assert sorted(answer.paths) == ["fox/photos-b.png.png", "lynx/photos-a.png.0-0-10-20.png"]
    written(tmp_path, "lynx,photos/a.png,0,0,10,20", "fox,photos/b.png,,,,")
    with warnings.catch_warnings(action="error"):
        assert trained.index(table).changes[:3] == (0, 0, 1)


def test_several_processes_cut_no_boxes(runs, table, tmp_path, monkeypatch):
    monkeypatch.setattr("pml_ext_search.query.search_index.num_processes", lambda: 2)
    with pytest.raises(ConfigError, match=r"the images of a table are cut by one process; leave out torchrun"):
        load_run(runs[0], device="cpu", store=tmp_path / "collection").index(table)
