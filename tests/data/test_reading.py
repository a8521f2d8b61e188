"""How image files are read."""

import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps, PngImagePlugin

from pml_ext.data import Box, read_image
from pml_ext.errors import DataError


def save(path: Path, color=(200, 30, 30), size=(20, 16), mode="RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path)
    return path


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


@pytest.mark.parametrize("error", [TypeError("odd"), struct.error("short"), KeyError(3), MemoryError()])
def test_any_error_of_a_decoder_names_the_file(tmp_path, monkeypatch, error):
    def fail(image):
        raise error

    path = save(tmp_path / "odd.png")
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", fail)
    with pytest.raises(DataError, match=r"odd.png: not a readable image"):
        read_image(path)
