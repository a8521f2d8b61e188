"""Transforms of training images: torchvision's, one draw per image, and what is refused."""

import pickle

import pytest
import torch
from torchvision.transforms import v2

from pml_ext.errors import ConfigError
from pml_ext_train.data import (
    ImageTransforms,
    LabeledImages,
    NamedTransform,
    Pipeline,
    build_transforms,
    torchvision_transforms,
)
from pml_ext_train.training.batches import BatchReader, epoch_batches

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
