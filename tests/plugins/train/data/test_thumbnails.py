"""Small copies of image files."""

import pytest
from PIL import Image

from pml_ext_train.data.thumbnails import placeholder, thumbnail


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_thumbnail_of_a_photograph_is_decoded_small(tmp_path, mode, monkeypatch):
    """Upright, of the photograph's shape, from an eighth of its pixels."""
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


def test_a_placeholder_is_a_gray_square_with_a_cross():
    image = placeholder(40)
    assert image.size == (40, 40)
    corner, center, edge = (image.getpixel(place) for place in ((0, 0), (20, 20), (20, 2)))
    assert (corner, center, edge) == (140, 140, 225)
