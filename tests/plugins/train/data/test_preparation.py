"""Files read before a training: kept in memory, or left out if they cannot be read."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext.errors import ConfigError, DataError
from pml_ext_train.data import (
    Box,
    LabeledImages,
    Pipeline,
    build_transforms,
    prepare,
)

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
    with pytest.raises(ConfigError, match="so there is nothing to keep; data.images.resize"):
        prepare(labeled(jpegs), whole, "memory")
    assert len(prepare(labeled(jpegs), whole, skip_unreadable=True)[0]) == 9
