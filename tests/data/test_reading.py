"""How image files are read."""

import io
import sys

import numpy as np
import pytest
from PIL import Image, ImageOps

from pml_ext.data import Box, folder, read_image
from pml_ext.data.reading import IMAGE_ENDINGS, _array_of
from pml_ext.errors import ConfigError, DataError, TooManyPixelsError

from .made_up import save


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


def test_floating_point_pixels_are_refused(tmp_path):
    """PIL clips them to whole numbers: those from 0 to 1 would all be black."""
    Image.fromarray(np.full((4, 4), 0.5, dtype=np.float32)).save(tmp_path / "depth.tif")
    with pytest.raises(DataError, match=r"depth.tif: its pixels are floating-point numbers; save it with 8 or 16 bits"):
        read_image(tmp_path / "depth.tif")


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


@pytest.mark.parametrize("size", [(1001, 3000), (3000, 1001), (1001, 1003)])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_box_of_a_small_decoding_lies_inside(tmp_path, size, orientation):
    """Both sides are rounded: pixels from outside of the image would be black."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("L", size, 255).save(tmp_path / "white.jpg", exif=exif)
    width, height = size if orientation == 1 else size[::-1]
    pixels = read_image(tmp_path / "white.jpg", 1, Box(0, 0, width, height), smallest=100)
    assert max(pixels.shape) < 500
    assert pixels.min() == 255


FORMATS = {"jfif": "JPEG", "jpe": "JPEG", "gif": "GIF", "avif": "AVIF", "jp2": "JPEG2000", "webp": "WEBP"}


@pytest.mark.parametrize("ending", FORMATS)
def test_images_of_each_ending_are_read_and_found_in_folders(tmp_path, ending):
    for number in range(8):
        file = tmp_path / f"class{number // 4}" / f"{number}.{ending}"
        file.parent.mkdir(exist_ok=True)
        Image.new("RGB", (32, 24), (200, 30, 30)).save(file, FORMATS[ending])
    splits = folder(path=str(tmp_path), split="image", image_size=16)
    assert splits.note == ""
    assert len(splits.train) + len(splits.test) == 8
    red, green, _ = splits.train.image(0).float().mean(dim=(1, 2))
    assert (round(float(red), -1), round(float(green), -1)) == (200, 30)


@pytest.mark.parametrize("ending", ["gif", "webp", "tif", "avif"])
def test_the_first_image_of_several_is_read(tmp_path, ending):
    frames = [Image.new("RGB", (32, 24), color) for color in ("red", "blue", "lime")]
    frames[0].save(tmp_path / f"several.{ending}", save_all=True, append_images=frames[1:])
    red, green, blue = read_image(tmp_path / f"several.{ending}")[:, 12, 16].tolist()
    assert red > 245
    assert max(green, blue) < 10


def test_heic_is_read_with_its_extra(tmp_path):
    heif = pytest.importorskip("pillow_heif")
    heif.from_pillow(Image.new("RGB", (64, 48), (200, 30, 30))).save(tmp_path / "phone.heic")
    for source in (tmp_path / "phone.heic", io.BytesIO((tmp_path / "phone.heic").read_bytes())):
        pixels = read_image(source)
        assert tuple(pixels.shape) == (3, 48, 64)
        assert abs(int(pixels[0, 20, 20]) - 200) < 6


def test_heic_without_its_extra_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    (tmp_path / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    with pytest.raises(DataError, match=r'phone.heic: HEIC .* pillow-heif, .* pip install "pml-ext\[heic\]"'):
        read_image(tmp_path / "phone.heic")
    assert {".heic", ".heif"} < {*IMAGE_ENDINGS}


def test_a_setting_reads_images_above_pillows_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    path = save(tmp_path / "large.png", size=(20, 16))
    with pytest.raises(TooManyPixelsError, match=r"large.png: too many pixels .* PML_EXT_MAX_PIXELS=NUMBER in the env"):
        read_image(path)
    monkeypatch.setenv("PML_EXT_MAX_PIXELS", "320")
    assert tuple(read_image(path).shape) == (3, 16, 20)
    monkeypatch.setenv("PML_EXT_MAX_PIXELS", "319")
    with pytest.raises(TooManyPixelsError, match=r"large.png: 20 x 16 pixels are more than PML_EXT_MAX_PIXELS=319"):
        read_image(path)
    monkeypatch.setenv("PML_EXT_MAX_PIXELS", "many")
    with pytest.raises(ConfigError, match="PML_EXT_MAX_PIXELS=many in the environment: wanted a number of pixels"):
        read_image(path)


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1), ("RGBA", 4)])
@pytest.mark.parametrize("height", [1, 64, 65, 200])
def test_pixels_that_are_copied_by_strips_are_those_of_numpy(mode, channels, height):
    pixels = np.random.default_rng(0).integers(256, size=(height, 30, channels), dtype=np.uint8)
    image = Image.fromarray(pixels.squeeze(-1) if channels == 1 else pixels, mode)
    assert np.array_equal(_array_of(image, channels), pixels)
