"""Contact sheets."""

import numpy as np
import pytest
from PIL import Image

from pml_ext.evaluation.sheets import CELL, contact_sheet

RED = (224, 49, 49)


def test_a_sheet_has_every_image_in_its_place():
    colors = [(10 * number, 40, 200) for number in range(13)]
    sheet = contact_sheet("13 of them", [Image.new("RGB", (5, 5), color) for color in colors], width=5)
    assert sheet.size == (5 * CELL + 6, 30 + 3 * CELL + 6)
    for number, color in enumerate(colors):
        row, column = divmod(number, 5)
        assert sheet.getpixel((6 + column * CELL + 50, 30 + row * CELL + 50)) == color


def test_strange_ones_are_framed():
    images = [Image.new("L", (400, 200), 255)] * 3
    sheet = np.asarray(contact_sheet("", images, ["a", "b", "c"], [False, True, False]))
    red = (sheet == RED).all(axis=2)
    assert red[:, 6 + CELL : 6 + 2 * CELL].sum() > 600
    assert not red[:, :CELL].any()
    assert not red[:, 6 + 2 * CELL :].any()


@pytest.mark.parametrize("name", ["price $5_$6", "two\x00\x07\nlines", "\udcff.png", "中文", "שלום", "🙂", ""])
def test_any_name_is_drawn(name):
    plain, named = (np.asarray(contact_sheet(text, [Image.new("L", (1, 900))], [text])) for text in ("", name))
    assert (plain != named).any() == bool(name)
