"""Contact sheets and their fonts, for names in any script."""

import numpy as np
import pytest
from matplotlib.font_manager import findfont
from PIL import Image

from pml_ext_train.report import contact_sheets
from pml_ext_train.report.contact_sheets import CELL, contact_sheet, font_file


def test_letters_are_drawn_by_a_fitting_font(monkeypatch):
    """STIX comes with matplotlib and has the first letter; DejaVu Sans lacks both, and no font has the second."""
    monkeypatch.setattr(contact_sheets, "font_families", lambda: ["DejaVu Sans", "STIXGeneral"])
    letter = "\u1d84"
    unknown = "\U00020001"
    assert [font_file(text) for text in (letter, unknown)] == [*map(findfont, ("STIXGeneral", "DejaVu Sans"))]
    sheets = [contact_sheet(text, [Image.new("L", (9, 9), 255)]) for text in (letter, unknown)]
    assert sheets[0] != sheets[1]  # a box, in a font without the letter


def test_a_sheet_has_every_image_in_its_place():
    colors = [(10 * number, 40, 200) for number in range(23)]
    sheet = contact_sheet("23 of them", [Image.new("RGB", (5, 5), color) for color in colors])
    assert sheet.size == (10 * CELL + 6, 30 + 3 * CELL + 6)
    for number, color in enumerate(colors):
        row, column = divmod(number, 10)
        assert sheet.getpixel((6 + column * CELL + 50, 30 + row * CELL + 50)) == color


def test_only_framed_images_have_a_frame():
    images = [Image.new("L", (400, 200), 255)] * 3
    sheet = np.asarray(contact_sheet("", images, ["a", "b", "c"], [False, True, False]))
    red = (sheet == (224, 49, 49)).all(axis=2)
    inside = red[:, 6 + CELL : 6 + 2 * CELL]
    assert inside.sum() == red.sum() > 600


@pytest.mark.parametrize("name", ["price $5_$6", "two\x00\x07\nlines", "\udcff.png", "中文", "שלום", "🙂", ""])
def test_any_name_of_a_file_is_drawn(name):
    plain, named = (np.asarray(contact_sheet(text, [Image.new("L", (1, 900))], [text])) for text in ("", name))
    assert (plain != named).any() == bool(name)
