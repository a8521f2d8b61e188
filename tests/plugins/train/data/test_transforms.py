"""From a file to what the network gets: how images are read, cropped, recolored and transformed at random."""

import errno
import io
import pickle
import struct
import sys

import numpy as np
import pytest
import torch
import torchvision
from numpy.testing import assert_allclose
from PIL import Image
from torchvision.transforms import v2

from pml_ext.errors import ConfigError, DataError, TooManyPixelsError
from pml_ext_train.data import (
    Box,
    DamagedImageError,
    ImageTransforms,
    LabeledImages,
    NamedTransform,
    Pipeline,
    build_transforms,
    digits,
    folder,
    image_tensor,
    open_image,
    placeholder,
    prepare,
    raw_pixels,
    read_image,
    shown_size,
    thumbnail,
    torchvision_transforms,
)
from pml_ext_train.data.reading import IMAGE_ENDINGS, TURNS
from pml_ext_train.training.batches import BatchReader, epoch_batches

from .made_up import photos, save, write_deep_png


def test_an_image_never_starts_another_program(tmp_path, monkeypatch):
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
        ("1", 1, (255, 255, 255)),
    ],
)
def test_images_of_every_mode_are_read(tmp_path, mode, color, wanted):
    path = save(tmp_path / "image.png", color, (4, 4), mode)
    assert tuple(read_image(path)[:, 0, 0].tolist()) == wanted
    assert tuple(read_image(path, channels=1).shape) == (1, 4, 4)


@pytest.mark.parametrize(
    ("value", "kind", "wanted"),
    [
        (99, np.uint16, 99),
        (4000, np.uint16, 250),
        (256 * 99, np.uint16, 99),
        (65_535, np.uint16, 255),
        (70_000, np.int32, 68),
        (0, np.int32, 0),
    ],
)
def test_integers_are_scaled_to_eight_bits(tmp_path, value, kind, wanted):
    Image.fromarray(np.full((4, 4), value, dtype=kind)).save(tmp_path / "deep.tif")
    assert read_image(tmp_path / "deep.tif").unique().tolist() == [wanted]


@pytest.mark.parametrize(
    ("value", "problem"), [(np.float32(0.5), "floating-point numbers"), (np.int32(-5), "negative numbers")]
)
def test_pixels_that_pillow_clips_are_refused(tmp_path, value, problem):
    Image.fromarray(np.full((4, 4), value)).save(tmp_path / "depth.tif")
    with pytest.raises(DataError, match=f"depth.tif: its pixels are {problem}; save it with 8 or 16 bits"):
        read_image(tmp_path / "depth.tif")


def test_colors_that_pillow_loses_are_refused(tmp_path):
    write_deep_png(tmp_path / "dark.png", np.full((4, 4, 3), 99))
    assert Image.open(tmp_path / "dark.png").getpixel((0, 0)) == (0, 0, 0)
    with pytest.raises(DataError, match="dark.png: its 16-bit colors are below 256"):
        read_image(tmp_path / "dark.png")


@pytest.mark.parametrize("color", ["white", "black", "gray", "yellow", "red"])
def test_icons_of_different_transparency_look_different(tmp_path, color):
    """Squares of one color, whose visible parts differ in size."""
    seen = []
    for side in (10, 20):
        icon = Image.new("RGBA", (32, 32), color)
        icon.putalpha(Image.new("L", (32, 32), 0))
        icon.paste(Image.new("RGBA", (side, side), color), (6, 6))
        icon.save(tmp_path / "icon.png")
        seen.append(read_image(tmp_path / "icon.png", channels=1).int())
    assert (seen[0] - seen[1]).abs().max() > 32


@pytest.mark.parametrize("size", [(1, 60_000), (100_000, 1)])
def test_images_are_not_enlarged_too_far(tmp_path, size):
    path = save(tmp_path / "long.png", size=size)
    text = r"long.png: \d+ x \d+ pixels become more than 178,956,970 when .* to 256; crop the image"
    with pytest.raises(TooManyPixelsError, match=text):
        read_image(path, smallest=4 * 256)
    with Image.open(path) as image, pytest.raises(TooManyPixelsError, match=text):
        image_tensor(image, smallest=4 * 256)
    assert max(read_image(path, smallest=4 * 32).shape) == max(size)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "TIFF in LZW", "AVIF", "HEIF"])
