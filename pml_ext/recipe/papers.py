"""Papers: their tables as printed, one TOML file per paper, and the values that a recipe quotes."""

from __future__ import annotations

import functools
import itertools
import re
import tomllib
import warnings
from collections.abc import Mapping
from fnmatch import fnmatchcase
from importlib.resources.abc import Traversable
from typing import Any, Literal, NamedTuple, Self

from .. import registry
from ..errors import ConfigError, PluginWarning, UnknownNameError, needs_extra, shortened, unknown
from .build import located
from .schema import PaperTable, Table, problem_of

with needs_extra("train", "a recipe"):
    from pydantic import Field, ValidationError, model_validator

_METRICS = {"NMI": "nmi", "F1": "f1", "MAP@R": "map_at_r"}
Cell = str | int | float


class PrintedTable(Table):
    """A table of a paper as printed, or a figure, which has no rows."""

    title: str
    heads: list[str] = Field([])  # names of the first columns, whose texts together name a row
    columns: dict[str, list[str]] = Field({})  # names of the other columns, by the heading above: mostly a data set
    rows: list[list[Cell]] = Field([])  # texts of the heads, then values, "-" for none
    unit: Literal["percent", "fraction"] = "percent"
    data: str = ""  # the paper's name of the data set, where the headings are none
    metrics: dict[str, str] = Field({})  # a run's name of a column's metric, where the column's name does not say it
    suffixes: dict[str, str] = Field({})  # of metric names, in rows whose name contains a text
    phases: dict[str, str] = Field({})  # part of metrics.json that has the values of a row or heading, if not "after"
    note: str = ""  # misprints and other remarks
    without: str | dict[str, str] = Field({})  # why the table, or rows whose name matches a pattern, have no recipe
    small: str = ""  # number of another table, whose recipes on small data are used for this one too
    measured: list[str] = Field([])  # recipes whose results stand in the plugin's README

    @model_validator(mode="after")
    def _rows_fit(self) -> Self:
        heads, width = len(self.heads), len(self.heads) + sum(map(len, self.columns.values()))
        for row in self.rows:
            if len(row) != width:
                raise ValueError(f"found {len(row)} cells in the row {row[:heads]}, wanted {width}, one per column")
            if wrong := [cell for cell in row[heads:] if isinstance(cell, str) and cell != "-"]:
                raise ValueError(f"found {wrong[0]!r} in the row {row[:heads]}; wanted a number, or '-' for none")
        return self

    def row_names(self) -> list[str]:
        """Return the names of the rows in order: the texts of their heads."""
        return [", ".join(map(str, row[: len(self.heads)])) for row in self.rows]

    def chosen(self, row: str | list[str] | dict[str, str]) -> list[str]:
        """Return the names of the rows of ``[paper] row``: a name, several, or texts of heads; else ValueError."""
        names, by_heads = self.row_names(), isinstance(row, dict)
        wanted, known = [row] if isinstance(row, str) else list(row), self.heads if by_heads else names
        if absent := next((name for name in wanted if name not in known), None):
            raise ValueError(unknown("head of rows" if by_heads else "row", absent, known))
        if not isinstance(row, dict) or not row:
            return wanted
        heads = (dict(zip(self.heads, map(str, each), strict=False)) for each in self.rows)
        fitting = [name for name, own in zip(names, heads, strict=True) if row.items() <= own.items()]
        if not fitting:
            raise ValueError(unknown("row", ", ".join(row.values()), names))
        return fitting

    def values(self, row: str) -> list[tuple[str, str, Cell]]:
        """Return the values of a row, each after its heading and its column."""
        places = [(heading, name) for heading, names in self.columns.items() for name in names]
        cells = self.rows[self.row_names().index(row)][len(self.heads) :]
        return [(*place, cell) for place, cell in zip(places, cells, strict=True)]

    def reason(self, row: str = "") -> str:
        """Return why a row, or the whole table, has no recipe; "" where the file gives no reason."""
        if isinstance(self.without, str):
            return self.without
        patterns = ((pattern.replace("[", "[[]"), text) for pattern, text in self.without.items())
        return next((text for pattern, text in patterns if row and fnmatchcase(row, pattern)), "")

    def text(self, cell: Cell) -> str:
        """Format a cell as printed: 94.8 as 94.80 in a table whose numbers have two decimals."""
        if not isinstance(cell, float):
            return str(cell)
        decimals = max(len(str(each).partition(".")[2]) for row in self.rows for each in row if isinstance(each, float))
        return f"{cell:.{decimals}f}"

    def metric(self, row: str, column: str) -> str:
        """Return a run's name of a column's metric; "" where a run has none."""
        ranked = re.fullmatch(r"R@(\d+)", column)
        name = self.metrics.get(column) or (f"recall_at_{ranked[1]}" if ranked else _METRICS.get(column, ""))
        return name + "".join(after for text, after in self.suffixes.items() if text in row) if name else ""


