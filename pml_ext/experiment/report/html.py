"""One HTML file that opens without a network: tables, figures, warnings, the recipe."""

from __future__ import annotations

import base64
import dataclasses
import functools
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import jinja2
from matplotlib.figure import Figure

from ...errors import one_line
from ...files import write_atomically, write_text


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Args:
        text: what stands in it.
        best: whether it is marked as the best of its column.
    """

    text: str
    best: bool = False


@dataclasses.dataclass(frozen=True)
class ReportTable:
    """A table with a title.

    Args:
        title: its heading.
        columns: the headings of the columns.
        rows: the cells.
        caption: a line below it.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""


@dataclasses.dataclass(frozen=True)
class ReportFigure:
    """A figure with a title, or the reason why there is none.

    Args:
        title: its heading, and the alternative text.
        png: the picture; None where drawing it failed.
        caption: a line below it.
        problem: why there is no picture, on one line.
    """

    title: str
    png: bytes | None
    caption: str = ""
    problem: str = ""

    @classmethod
    def drawn(cls, title: str, draw: Callable[[], Figure], caption: str = "") -> ReportFigure:
        """Draws a figure; one that fails costs itself alone.

        Args:
            title: its heading.
            draw: gives the figure.
            caption: a line below it.
        """
        try:
            buffer = io.BytesIO()
            draw().savefig(buffer, format="png")
        except (
            Exception,
            SystemExit,
        ) as error:  # whatever drawing raises, the rest of the report does not depend on it
            return cls(title, None, problem=one_line(error))
        return cls(title, buffer.getvalue(), caption)

    @property
    def base64(self) -> str:
        """The PNG in base64, for the page."""
        return base64.b64encode(self.png or b"").decode("ascii")

    @property
    def file_name(self) -> str:
        """The title as the name of a PNG file."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-") + ".png"


def write_report(
    path: Path,
    title: str,
    subtitle: str,
    tables: Sequence[ReportTable],
    figures: Sequence[ReportFigure],
    warnings: Sequence[str] = (),
    appendix: Sequence[ReportTable] = (),
    recipe: str = "",
) -> None:
    """Writes the report in one step, and its figures beside it, in ``figures/``.

    Args:
        path: the HTML file.
        title: its heading.
        subtitle: a line below the heading.
        tables: shown first.
        figures: shown after them, inside the file.
        warnings: shown on top.
        appendix: tables shown after the figures.
        recipe: the text of the recipe, folded away.
    """
    for each in figures:
        place = path.parent / "figures" / each.file_name
        if each.png is None:
            place.unlink(missing_ok=True)  # of an earlier report
        else:
            write_atomically(place, functools.partial(_write_bytes, each.png))
    environment = jinja2.Environment(loader=jinja2.PackageLoader("pml_ext.experiment.report", "."), autoescape=True)
    text = environment.get_template("report.html.jinja").render(
        title=title,
        subtitle=subtitle,
        tables=tables,
        figures=figures,
        warnings=warnings,
        appendix=appendix,
        recipe=recipe,
    )
    write_text(path, text)


def _write_bytes(data: bytes, path: Path) -> None:
    path.write_bytes(data)