def test_boxes_are_cut_from_upright_images(tmp_path, orientation, kind):
    if kind == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener()
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"turned.{kind.lower()}"
    stored = Image.fromarray(np.kron(np.arange(6, dtype=np.uint8).reshape(2, 3) * 40, np.ones((16, 16), np.uint8)))
    options = {"compression": "tiff_lzw"} if kind == "TIFF in LZW" else {"quality": 100}
    stored.save(path, kind.split()[0], exif=exif.tobytes(), **options)
    if orientation > 1:
        stored = stored.transpose(Image.Transpose[TURNS[orientation - 2]])
    wanted = np.asarray(stored)
    height, width = wanted.shape
    with open_image(path) as image:
        assert shown_size(image) == (width, height)
    assert_allclose(read_image(path, channels=1)[0].int(), wanted, atol=8)
    assert_allclose(
        read_image(path, 1, Box(width - 20, height - 30, width, height))[0].int(), wanted[-30:, -20:], atol=8
    )


def test_other_exif_data_are_ignored(tmp_path):
    """XResolution as a text, which Pillow cannot write back."""
    block = b"Exif\0\0" + b"II*\0\x08\0\0\0" + b"\x02\0"
    block += b"\x12\x01\x03\0\x01\0\0\0\x06\0\0\0" + b"\x1a\x01\x02\0\x04\0\0\0wide" + bytes(4)
    Image.new("RGB", (30, 10)).save(tmp_path / "odd.jpg", exif=block)
    assert tuple(read_image(tmp_path / "odd.jpg").shape) == (3, 30, 10)


