"""Names from data as drawable texts, and fonts for any script."""

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pml_ext_train.report import figures, fonts


def test_letters_are_drawn_by_a_fitting_font(monkeypatch):
    """STIX comes with matplotlib and has the letter; DejaVu Sans lacks it."""
    monkeypatch.setattr(figures, "font_families", lambda: ["DejaVu Sans", "STIXGeneral"])
    drawn = []
    for figure, font in ((Figure(), {"fontfamily": "STIXGeneral"}), (figures.PlainFigure(), {})):
        canvas = FigureCanvasAgg(figure)
        figure.text(0.2, 0.2, "\u1d84", fontsize=60, **font)
        canvas.draw()
        drawn.append(np.asarray(canvas.buffer_rgba()))
    assert np.array_equal(*drawn)


def test_names_are_shortened_to_their_width():
    assert fonts.short_name("a" * 30, 10) == "…" + "a" * 9
    assert fonts.short_name("\u4e2d" * 9, 10) == "…" + "\u4e2d" * 4  # wide letters take two columns
    assert fonts.drawable("a\x07\u202eb\n") == "a\ufffd\ufffdb\n"
