"""Pages of results: one HTML file that needs no network."""

import base64
import io
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from pml_ext.errors import one_line
from pml_ext.evaluation.metrics import is_known_metric, title_of


class ReportFigure(NamedTuple):
    """A figure with title and caption, or why it could not be drawn."""

    title: str
    png: bytes = b""
    caption: str = ""
    problem: str = ""
    keeps_colors: bool = False  # on a dark page, where other figures are inverted


def draw(
    title: str, figure: Callable[[], Figure], caption: str = "", owner: str = "", keeps_colors: bool = False
) -> ReportFigure:
    """Draw a figure, or return its error."""
    try:
        buffer = io.BytesIO()
        figure().savefig(buffer, format="png")
    except (Exception, SystemExit) as error:  # components draw figures of their own
        return ReportFigure(title, problem=owner + one_line(error))
    return ReportFigure(title, buffer.getvalue(), caption, keeps_colors=keeps_colors)


class ReportTable(NamedTuple):
    """A table of the report."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


def render(template: str, **values: Any) -> str:
    """Render this folder's template ``NAME.html.jinja``."""
    environment = jinja2.Environment(loader=jinja2.PackageLoader(__package__, "."), autoescape=True)
    environment.filters["title_of"] = title_of
    environment.tests["known_metric"] = is_known_metric
    environment.filters["base64"] = lambda png: base64.b64encode(png).decode("ascii")
    return environment.get_template(f"{template}.html.jinja").render(**values)


def percent(value: float | None, sign: str = "", bold: bool = False) -> str:
    """Format a share in percent, ``"71.4"``; None and NaN are empty."""
    text = "" if value is None or math.isnan(value) else f"{100 * value:{sign}.1f}"
    return Markup("<b>{}</b>").format(text) if bold else text
