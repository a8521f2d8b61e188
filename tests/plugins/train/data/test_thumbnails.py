"""Small copies of image files."""

import pytest
from PIL import Image

from pml_ext_train.data.thumbnails import placeholder, thumbnail


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
