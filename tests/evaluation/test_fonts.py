"""Fonts for names in any script."""

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.font_manager import fontManager
from PIL import Image

from pml_ext.evaluation import figures, fonts
from pml_ext.retrieval.clusters import contact_sheet


def test_names_are_cut_at_their_beginning():
    assert fonts.short_name("a" * 18) == "a" * 18
    assert fonts.short_name("b" + "a" * 18) == "…" + "a" * 17
    assert fonts.short_name("中" * 9) == "中" * 9
    assert fonts.short_name("中" * 10) == "…" + "中" * 8
    assert fonts.short_name("two\nx\u202egpj.exe\udcff") == "two�x�gpj.exe�"


@pytest.fixture
def chinese(tmp_path, monkeypatch):
    """An installed font with a single letter, a full square."""
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 1000), (1000, 1000), (1000, 0)):
        pen.lineTo(corner)
    pen.closePath()
    font = FontBuilder(1000)
    font.setupGlyphOrder([".notdef", "letter"])
    font.setupCharacterMap({ord("\U00020000"): "letter"})  # of an extension, which no usual font has
    font.setupGlyf({".notdef": TTGlyphPen(None).glyph(), "letter": pen.glyph()})
    font.setupHorizontalMetrics({".notdef": (1000, 0), "letter": (1000, 0)})
    font.setupHorizontalHeader(ascent=1000, descent=0)
    font.setupNameTable({"familyName": "Noto Sans CJK Made Up", "styleName": "Regular"})
    font.setupOS2()
    font.setupPost()
    font.save(tmp_path / "made-up.ttf")
    monkeypatch.setattr(fontManager, "ttflist", [*fontManager.ttflist])
    fontManager.addfont(tmp_path / "made-up.ttf")
    return "\U00020000"


def test_letters_are_drawn_by_the_installed_font_that_has_them(chinese):
    black = []
    for text in (chinese, "\U00020001"):  # which no font has
        figure = figures.PlainFigure(figsize=(2, 2))
        canvas = FigureCanvasAgg(figure)
        figure.text(0.2, 0.2, text, fontsize=60)
        canvas.draw()
        black.append(int((np.asarray(canvas.buffer_rgba())[..., 0] < 99).sum()))
    known, box = black
    assert known > 6000 > 2 * box
    sheet = np.asarray(contact_sheet(chinese, [Image.new("L", (9, 9), 255)]))
    assert (sheet[..., 0] < 99).sum() == 14 * 14
