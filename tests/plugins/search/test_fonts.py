"""Fonts of contact sheets for names in any script."""

from matplotlib.font_manager import findfont
from PIL import Image

from pml_ext_search.clusters import contact_sheet
from pml_ext_search.fonts import font_file
from pml_ext_train.report import fonts


def test_letters_are_drawn_by_the_installed_font_that_has_them(monkeypatch):
    """STIX comes with matplotlib and has the first letter; DejaVu Sans lacks both, and no font has the second."""
    monkeypatch.setattr(fonts, "_WIDE", ("STIXGeneral",))
    letter = "\u1d84"
    unknown = "\U00020001"
    assert [font_file(text) for text in (letter, unknown)] == [*map(findfont, ("STIXGeneral", "DejaVu Sans"))]
    sheets = [contact_sheet(text, [Image.new("L", (9, 9), 255)]) for text in (letter, unknown)]
    assert sheets[0] != sheets[1]  # a box, in a font without the letter