@pytest.mark.parametrize("size", [(1001, 3000), (3000, 1001), (1001, 1003)])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_box_lies_inside_a_reduced_image(tmp_path, size, orientation):
    """Both sides are rounded; pixels outside the image would be black."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("L", size, 255).save(tmp_path / "white.jpg", exif=exif)
    width, height = size if orientation == 1 else size[::-1]
    pixels = read_image(tmp_path / "white.jpg", 1, Box(0, 0, width, height), smallest=100)
    assert max(pixels.shape) < 500
    assert pixels.min() == 255


FORMATS = {"jfif": "JPEG", "jpe": "JPEG", "gif": "GIF", "avif": "AVIF", "jp2": "JPEG2000", "webp": "WEBP"}


@pytest.mark.parametrize("ending", FORMATS)
def test_images_with_each_ending_are_read(tmp_path, ending):
    for number in range(8):
        file = tmp_path / f"class{number // 4}" / f"{number}.{ending}"
        file.parent.mkdir(exist_ok=True)
        Image.new("RGB", (32, 24), (200, 30, 30)).save(file, FORMATS[ending])
    splits = folder(path=str(tmp_path), split="image", image_size=16)
    assert splits.note == ""
    assert len(splits.train) + len(splits.test) == 8
    red, green, _ = splits.train.image(0).float().mean(dim=(1, 2))
    assert (round(float(red), -1), round(float(green), -1)) == (200, 30)


def test_heic_is_read_with_its_extra(tmp_path):
    heif = pytest.importorskip("pillow_heif")
    heif.from_pillow(Image.new("RGB", (64, 48), (200, 30, 30))).save(tmp_path / "phone.heic")
    for source in (tmp_path / "phone.heic", io.BytesIO((tmp_path / "phone.heic").read_bytes())):
        pixels = read_image(source)
        assert (tuple(pixels.shape), abs(int(pixels[0, 20, 20]) - 200) < 6) == ((3, 48, 64), True)


def test_heic_without_its_extra_names_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    (tmp_path / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    with pytest.raises(DataError, match=r'phone.heic: HEIC .* pillow-heif, .* pip install "pml-ext\[heic\]"'):
        read_image(tmp_path / "phone.heic")
    assert {".heic", ".heif"} < {*IMAGE_ENDINGS}


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        ("", r"large.png: too many pixels .* set PML_EXT_MAX_PIXELS=NUMBER in the environment"),
        ("319", r"large.png: 20 x 16 pixels exceed PML_EXT_MAX_PIXELS=319"),
        ("many", "PML_EXT_MAX_PIXELS=many in the environment is not a number of pixels"),
        ("320", None),
    ],
)
def test_the_limit_of_pixels_may_be_raised(tmp_path, monkeypatch, limit, text):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    monkeypatch.setenv("PML_EXT_MAX_PIXELS", limit)
    path = save(tmp_path / "large.png", size=(20, 16))
    if text is None:
        assert tuple(read_image(path).shape) == (3, 16, 20)
    else:
        with pytest.raises((TooManyPixelsError, ConfigError), match=text):
            read_image(path)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError("out of memory error when reading image file"), DataError),  # of a decoder, without a number
        (OSError(errno.EIO, "Input/output error"), DataError),
        (MemoryError(), DataError),
        (OSError("decoding error when reading image file"), DamagedImageError),
        (struct.error("unpack requires a buffer of 4 bytes"), DamagedImageError),
    ],
)
def test_errors_that_may_pass_are_not_damage(tmp_path, error, kind):
    with pytest.raises(DataError) as caught, open_image(save(tmp_path / "photo.png")):
        raise error
    assert type(caught.value) is kind


# Small copies


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_thumbnail_is_decoded_at_reduced_size(tmp_path, mode, monkeypatch):
    """It is upright, and keeps the shape of the photograph."""
    path = tmp_path / "im $1_3.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # turned
    Image.new(mode, (4000, 3000), {"RGB": (200, 30, 30), "L": 90, "CMYK": (0, 255, 0, 0)}[mode]).save(path, exif=exif)
    decoded = []
    shrink = Image.Image.thumbnail
    monkeypatch.setattr(
        Image.Image, "thumbnail", lambda image, *a, **b: decoded.append(image.size) or shrink(image, *a, **b)
    )
    small = thumbnail(path)
    assert (small.mode, small.size) == ("RGB", (165, 220))
    assert decoded == [(375, 500)]
    assert thumbnail(path, channels=1, longest=60).size == (45, 60)


def test_a_placeholder_is_a_crossed_gray_square():
    image = placeholder(40)
    assert [image.size, *map(image.getpixel, ((0, 0), (20, 20), (20, 2)))] == [(40, 40), 140, 140, 225]


# Pipelines


PHOTO = torch.randint(256, (3, 90, 120), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def pair(size=20, crop=True, normalize=None, shift=0, **settings):
    return build_transforms(size, 3, crop, normalize, shift, pipeline=Pipeline(**settings))


def test_the_shorter_side_is_resized_before_cropping():
    _, plain = pair(size=57, resize=64)
    torch.testing.assert_close(
        plain(PHOTO), v2.functional.center_crop(v2.functional.resize(PHOTO, [64], antialias=True), [57, 57]) / 255
    )
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
    windows = {(y, x): square[:, y : y + 20, x : x + 20] for y in range(5) for x in range(5)}
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
    by_hand = v2.Compose(
        [
            v2.Resize(30, antialias=True),
            v2.RandomResizedCrop(20, scale=(0.16, 1.0), antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
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
    assert torch.allclose(
        raw_pixels(torch.stack([image for image, _ in images.with_transform(plain)])), images.images.flatten(1) / 255
    )
    images = folder(path=str(photos(tmp_path / "photos", classes=2)), split="image", image_size=48).test
    _, plain = build_transforms(48, 3, crop=True)
    images = torch.stack([image for image, _ in images.with_transform(plain)])
    assert torch.equal(
        raw_pixels(images),
        torch.stack([v2.functional.resize(image, [32, 32], antialias=True) for image in images]).flatten(1),
    )


def test_augmentation_shifts_within_its_range():
    image = torch.zeros(1, 9, 9, dtype=torch.uint8)
    image[0, 4, 4] = 255
    augmented, _ = build_transforms(9, 1, shift=2)
    torch.manual_seed(0)
    assert {tuple(augmented(image)[0].nonzero()[0].tolist()) for _ in range(400)} == {
        (row, column) for row in range(2, 7) for column in range(2, 7)
    }


# Random transforms


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
    if name == "GaussianNoise" and torchvision.__version__.startswith("0.21."):
        pytest.skip("GaussianNoise of torchvision 0.21 takes no bytes, which the error says")
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
        reader = BatchReader(white.with_transform(augmented), workers, torch.device("cpu"))
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
    augmented, _ = build_transforms(
        20,
        3,
        transforms=[step(lambda image: seen.append(image.clone()) or image)],
        pipeline=Pipeline(resize=24, bgr=True),
    )
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


# Files that are read before training


TRAIN, PLAIN = build_transforms(20, 3, crop=True, pipeline=Pipeline(resize=30, random_crop_scale=(0.2, 1.0), flip=True))
WHOLE, _ = build_transforms(20, 3, crop=True, random_crop=True)


@pytest.fixture
def jpegs(tmp_path):
    generator = np.random.default_rng(0)
    paths = [tmp_path / f"{number}.jpg" for number in range(9)]
    for number, path in enumerate(paths):
        Image.fromarray(generator.integers(256, size=(8, 6 + number % 3, 3), dtype=np.uint8)).resize(
            (60 + 20 * (number % 3), 80)
        ).save(path, quality=95)
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
    images = (
        LabeledImages(torch.zeros(9, 1, 4, 4, dtype=torch.uint8), [0] * 9, ["a"], channels=1)
        if in_memory
        else labeled(jpegs)
    )
    with pytest.raises(ConfigError, match=message):
        prepare(images, steps, "memory")
    assert len(prepare(images, steps, skip_unreadable=True)[0]) == 9
