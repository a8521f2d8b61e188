"""Files read before training: cached in memory, or left out if unreadable."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext.errors import ConfigError, DataError
from pml_ext_train.data import Box, LabeledImages, Pipeline, build_transforms, prepare

TRAIN, PLAIN = build_transforms(20, 3, crop=True, pipeline=Pipeline(resize=30, random_crop_scale=(0.2, 1.0), flip=True))
WHOLE, _ = build_transforms(20, 3, crop=True, random_crop=True)


@pytest.fixture
def jpegs(tmp_path):
    generator = np.random.default_rng(0)
    paths = [tmp_path / f"{number}.jpg" for number in range(9)]
    for number, path in enumerate(paths):
        small = generator.integers(256, size=(8, 6 + number % 3, 3), dtype=np.uint8)
        Image.fromarray(small).resize((60 + 20 * (number % 3), 80)).save(path, quality=95)
    return paths


def labeled(paths, **settings) -> LabeledImages:
    return LabeledImages(paths, [0] * len(paths), ["one"], **settings)


def items(images: LabeledImages, transform) -> list[list[float]]:
    torch.manual_seed(3)
    images = images.with_transform(transform)
    return [images[index][0].tolist() for index in range(len(images))]


@pytest.mark.parametrize("boxes", [None, [Box(3, 5, 50, 70)] * 9])
def test_cached_images_equal_those_of_files(jpegs, boxes):
    images = labeled(jpegs, boxes=boxes)
    kept, _ = prepare(images, TRAIN, "memory", workers=2)
    expected = [items(part, transform) for part in (images, images.subset([5, 2])) for transform in (TRAIN, PLAIN)]
    for path in jpegs:
        path.unlink()
    copied = pickle.loads(pickle.dumps(kept))
    assert [items(part, each) for part in (kept, copied.subset([5, 2])) for each in (TRAIN, PLAIN)] == expected
    _, other = build_transforms(20, 3, crop=True, pipeline=Pipeline(resize=31))
    with pytest.raises(DataError, match="0.jpg: no such file"):  # another first step reads the files
        items(kept, other)


@pytest.mark.parametrize("where", ["none", "memory"])
def test_unreadable_files_are_left_out(jpegs, where):
    jpegs[2].write_bytes(jpegs[2].read_bytes()[:300])
    jpegs[5].write_text("no image")
    kept, skipped = prepare(labeled(jpegs), TRAIN, where, skip_unreadable=True)
    assert list(skipped) == [str(jpegs[2]), str(jpegs[5])]
    assert "not a readable image" in skipped[str(jpegs[5])]
    good = [jpegs[n] for n in (0, 1, 3, 4, 6, 7, 8)]
    assert (kept.paths, items(kept, TRAIN)) == (good, items(labeled(good), TRAIN))
    if where != "none":
        with pytest.raises(DataError, match="2.jpg: not a readable image"):
            prepare(labeled(jpegs), TRAIN, where)
    for path in jpegs:
        path.write_text("no image")
    with pytest.raises(DataError, match="all 9 images are unreadable; the first: .*0.jpg"):
        prepare(labeled(jpegs), TRAIN, where, skip_unreadable=True)


@pytest.mark.parametrize(
    ("in_memory", "steps", "message"),
    [
        (True, TRAIN, "data.cache: found 'memory', but the images of this data set are already in memory"),
        (False, WHOLE, "so there is nothing to cache; set data.images.resize"),
    ],
)
def test_a_cache_without_content_is_refused(jpegs, in_memory, steps, message):
    numbers = LabeledImages(torch.zeros(9, 1, 4, 4, dtype=torch.uint8), [0] * 9, ["a"], channels=1)
    images = numbers if in_memory else labeled(jpegs)
    with pytest.raises(ConfigError, match=message):
        prepare(images, steps, "memory")
    assert len(prepare(images, steps, skip_unreadable=True)[0]) == 9
