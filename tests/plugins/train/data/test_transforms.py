"""Pipelines of photographs: sizes, crops, colors, and files read at a reduced size."""

import itertools

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2.functional import resize

from pml_ext.errors import ConfigError, DataError
from pml_ext_train.data import Box, Pipeline, build_transforms, digits, folder, raw_pixels, read_image

from .made_up import photos

PHOTO = torch.randint(256, (3, 90, 120), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def pair(size=20, crop=True, normalize=None, shift=0, **settings):
    return build_transforms(size, 3, crop, normalize, shift, pipeline=Pipeline(**settings))


def test_the_shorter_side_is_resized_before_cropping():
    _, plain = pair(size=57, resize=64)
    wanted = v2.functional.center_crop(v2.functional.resize(PHOTO, [64], antialias=True), [57, 57])
    torch.testing.assert_close(plain(PHOTO), wanted / 255)
    _, by_the_rule = pair(size=57)
    assert (by_the_rule.smallest, plain.smallest) == (4 * 65, 4 * 64)
    assert not torch.equal(by_the_rule(PHOTO), plain(PHOTO))
    exact = torch.randint(256, (3, 57, 57), dtype=torch.uint8)
    torch.testing.assert_close(by_the_rule(exact), exact / 255)
    assert not torch.allclose(plain(exact), exact / 255)


def test_squashed_images_are_cropped_at_random():
    train, plain = pair(size=20, resize=24, squash=True, random_crop=True, flip=False)
    square = v2.functional.resize(PHOTO, [24, 24], antialias=True) / 255
    torch.testing.assert_close(plain(PHOTO), v2.functional.center_crop(square, [20, 20]))
    windows = {(y, x): square[:, y : y + 20, x : x + 20] for y, x in itertools.product(range(5), range(5))}
    torch.manual_seed(0)
    places = set()
    for _ in range(200):
        seen = train(PHOTO)
        places |= {place for place, window in windows.items() if torch.allclose(seen, window)}
    assert places == set(windows)
    _, whole = pair(size=20, squash=True)
    torch.testing.assert_close(whole(PHOTO), v2.functional.resize(PHOTO, [20, 20], antialias=True) / 255)


def test_random_crops_of_resized_images_are_mirrored():
    train, plain = pair(size=20, resize=30, random_crop_scale=(0.16, 1.0), flip=True)
    steps = [v2.Resize(30, antialias=True), v2.RandomResizedCrop(20, scale=(0.16, 1.0), antialias=True)]
    by_hand = v2.Compose([*steps, v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])
    for seed in range(5):
        torch.manual_seed(seed)
        seen = train(PHOTO)
        torch.manual_seed(seed)
        assert torch.equal(seen, by_hand(PHOTO))
    assert torch.equal(plain(PHOTO), plain(PHOTO))


def test_channels_are_reversed_and_normalized():
    _, plain = pair(size=20, resize=20, squash=True, bgr=True, value_range=255, normalize=((104, 117, 128), (1, 1, 1)))
    pixels = v2.functional.resize(PHOTO, [20, 20], antialias=True).float()
    torch.testing.assert_close(plain(PHOTO).flip(0), pixels - torch.tensor([128, 117, 104])[:, None, None])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shift": 20}, "shift must be from 0 to 19"),
        ({"resize": 19}, "resize must be at least the size of the crop, 20 pixels, not 19"),
        ({"random_crop_scale": (0.5, 1.5)}, "above 0 and up to 1"),
        (
            {"random_crop": True, "random_crop_scale": (0.1, 1.0)},
            "conflicts with another setting of crops; leave out one",
        ),
    ],
)
def test_pipelines_with_wrong_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        pair(**settings)


@pytest.fixture
def large(tmp_path):
    """A photograph: red left of column 500, blue right of it, and a green frame."""
    pixels = np.zeros((600, 800, 3), dtype=np.uint8)
    pixels[:, :500, 0] = pixels[:, 500:, 2] = 255
    pixels[:8, :, 1] = pixels[-8:, :, 1] = 255
    Image.fromarray(pixels).save(tmp_path / "large.jpg", quality=95)
    return tmp_path / "large.jpg"


@pytest.mark.parametrize(
    ("smallest", "height"), [(None, 600), (600, 600), (301, 600), (300, 300), (120, 150), (20, 75)]
)
def test_files_are_read_at_a_reduced_size(large, smallest, height):
    image = read_image(large, smallest=smallest)
    assert tuple(image.shape) == (3, height, height * 4 // 3)
    assert tuple(read_image(large, 1, smallest=smallest).shape) == (1, height, height * 4 // 3)
    assert image[0, height // 2, height // 2] > 250
    assert image[2, height // 2, height] > 250


def test_boxes_are_cut_at_any_size(large):
    for smallest, shape in ((None, (400, 200)), (90, (200, 100)), (20, (51, 25))):
        image = read_image(large, box=Box(600, 100, 800, 500), smallest=smallest)
        assert tuple(image.shape[1:]) == shape
        assert image[0].max() < 8
        assert image[2].min() > 245
    assert tuple(read_image(large, box=Box(-5, -5, 900, 10.2)).shape) == (3, 11, 800)  # the part inside
    with pytest.raises(DataError, match=r"large.jpg: its box \(800, 0, 900, 10\) lies outside the 800 x 600 image"):
        read_image(large, box=Box(800, 0, 900, 10))


def test_raw_pixels_come_from_images_or_thumbnails(tmp_path):
    images = digits().test
    _, plain = build_transforms(8, 1)
    pixels = raw_pixels(torch.stack([image for image, _ in images.with_transform(plain)]))
    assert torch.allclose(pixels, images.images.flatten(1) / 255)
    images = folder(path=str(photos(tmp_path / "photos", classes=2)), split="image", image_size=48).test
    _, plain = build_transforms(48, 3, crop=True)
    images = torch.stack([image for image, _ in images.with_transform(plain)])
    small = torch.stack([resize(image, [32, 32], antialias=True) for image in images])
    assert torch.equal(raw_pixels(images), small.flatten(1))


def test_augmentation_shifts_within_its_range():
    image = torch.zeros(1, 9, 9, dtype=torch.uint8)
    image[0, 4, 4] = 255
    augmented, _ = build_transforms(9, 1, shift=2)
    torch.manual_seed(0)
    places = {tuple(augmented(image)[0].nonzero()[0].tolist()) for _ in range(400)}
    assert places == {(row, column) for row in range(2, 7) for column in range(2, 7)}
