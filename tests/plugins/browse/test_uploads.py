"""Photographs that are dropped on the page."""

import io

import pytest
from PIL import Image

from pml_ext.errors import DataError
from pml_ext_browse.uploads import MOST, Uploads

from .asking import PNG


def test_the_latest_uploads_are_kept(tmp_path):
    uploads = Uploads(tmp_path)
    first = uploads.keep(io.BytesIO(PNG), "first.png")
    tokens = [uploads.keep(io.BytesIO(PNG), f"{number}.png") for number in range(MOST - 2)]
    tokens.append(uploads.refuse("notes.txt", "notes.txt: not a readable image"))
    assert [each.name for each in uploads.of(f"{first},{tokens[-1]}")] == ["first.png", "notes.txt"]
    assert uploads.of(first)[0].file.read_bytes() == PNG
    uploads.keep(io.BytesIO(PNG), "last.png")
    with pytest.raises(DataError, match="no longer kept; drop it again"):
        uploads.of(f"{tokens[0]},{first}")
    assert len([*tmp_path.iterdir()]) == MOST - 1  # one was refused
    assert uploads.of(tokens[-1])[0].problem == "notes.txt: not a readable image"


def test_a_name_of_thousands_of_letters_is_cut(tmp_path):
    uploads = Uploads(tmp_path)
    (kept,) = uploads.of(uploads.keep(io.BytesIO(PNG), "a" * 5000 + ".png"))
    assert len(kept.name) <= 200
    assert kept.name.endswith(".png")
    with pytest.raises(DataError) as caught:
        uploads.keep(io.BytesIO(b"none"), "b" * 5000)
    assert len(str(caught.value)) < 500
    assert " object at 0x" not in str(caught.value)


@pytest.mark.parametrize(
    ("image", "share", "text"),
    [
        (Image.new("1", (1, 60_000)), 1, r"^it.png: 1 x 60000 pixels become more than .*; crop the image"),
        (Image.effect_noise((64, 64), 90), 0.7, "^it.png: not a readable image"),
    ],
)
def test_tall_and_damaged_photographs_leave_no_file(tmp_path, image, share, text):
    """1 x 60,000 pixels are a file of some 200 bytes, and 1.5 GB once the shorter side is resized."""
    file = io.BytesIO()
    image.save(file, "PNG")
    with pytest.raises(DataError, match=text):
        Uploads(tmp_path).keep(io.BytesIO(file.getvalue()[: int(share * file.tell())]), "it.png")
    assert [*tmp_path.iterdir()] == []
