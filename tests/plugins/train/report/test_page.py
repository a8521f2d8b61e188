"""A page of results: one file with its figures and tables."""

import base64
import re
from unittest.mock import Mock

import pytest
from markupsafe import Markup
from matplotlib.figure import Figure

from pml_ext_train.report import ReportTable, draw, percent, render

ROWS = [["raw & <b>", "1.0"], ["after", Markup("<b>2.0</b>")]]
TABLE = ReportTable("Results", ["phase", "R@1 <%>"], ROWS, "A caption.")


def line():
    figure = Figure()
    figure.subplots().plot([1, 2])
    return figure


def test_a_page_has_tables_and_figures_in_it():
    drawn = draw("A <line>", line, "Its caption")
    page = render("report", title="A & B", tables=[TABLE], figures=[drawn], phases={})
    assert "<h1>A &amp; B</h1>" in page
    heads = re.findall(r'<th scope="(?:col|row)">(.*?)</th>', page)
    assert heads == ["phase", "R@1 &lt;%&gt;", "raw &amp; &lt;b&gt;", "after"]
    assert re.findall(r"<td>(.*?)</td>", page) == ["1.0", "<b>2.0</b>"]
    (picture,) = re.findall(r'alt="A &lt;line&gt;" src="data:image/png;base64,([^"]+)"', page)
    assert base64.b64decode(picture) == drawn.png
    assert drawn.png.startswith(b"\x89PNG")
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)  # nothing from elsewhere


@pytest.mark.parametrize("error", [ValueError("no\nbins"), SystemExit("enough")])
def test_a_figure_that_fails_leaves_the_others(error):
    fails = Mock(side_effect=error)
    failed = draw("broken", fails, owner="MyLoss: ")
    first = str(error).splitlines()[0]
    assert (failed.png, failed.problem) == (b"", f"MyLoss: {type(error).__name__}: {first}")
    page = render("report", title="a", figures=[failed, draw("whole", line)], phases={})
    assert f"This figure could not be drawn: MyLoss: {type(error).__name__}: {first}</div>" in page
    assert page.count("data:image/png;base64,") == 1
    with pytest.raises(KeyboardInterrupt):
        draw("stopped", Mock(side_effect=KeyboardInterrupt))


def test_shares_are_formatted_in_percent():
    assert [percent(value) for value in (0.714, 1, 0, None)] == ["71.4", "100.0", "0.0", ""]
    assert [percent(value, "+") for value in (0.0126, -0.5)] == ["+1.3", "-50.0"]
    bold = percent(0.5, bold=True)
    assert (bold, type(bold)) == ("<b>50.0</b>", Markup)
