"""Data sets: what is in the splits, what is refused, and how images are read and transformed."""

import os
import pickle
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps, PngImagePlugin
from torchvision.transforms.v2.functional import resize

from pml_ext.data import (
    Box,
    DataSplits,
    LabeledImages,
    Pipeline,
    build_transforms,
    digits,
    folder,
    hold_out_classes,
    prepare,
    raw_pixels,
    read_image,
)
from pml_ext.errors import ConfigError, DataError


def save(path: Path, color=(200, 30, 30), size=(20, 16), mode="RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path)
    return path


def photos(place: Path, classes=4, images=6) -> Path:
    for label in range(classes):
        for number in range(images):
            save(place / f"class{label}" / f"{number}.png", (50 * label, 10 * number, 0))
    return place


def test_digits_are_halved_within_every_class():
    splits = digits()
    assert isinstance(splits, DataSplits)
    assert len(splits.train) + len(splits.test) == 1797
    for label in range(10):
        counts = [int((part.labels == label).sum()) for part in (splits.train, splits.test)]
        assert abs(counts[0] - counts[1]) <= 1
    image, label = splits.train[0]
    assert (image.dtype, tuple(image.shape)) == (torch.uint8, (1, 8, 8))
    assert splits.train.images.max() == 255
    assert isinstance(label, int)
    assert torch.equal(digits().test.images, splits.test.images)
    with pytest.raises(ConfigError, match="leave --data out"):
        digits(Path("somewhere"))


def test_a_folder_is_split_by_class_or_by_image(tmp_path):
    place = photos(tmp_path / "photos")
    by_class = folder(path=str(place))
    assert len(set(by_class.train.labels)) == len(set(by_class.test.labels)) == 2
    assert not set(by_class.train.labels) & set(by_class.test.labels)
    by_image = folder(path=str(place), split="image", train_fraction=1 / 3)
    assert [int((by_image.train.labels == label).sum()) for label in range(4)] == [2] * 4
    assert not set(by_image.train.paths) & set(by_image.test.paths)
    assert by_image.train.class_names == [f"class{label}" for label in range(4)]
    image, label = by_class.train[0]
    assert tuple(image.shape) == (3, 16, 20)
    assert by_class.train.paths[0].parent.name == f"class{label}"
    assert folder(tmp_path, path="photos").train.paths == by_class.train.paths


def test_folders_inside_of_classes_are_named(tmp_path):
    photos(tmp_path / "birds")
    photos(tmp_path / "tools", classes=2)
    outer = folder(path=str(tmp_path), split="image")
    assert outer.train.class_names == ["birds", "tools"]
    assert "is a folder inside of a class's folder" in outer.note
    assert "--set data.classes=leaf" in outer.note
    leaf = folder(path=str(tmp_path), split="image", classes="leaf")
    assert (leaf.train.class_names[3:5], leaf.note) == (["birds/class3", "tools/class0"], "")
    assert folder(path=str(tmp_path / "birds")).note == ""
    with pytest.raises(DataError, match="one class to train with; .*--set data.split=image"):
        folder(path=str(tmp_path))
    (tmp_path / "tools").rename(tmp_path / "birds" / "class0" / "tools")
    with pytest.raises(DataError, match="found 1 class, birds; --set data.classes=leaf"):
        folder(path=str(tmp_path))


def test_runs_sheets_and_odd_files_are_no_classes(tmp_path):
    place = photos(tmp_path / "photos")
    names = folder(path=str(place), split="image").train.class_names
    run = place / "run 1"
    for name in ("figures", "checkpoints"):
        (run / name).mkdir(parents=True)
    (run / "recipe.toml").write_text("")
    (place / "class0" / "clusters.csv").write_text(
        "path,cluster,distance_to_center,class,sheet\na.png,0,0.1,,cluster-000.png\nb.png,-1,,,noise.png\n"
    )
    image = next((place / "class1").iterdir())
    for copy in (run / "figures" / "curve.png", *(place / "class0" / f"{name}.png" for name in ("noise", "own"))):
        shutil.copy(image, copy)
    os.mkfifo(place / "class1" / "pipe.png")
    (place / "class1" / "loop.png").symlink_to("loop.png")
    splits = folder(path=str(place), split="image")
    found = {path.name for path in [*splits.train.paths, *splits.test.paths]}
    assert splits.train.class_names == names
    assert found & {"curve.png", "noise.png", "own.png", "pipe.png", "loop.png"} == {"own.png"}
    assert splits.note == f"{run} is the folder of a run, whose figures are not read as images"


def test_train_and_test_folders_are_used_as_they_are(tmp_path):
    photos(tmp_path / "train", classes=3)
    photos(tmp_path / "test", classes=5, images=2)
    splits = folder(path=str(tmp_path))
    assert (len(splits.train), len(splits.test)) == (18, 10)
    assert splits.train.class_names == splits.test.class_names == [f"class{label}" for label in range(5)]


def test_folders_that_do_not_serve(tmp_path):
    with pytest.raises(DataError, match="absent: no such folder"):
        folder(path=str(tmp_path / "absent"))
    (tmp_path / "empty" / "cats").mkdir(parents=True)
    with pytest.raises(DataError, match="no images in sub-folders"):
        folder(path=str(tmp_path / "empty"))
    photos(tmp_path / "one", classes=1)
    with pytest.raises(DataError, match="found 1 class"):
        folder(path=str(tmp_path / "one"))


def test_an_image_is_not_taken_for_what_starts_a_program(tmp_path, monkeypatch):
    """An EPS that is called .png: Pillow would hand it to Ghostscript."""
    from PIL import EpsImagePlugin

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was started"))
    path = tmp_path / "photo.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n")
    with pytest.raises(DataError, match="photo.png: not a readable image"):
        read_image(path)


