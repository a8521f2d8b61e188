"""How image files are read, and their small copies."""

import errno
import io
import struct
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose
from PIL import Image

from pml_ext.errors import ConfigError, DataError, TooManyPixelsError
from pml_ext_train.data import Box, DamagedImageError, folder, image_tensor, open_image, read_image, shown_size
from pml_ext_train.data.reading import IMAGE_ENDINGS, TURNS
from pml_ext_train.data.thumbnails import placeholder, thumbnail

from .made_up import save, write_deep_png


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
        ("I;16", 256 * 99, (99, 99, 99)),
        ("1", 1, (255, 255, 255)),
    ],
)
def test_images_of_every_mode_are_read(tmp_path, mode, color, wanted):
    path = tmp_path / "image.png"
    if mode == "I;16":
        Image.fromarray(np.full((4, 4), color, dtype=np.uint16)).save(path)
    else:
        save(path, color, (4, 4), mode)
    assert tuple(read_image(path)[:, 0, 0].tolist()) == wanted
    assert tuple(read_image(path, channels=1).shape) == (1, 4, 4)


@pytest.mark.parametrize(
    ("value", "kind", "wanted"),
    [(99, np.uint16, 99), (4000, np.uint16, 250), (65_535, np.uint16, 255), (70_000, np.int32, 68), (0, np.int32, 0)],
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
    box = Box(width - 20, height - 30, width, height)
    assert_allclose(read_image(path, 1, box)[0].int(), wanted[-30:, -20:], atol=8)


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


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_thumbnail_is_decoded_at_reduced_size(tmp_path, mode, monkeypatch):
    """It is upright, and keeps the shape of the photograph."""
    path = tmp_path / "im $1_3.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # turned
    colors = {"RGB": (200, 30, 30), "L": 90, "CMYK": (0, 255, 0, 0)}
    Image.new(mode, (4000, 3000), colors[mode]).save(path, exif=exif)
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
