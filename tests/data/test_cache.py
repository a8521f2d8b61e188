"""Images that are kept resized: the same numbers, made once, whole or not at all; files that cannot be read."""

import os
import pickle
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext.data import Box, LabeledImages, Pipeline, build_transforms, prepare
from pml_ext.data.cache import INDEX, PIXELS, MappedImages, cache_folder
from pml_ext.errors import ConfigError, DataError

TRAIN, PLAIN = build_transforms(20, 3, crop=True, pipeline=Pipeline(resize=30, random_crop_scale=(0.2, 1.0), flip=True))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PML_EXT_IMAGES", str(tmp_path / "kept"))


@pytest.fixture
def photos(tmp_path):
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


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("boxes", [None, [Box(3, 5, 50, 70)] * 9])
def test_what_is_kept_gives_the_same_numbers_without_the_files(photos, where, boxes):
    images = labeled(photos, boxes=boxes)
    kept, _ = prepare(images, TRAIN, where, workers=2)
    wanted = [items(images, transform) for transform in (TRAIN, PLAIN)]
    some = [items(images.subset([5, 2]), transform) for transform in (TRAIN, PLAIN)]
    for path in photos:
        path.unlink()
    assert all(map(torch.equal, items(kept, TRAIN), wanted[0]))
    assert all(map(torch.equal, items(kept, PLAIN), wanted[1]))
    assert all(map(torch.equal, items(kept.subset([5, 2]), TRAIN), some[0]))
    assert all(map(torch.equal, items(pickle.loads(pickle.dumps(kept)).subset([5, 2]), PLAIN), some[1]))
    _, other = build_transforms(20, 3, crop=True, pipeline=Pipeline(resize=31))
    with pytest.raises(DataError, match="0.jpg: no such file"):  # another first step reads the files
        items(kept, other)


def test_a_file_is_made_once_for_what_it_is_made_from(photos):
    told = []

    def keep(images, steps=TRAIN):
        told.clear()
        prepare(images, steps, "disk", tell=told.append)
        return bool(told)

    assert keep(labeled(photos))
    assert "writing 9 resized images to" in told[0]
    assert not keep(labeled(photos))
    assert not keep(labeled(photos), PLAIN)  # the same first step
    assert keep(labeled(photos, channels=1))
    assert keep(labeled(photos, boxes=[Box(0, 0, 9, 9)] * 9))
    assert keep(labeled(photos), build_transforms(20, 3, crop=True, pipeline=Pipeline(resize=31))[1])
    assert keep(labeled(photos[::-1]))
    os.utime(photos[3], (1, 1))
    assert keep(labeled(photos))
    assert len(list(cache_folder().iterdir())) == 6


@pytest.mark.parametrize("name", [PIXELS, INDEX])
@pytest.mark.parametrize("length", [0, 40, -5])
def test_a_damaged_cache_is_made_again_and_half_of_one_is_not_left(photos, name, length):
    prepare(labeled(photos), TRAIN, "disk")
    (folder,) = cache_folder().iterdir()
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[:length])
    assert MappedImages.of(folder) is None
    again, _ = prepare(labeled(photos), TRAIN, "disk")
    assert torch.equal(items(again, PLAIN)[4], items(labeled(photos), PLAIN)[4])
    assert len((folder / name).read_bytes()) == len(whole)
    shutil.rmtree(folder)
    photos[7].write_bytes(photos[7].read_bytes()[:200])
    with pytest.raises(DataError, match="7.jpg: not a readable image"):
        prepare(labeled(photos), TRAIN, "disk")
    assert list(cache_folder().iterdir()) == []


@pytest.mark.parametrize("where", ["none", "memory", "disk"])
def test_unreadable_files_are_left_out_and_told(photos, where):
    photos[2].write_bytes(photos[2].read_bytes()[:300])
    photos[5].write_text("no image")
    for _ in range(2):  # the second time, the disk knows
        kept, skipped = prepare(labeled(photos), TRAIN, where, skip_unreadable=True)
        assert list(skipped) == [str(photos[2]), str(photos[5])]
        assert "not a readable image" in skipped[str(photos[5])]
        assert kept.paths == [photos[n] for n in (0, 1, 3, 4, 6, 7, 8)]
        good = labeled([photos[n] for n in (0, 1, 3, 4, 6, 7, 8)])
        assert all(map(torch.equal, items(kept, TRAIN), items(good, TRAIN)))
    if where != "none":
        with pytest.raises(DataError, match="2.jpg: not a readable image"):
            prepare(labeled(photos), TRAIN, where)
    for path in photos:
        path.write_text("no image")
    with pytest.raises(DataError, match="none of 9 images can be read; the first: .*0.jpg"):
        prepare(labeled(photos), TRAIN, where, skip_unreadable=True)


def test_what_cannot_be_kept(photos, tmp_path, monkeypatch):
    numbers = LabeledImages(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), [0, 1], ["a", "b"], channels=1)
    with pytest.raises(ConfigError, match="data.cache: found 'disk', but the images of this data set are in memory"):
        prepare(numbers, TRAIN, "disk")
    assert prepare(numbers, TRAIN, skip_unreadable=True) == (numbers, {})
    whole, _ = build_transforms(20, 3, crop=True, random_crop=True)
    with pytest.raises(ConfigError, match="which leaves nothing to keep; data.images.resize"):
        prepare(labeled(photos), whole, "memory")
    assert len(prepare(labeled(photos), whole, skip_unreadable=True)[0]) == 9
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PML_EXT_IMAGES", str(tmp_path / "file" / "kept"))
    with pytest.raises(DataError, match=r"cannot be written \(Not a directory\); PML_EXT_IMAGES names another folder"):
        prepare(labeled(photos), TRAIN, "disk")