@pytest.mark.parametrize(
    ("mode", "color", "wanted"),
    [
        ("RGB", (10, 20, 30), (10, 20, 30)),
        ("L", 77, (77, 77, 77)),
        ("RGBA", (10, 20, 30, 0), (255, 255, 255)),
        ("LA", (40, 255), (40, 40, 40)),
        ("I;16", 256 * 99, (99, 99, 99)),
        ("1", 1, (255, 255, 255)),
    ],
)
def test_images_of_every_mode(tmp_path, mode, color, wanted):
    path = tmp_path / "image.png"
    if mode == "I;16":
        Image.fromarray(np.full((4, 4), color, dtype=np.uint16)).save(path)
    else:
        save(path, color, (4, 4), mode)
    assert tuple(read_image(path)[:, 0, 0].tolist()) == wanted
    assert tuple(read_image(path, channels=1).shape) == (1, 4, 4)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "tif"])
def test_exif_orientation_is_followed(tmp_path, orientation, suffix):
    image = Image.fromarray(np.kron(np.arange(6, dtype=np.uint8).reshape(2, 3) * 40, np.ones((8, 8), np.uint8)))
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(tmp_path / f"turned.{suffix}", exif=exif)
    wanted = np.asarray(ImageOps.exif_transpose(Image.open(tmp_path / f"turned.{suffix}")))
    assert np.array_equal(read_image(tmp_path / f"turned.{suffix}", channels=1)[0], wanted)


def test_the_orientation_is_all_that_exif_is_read_for(tmp_path):
    """XResolution as a text, which Pillow cannot write back."""
    block = b"Exif\0\0" + b"II*\0\x08\0\0\0" + b"\x02\0"
    block += b"\x12\x01\x03\0\x01\0\0\0\x06\0\0\0" + b"\x1a\x01\x02\0\x04\0\0\0wide" + bytes(4)
    Image.new("RGB", (30, 10)).save(tmp_path / "odd.jpg", exif=block)
    assert tuple(read_image(tmp_path / "odd.jpg").shape) == (3, 30, 10)


@pytest.mark.parametrize("error", [TypeError("odd"), struct.error("short"), KeyError(3), MemoryError()])
def test_any_error_of_a_decoder_names_the_file(tmp_path, monkeypatch, error):
    def fail(image):
        raise error

    path = save(tmp_path / "odd.png")
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", fail)
    with pytest.raises(DataError, match=r"odd.png: not a readable image"):
        read_image(path)


def test_a_class_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    place = photos(tmp_path / "photos")
    scandir = os.scandir

    def refused(path="."):
        if os.fspath(path).endswith("class2"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(DataError, match="class2: cannot be listed .*permissions"):
        folder(path=str(place))


def test_held_out_classes():
    train = digits().train
    rest, held_out = hold_out_classes(train, 0.3, seed=3)
    assert len(set(held_out.labels)) == 3
    assert len(set(rest.labels)) == 7
    assert not set(rest.labels) & set(held_out.labels)
    assert set(hold_out_classes(train, 0.3, seed=4)[1].labels) != set(held_out.labels)
    rest, held_out = hold_out_classes(train, 0.3, which="last")
    assert (set(rest.labels.tolist()), set(held_out.labels.tolist())) == ({*range(7)}, {7, 8, 9})


def test_splits_are_tested_by_test_or_by_query_and_gallery():
    images = LabeledImages(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), [0, 1], ["a", "b"], channels=1)
    about = {"image_size": 4, "channels": 1}
    assert list(DataSplits(images, images, **about).tested()) == ["test"]
    assert list(DataSplits(images, query=images, gallery=images, **about).tested()) == ["query", "gallery"]


