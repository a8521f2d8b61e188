"""Fonts for names in any script."""

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont
from PIL import Image

from pml_ext.evaluation import figures, fonts
from pml_ext_search.clusters import contact_sheet


def test_letters_are_drawn_by_the_installed_font_that_has_them(monkeypatch):
    """STIX comes with matplotlib and has the first letter; DejaVu Sans lacks both, and no font has the second."""
    monkeypatch.setattr(fonts, "_WIDE", ("STIXGeneral",))
    letter = "\u1d84"
    unknown = "\U00020001"
    assert [fonts.font_file(text) for text in (letter, unknown)] == [*map(findfont, ("STIXGeneral", "DejaVu Sans"))]
    drawn = []
    for figure, font in ((Figure(), {"fontfamily": "STIXGeneral"}), (figures.PlainFigure(), {})):
        canvas = FigureCanvasAgg(figure)
        figure.text(0.2, 0.2, letter, fontsize=60, **font)
        canvas.draw()
        drawn.append(np.asarray(canvas.buffer_rgba()))
    assert np.array_equal(*drawn)
    sheets = [contact_sheet(text, [Image.new("L", (9, 9), 255)]) for text in (letter, unknown)]
    assert sheets[0] != sheets[1]  # a box, in a font without the letter
