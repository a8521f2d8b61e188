"""Pipelines of photographs: sizes, crops, colors, random transforms, and files that are read before training."""

import itertools
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2.functional import resize

from pml_ext.errors import ConfigError, DataError
from pml_ext_train.data import (
    Box,
    ImageTransforms,
    LabeledImages,
    NamedTransform,
    Pipeline,
    build_transforms,
    digits,
    folder,
    prepare,
    raw_pixels,
    read_image,
    torchvision_transforms,
)
from pml_ext_train.training.batches import BatchReader, epoch_batches

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


CPU = torch.device("cpu")
# Settings of transforms that need some, for images of 24 pixels.
NEEDED = {
    "CenterCrop": {"size": 24},
    "Compose": {"transforms": [v2.RandomInvert()]},
    "GaussianBlur": {"kernel_size": 3},
    "JPEG": {"quality": [20, 90]},
    "Pad": {"padding": 0},
    "RandomAdjustSharpness": {"sharpness_factor": 2.0},
    "RandomAffine": {"degrees": 10},
    "RandomApply": {"transforms": [v2.RandomInvert()]},
    "RandomChoice": {"transforms": [v2.RandomInvert(), v2.ColorJitter(0.5)]},
    "RandomCrop": {"size": 24, "padding": 2},
    "RandomOrder": {"transforms": [v2.RandomInvert()]},
    "RandomPosterize": {"bits": 3},
    "RandomResizedCrop": {"size": 24},
    "RandomRotation": {"degrees": 10},
    "RandomSolarize": {"threshold": 100.0},
    "Resize": {"size": 24},
}


def step(*functions):
    return ImageTransforms([NamedTransform(f"transforms.{n}", f"f{n}", f"f{n}", f) for n, f in enumerate(functions)])


@pytest.mark.parametrize("name", torchvision_transforms())
def test_each_transform_of_torchvision_is_usable(name):
    settings = {"Grayscale": {"num_output_channels": 3}} | NEEDED
    transform = torchvision_transforms()[name](**settings.get(name, {}))
    step(transform).try_on(3, 24)
    torch.manual_seed(5)
    image = torch.randint(256, (3, 24, 24), dtype=torch.uint8)
    torch.manual_seed(1)
    once = step(transform)(image)
    torch.manual_seed(1)
    assert torch.equal(step(transform)(image), once)
    torch.manual_seed(1)
    assert torch.equal(transform(image), once)


def test_only_transforms_of_one_image_are_named():
    names = torchvision_transforms()
    assert {"RandomErasing", "ColorJitter", "RandAugment", "RandomApply", "GaussianBlur"} <= names.keys()
    assert not {"MixUp", "ToDtype", "Normalize", "Transform", "FiveCrop", "RandomIoUCrop"} & names.keys()


def test_each_image_has_its_own_draw():
    """In eight copies of a white image, different parts are erased, equally with workers."""
    white = LabeledImages(torch.full((2, 1, 16, 16), 255, dtype=torch.uint8), [0, 1], ["a", "b"], channels=1)
    augmented, plain = build_transforms(16, 1, transforms=[step(v2.RandomErasing(p=1.0))])
    epoch = epoch_batches([[0] * 8, [1, 0]], 3, 1)
    drawn = []
    for workers in (0, 1):
        reader = BatchReader(white.with_transform(augmented), workers, CPU)
        drawn.append([batch.images for batch in reader.read(epoch)])
        reader.close()
    first = drawn[0][0]
    assert len({tuple(image.flatten().tolist()) for image in first}) == 8
    assert torch.equal(first, drawn[1][0])
    assert torch.equal(drawn[0][1], drawn[1][1])
    assert torch.equal(plain(white.images[0]), torch.ones(1, 16, 16))
    assert (white.images == 255).all()


def test_transforms_see_the_cropped_image_in_rgb():
    seen = []
    photo = torch.zeros(3, 30, 40, dtype=torch.uint8)
    photo[0] = 200
    watching = step(lambda image: seen.append(image.clone()) or image)
    augmented, _ = build_transforms(20, 3, transforms=[watching], pipeline=Pipeline(resize=24, bgr=True))
    result = augmented(photo)
    assert (seen[0].dtype, tuple(seen[0].shape)) == (torch.uint8, (3, 20, 20))
    assert seen[0][0].unique().tolist() == [200]
    assert result[2].unique().tolist() == pytest.approx([200 / 255])  # blue, green, red afterwards


def test_images_in_memory_are_not_changed():
    images = torch.full((1, 8, 8), 7, dtype=torch.uint8)
    assert step(lambda image: image.zero_())(images).eq(0).all()
    assert images.eq(7).all()


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (v2.Resize(9), r"f0 returns uint8 \[3, 9, 9\]; it must return uint8 \[3, 8, 8\]"),
        (v2.ToDtype(torch.float32, scale=True), r"f0 returns float32 \[3, 8, 8\]; it must return uint8"),
        (v2.Normalize([0.5], [0.5]), r"f0 fails on a uint8 image of shape \[3, 8, 8\]: TypeError: .*float"),
        (v2.FiveCrop(4), "f0 returns tuple; it must"),
        (lambda image: None, "f0 returns NoneType; it must"),
        (v2.RandomApply([v2.Grayscale(1)], p=0.5), r"f0 returns uint8 \[1, 8, 8\]"),
    ],
)
def test_wrong_results_are_found_before_a_run(function, text):
    state = torch.get_rng_state()
    with pytest.raises(ConfigError, match=f"^transforms.0: {text}") as caught:
        step(function).try_on(3, 8)
    assert len(str(caught.value).splitlines()) == 1
    assert torch.equal(torch.get_rng_state(), state)


def test_transforms_are_identified_by_settings_and_pickled():
    one, other = (ImageTransforms([NamedTransform("0", "f", text, v2.RandomInvert())]) for text in ("p=0.1", "p=0.2"))
    assert repr(one) != repr(other)
    assert repr(pickle.loads(pickle.dumps(one))) == repr(one)


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