def test_raw_pixels_are_those_of_small_images_and_of_thumbnails(tmp_path):
    images = digits().test
    _, plain = build_transforms(8, 1)
    pixels = raw_pixels(torch.stack([image for image, _ in images.with_transform(plain)]))
    assert torch.allclose(pixels, images.images.flatten(1) / 255)
    photographs = folder(path=str(photos(tmp_path / "photos", classes=2)), split="image", image_size=48).test
    _, plain = build_transforms(48, 3, crop=True)
    images = torch.stack([image for image, _ in photographs.with_transform(plain)])
    small = torch.stack([resize(image, [32, 32], antialias=True) for image in images])
    assert torch.equal(raw_pixels(images), small.flatten(1))


def test_augmentation_shifts_within_its_range():
    image = torch.zeros(1, 9, 9, dtype=torch.uint8)
    image[0, 4, 4] = 255
    augmented, _ = build_transforms(9, 1, shift=2)
    torch.manual_seed(0)
    places = {tuple(augmented(image)[0].nonzero()[0].tolist()) for _ in range(400)}
    assert places == {(row, column) for row in range(2, 7) for column in range(2, 7)}


TRAIN, PLAIN = build_transforms(20, 3, crop=True, pipeline=Pipeline(resize=30, random_crop_scale=(0.2, 1.0), flip=True))


@pytest.fixture
def jpegs(tmp_path):
    generator = np.random.default_rng(0)
    paths = []
    for number in range(9):
        small = generator.integers(256, size=(8, 6 + number % 3, 3), dtype=np.uint8)
        paths.append(tmp_path / f"{number}.jpg")
        Image.fromarray(small).resize((60 + 20 * (number % 3), 80)).save(paths[-1], quality=95)
    return paths


def labeled(paths, **settings) -> LabeledImages:
    return LabeledImages(paths, [0] * len(paths), ["one"], **settings)


def items(images: LabeledImages, transform) -> list[torch.Tensor]:
    torch.manual_seed(3)
    images = images.with_transform(transform)
    return [images[index][0] for index in range(len(images))]


@pytest.mark.parametrize("boxes", [None, [Box(3, 5, 50, 70)] * 9])
def test_what_is_kept_gives_the_same_numbers_without_the_files(jpegs, boxes):
    images = labeled(jpegs, boxes=boxes)
    kept, _ = prepare(images, TRAIN, "memory", workers=2)
    wanted = [items(images, transform) for transform in (TRAIN, PLAIN)]
    some = [items(images.subset([5, 2]), transform) for transform in (TRAIN, PLAIN)]
    for path in jpegs:
        path.unlink()
    assert all(map(torch.equal, items(kept, TRAIN), wanted[0]))
    assert all(map(torch.equal, items(kept, PLAIN), wanted[1]))
    assert all(map(torch.equal, items(kept.subset([5, 2]), TRAIN), some[0]))
    assert all(map(torch.equal, items(pickle.loads(pickle.dumps(kept)).subset([5, 2]), PLAIN), some[1]))
    _, other = build_transforms(20, 3, crop=True, pipeline=Pipeline(resize=31))
    with pytest.raises(DataError, match="0.jpg: no such file"):  # another first step reads the files
        items(kept, other)


@pytest.mark.parametrize("where", ["none", "memory"])
def test_unreadable_files_are_left_out_and_told(jpegs, where):
    jpegs[2].write_bytes(jpegs[2].read_bytes()[:300])
    jpegs[5].write_text("no image")
    kept, skipped = prepare(labeled(jpegs), TRAIN, where, skip_unreadable=True)
    assert list(skipped) == [str(jpegs[2]), str(jpegs[5])]
    assert "not a readable image" in skipped[str(jpegs[5])]
    assert kept.paths == [jpegs[n] for n in (0, 1, 3, 4, 6, 7, 8)]
    good = labeled([jpegs[n] for n in (0, 1, 3, 4, 6, 7, 8)])
    assert all(map(torch.equal, items(kept, TRAIN), items(good, TRAIN)))
    if where != "none":
        with pytest.raises(DataError, match="2.jpg: not a readable image"):
            prepare(labeled(jpegs), TRAIN, where)
    for path in jpegs:
        path.write_text("no image")
    with pytest.raises(DataError, match="none of 9 images can be read; the first: .*0.jpg"):
        prepare(labeled(jpegs), TRAIN, where, skip_unreadable=True)


def test_what_cannot_be_kept(jpegs):
    numbers = LabeledImages(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), [0, 1], ["a", "b"], channels=1)
    with pytest.raises(ConfigError, match="data.cache: found 'memory', but the images of this data set are in memory"):
        prepare(numbers, TRAIN, "memory")
    assert prepare(numbers, TRAIN, skip_unreadable=True) == (numbers, {})
    whole, _ = build_transforms(20, 3, crop=True, random_crop=True)
    with pytest.raises(ConfigError, match="which leaves nothing to keep; data.images.resize"):
        prepare(labeled(jpegs), whole, "memory")
    assert len(prepare(labeled(jpegs), whole, skip_unreadable=True)[0]) == 9