class Printed(Table):
    """A paper's file."""

    title: str
    authors: str  # "Kan et al."
    year: int
    url: str = ""
    data: dict[str, str] = Field({})  # data sets of recipes, by the headings of columns
    tables: dict[str, PrintedTable] = Field(min_length=1)  # by their number, "7"; figures as "fig-4"


class Quoted(NamedTuple):
    """A value that a recipe quotes."""

    row: str
    heading: str
    column: str
    metric: str  # name of the metric in a run; "" if a run lacks it
    phase: str
    value: float  # as a fraction
    text: str  # as printed


def papers() -> dict[str, Printed]:
    """Return the papers of the hook ``pml_ext_papers`` by name, warning of unreadable files."""
    read = {}
    for name, file in registry.factories("paper").items():
        try:
            read[name] = _parsed(file)
        except ConfigError as error:
            warnings.warn(f"the paper {name!r} is left out: {error}", PluginWarning, stacklevel=2)
    return read


def printed(name: str) -> tuple[Printed, PrintedTable] | None:
    """Return a table, ``"cbml/7"``, and its paper; None if no paper has the name, for example ``"Table 7"``."""
    paper, _, number = name.partition("/")
    files = registry.factories("paper")
    if paper not in files or not number:
        return None
    read = _parsed(files[paper])
    if number not in read.tables:
        raise UnknownNameError(unknown(f"table of {paper}", number, read.tables))
    return read, read.tables[number]


def quoted(paper: PaperTable | None, data: str) -> list[Quoted]:
    """Return the values that a recipe with this ``[paper]`` and data set quotes; none without a table or a row."""
    if paper is None:
        return []
    with located("paper.table"):
        place = printed(paper.table)
    if place is None:
        if key := next((key for key in ("row", "column") if getattr(paper, key)), ""):
            known = [f"{name}/{number}" for name, read in papers().items() for number in read.tables]
            raise ConfigError(f"paper.{key}: goes with the table of a paper; {unknown('table', paper.table, known)}")
        return []
    read, table = place
    with located(f"paper.row: {paper.table}"):
        rows = table.chosen(paper.row)
    own = [heading for heading in table.columns if read.data.get(heading) == data]
    if paper.column:
        if paper.column not in table.columns:
            raise ConfigError(f"paper.column: {unknown(f'column of {paper.table}', paper.column, table.columns)}")
        own = [paper.column]
    elif not own and paper.row and not table.data and len(table.columns) > 1:
        headings = ", ".join(table.columns)
        raise ConfigError(f"paper.column: missing; {paper.table} has {headings}, none of which is {data}")
    values = []
    for row, (heading, column, cell) in ((each, value) for each in rows for value in table.values(each)):
        if heading in (own or table.columns) and not isinstance(cell, str):
            phase = table.phases.get(heading) or table.phases.get(row) or "after"
            fraction = cell / 100 if table.unit == "percent" else cell
            metric = table.metric(row, column)
            values.append(Quoted(row, heading, column, metric, phase, fraction, table.text(cell)))
    return values


def is_full(name: str, data: str) -> bool:
    """Return whether a data set is one of the paper's whose table has this name."""
    place = printed(name)
    return place is not None and data in place[0].data.values()


def paper_values(paper: Mapping[str, Any], data: str) -> tuple[list[Quoted], bool]:
    """Return the values that a run's ``[paper]`` and data set quote, and whether that is the paper's own data."""
    table = PaperTable.model_validate(paper)
    return quoted(table, data), is_full(table.table, data)


def texts(values: list[Quoted]) -> list[str]:
    """Format values for reading, one line per row and heading: ``"CBML, CUB: R@1 63.8, R@2 74.8"``."""
    lines = []
    for (row, heading), each in itertools.groupby(values, key=lambda value: value[:2]):
        lines.append(f"{row}, {heading}: " + ", ".join(f"{value.column} {value.text}" for value in each))
    return lines


def _parsed(file: Traversable) -> Printed:
    try:
        return _printed_of(file.read_text("utf-8"))
    except ValueError as error:  # also of bytes that are not UTF-8
        problem = problem_of(error) if isinstance(error, ValidationError) else f"not valid TOML: {error}"
        raise ConfigError(shortened(f"{file}: {problem}")) from None


@functools.lru_cache(maxsize=64)
def _printed_of(text: str) -> Printed:
    return Printed.model_validate(tomllib.loads(text))
