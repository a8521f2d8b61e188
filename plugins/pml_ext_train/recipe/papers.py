"""Papers' tables as printed, the values that recipes quote, and the recipes of rows."""

import contextlib
import functools
import itertools
import re
import tomllib
import warnings
from collections.abc import Mapping
from fnmatch import fnmatchcase
from importlib.resources.abc import Traversable
from typing import Any, Literal, NamedTuple, Self

from pml_ext import registry
from pml_ext.errors import ConfigError, PluginWarning, UnknownNameError, needs_extra, shortened, unknown

from .conversion import located
from .read import variant_tables
from .schema import PaperTable, Table, wrong_setting
from .sweep import Tables
from .tables import name_or_value

with needs_extra("train", "a recipe"):
    from pydantic import Field, ValidationError, model_validator

_METRICS = {"NMI": "nmi", "F1": "f1", "MAP@R": "map_at_r"}
Cell = str | int | float
_VariantsByTable = dict[str, dict[str, dict[str, Tables]]]  # by table ("cbml/7"), recipe and variant


class PrintedTable(Table):
    """A table of a paper as printed, or a figure, which has no rows."""

    title: str
    heads: list[str] = Field([])  # names of the first columns, whose texts together name a row
    columns: dict[str, list[str]] = Field({})  # names of the other columns, by the heading above: mostly a data set
    rows: list[list[Cell]] = Field([])  # texts of the heads, then values, "-" for none
    unit: Literal["percent", "fraction"] = "percent"
    data: str = ""  # the paper's name of the data set, if the headings do not name one
    metrics: dict[str, str] = Field({})  # a run's name of a column's metric, where the column's name does not say it
    suffixes: dict[str, str] = Field({})  # of metric names, in rows whose name contains a text
    phases: dict[str, str] = Field({})  # part of metrics.json that has the values of a row or heading, if not "after"
    note: str = ""  # misprints and other remarks
    without: str | dict[str, str] = Field({})  # why the table, or rows whose name matches a pattern, have no recipe
    small: str = ""  # number of another table, whose recipes on small data are used for this one too
    measured: list[str] = Field([])  # recipes whose results stand in the plugin's README

    @model_validator(mode="after")
    def _rows_fit(self) -> Self:
        heads = len(self.heads)
        width = heads + sum(len(names) for names in self.columns.values())
        for row in self.rows:
            if len(row) != width:
                raise ConfigError(f"found {len(row)} cells in the row {row[:heads]}, wanted {width}, one per column")
            for cell in row[heads:]:
                if isinstance(cell, str) and cell != "-":
                    raise ConfigError(f"found {cell!r} in the row {row[:heads]}; wanted a number, or '-' for none")
        return self

    def row_names(self) -> list[str]:
        """Return the rows' names: the texts of their heads."""
        return [", ".join(map(str, row[: len(self.heads)])) for row in self.rows]

    def chosen(self, row: str | list[str] | dict[str, str]) -> list[str]:
        """Return the row names of ``[paper] row``; ValueError for an unknown one."""
        if isinstance(row, dict):
            return self._rows_with_heads(row)
        wanted = [row] if isinstance(row, str) else list(row)
        names = self.row_names()
        for name in wanted:
            if name not in names:
                raise ValueError(unknown("row", name, names))
        return wanted

    def _rows_with_heads(self, texts: dict[str, str]) -> list[str]:
        for head in texts:
            if head not in self.heads:
                raise ValueError(unknown("head of rows", head, self.heads))
        fitting = []
        names = self.row_names()
        for name, row in zip(names, self.rows, strict=True):
            heads = dict(zip(self.heads, map(str, row), strict=False))
            if texts.items() <= heads.items():
                fitting.append(name)
        if not fitting:
            raise ValueError(unknown("row", ", ".join(texts.values()), names))
        return fitting if texts else []

    def values(self, row: str) -> list[tuple[str, str, Cell]]:
        """Return heading, column and value of a row's cells."""
        number = self.row_names().index(row)
        cells = iter(self.rows[number][len(self.heads) :])
        values: list[tuple[str, str, Cell]] = []
        for heading, names in self.columns.items():
            values += [(heading, name, next(cells)) for name in names]
        return values

    def reason(self, row: str = "") -> str:
        """Return why a row, or the table, has no recipe; may be empty."""
        if isinstance(self.without, str):
            return self.without
        reasons = [text for pattern, text in self.without.items() if fnmatchcase(row, pattern.replace("[", "[[]"))]
        return reasons[0] if row and reasons else ""

    def text(self, cell: Cell) -> str:
        """Format a cell with the table's number of decimals."""
        if not isinstance(cell, float):
            return str(cell)
        numbers = [str(each) for each in itertools.chain.from_iterable(self.rows) if isinstance(each, float)]
        decimals = max((len(number.partition(".")[2]) for number in numbers), default=0)
        return f"{cell:.{decimals}f}"

    def metric(self, row: str, column: str) -> str:
        """Return the run's metric of a column, or an empty string."""
        ranked = re.fullmatch(r"R@(\d+)", column)
        usual = f"recall_at_{ranked[1]}" if ranked else _METRICS.get(column, "")
        name = self.metrics.get(column) or usual
        suffixes = [suffix for text, suffix in self.suffixes.items() if text in row]
        return name + "".join(suffixes) if name else ""


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
    """Return the papers of plugins by name; warn about unreadable files."""
    read = {}
    for name, file in registry.values("paper").items():
        try:
            read[name] = _parsed(file)
        except ConfigError as error:
            warnings.warn(f"the paper {name!r} is left out: {error}", PluginWarning, stacklevel=2)
    return read


def printed(name: str) -> tuple[Printed, PrintedTable] | None:
    """Return paper and table of ``"cbml/7"``, or None."""
    paper, _, number = name.partition("/")
    files = registry.values("paper")
    if paper not in files or not number:
        return None
    read = _parsed(files[paper])
    if number not in read.tables:
        raise UnknownNameError(unknown(f"table of {paper}", number, read.tables))
    return read, read.tables[number]


def quoted(paper: PaperTable | None, data: str) -> list[Quoted]:
    """Return the values quoted by ``[paper]`` for a data set."""
    if paper is None:
        return []
    with located("paper.table"):
        found = printed(paper.table)
    if found is None:
        for key in ("row", "column"):
            if getattr(paper, key):
                problem = unknown("table", paper.table, names_of_tables())
                raise ConfigError(f"goes with the table of a paper; {problem}", key=f"paper.{key}")
        return []
    read, table = found
    with located(f"paper.row: {paper.table}"):
        rows = table.chosen(paper.row)
    headings = _quoted_headings(paper, read, table, data)

    values = []
    for row in rows:
        for heading, column, cell in table.values(row):
            if heading not in headings or isinstance(cell, str):
                continue
            value = Quoted(
                row=row,
                heading=heading,
                column=column,
                metric=table.metric(row, column),
                phase=table.phases.get(heading) or table.phases.get(row) or "after",
                value=cell / 100 if table.unit == "percent" else cell,
                text=table.text(cell),
            )
            values.append(value)
    return values


def _quoted_headings(paper: PaperTable, read: Printed, table: PrintedTable, data: str) -> list[str]:
    """Return the headings to quote: the named one, the data set's, or all."""
    if paper.column:
        if paper.column not in table.columns:
            raise ConfigError(f"{unknown(f'column of {paper.table}', paper.column, table.columns)}", key="paper.column")
        return [paper.column]
    of_data = [heading for heading in table.columns if read.data.get(heading) == data]
    if not of_data and paper.row and not table.data and len(table.columns) > 1:
        headings = ", ".join(table.columns)
        raise ConfigError(f"missing; {paper.table} has {headings}, but not {data}", key="paper.column")
    return of_data or list(table.columns)


def names_of_tables() -> list[str]:
    """Return the names of all papers' tables: ``"cbml/7"``."""
    names = []
    for paper, read in papers().items():
        names += [f"{paper}/{number}" for number in read.tables]
    return names


def is_full(name: str, data: str) -> bool:
    """Return whether the paper of a table used a data set."""
    found = printed(name)
    return found is not None and data in found[0].data.values()


def paper_values(paper: Mapping[str, Any], data: str) -> tuple[list[Quoted], bool]:
    """Return the quoted values, and whether the data are the paper's own."""
    table = PaperTable.model_validate(paper)
    return quoted(table, data), is_full(table.table, data)


def tables_of_papers() -> list[dict[str, Any]]:
    """Return all papers' tables with their recipes, or with the reason for having none."""
    variants: _VariantsByTable = {}
    for recipe in registry.recipes():
        with contextlib.suppress(ConfigError, UnknownNameError):  # reported when the recipe is loaded
            for variant, tables in variant_tables(recipe).items():
                by_recipe = variants.setdefault(str(name_or_value("paper.table", tables)), {})
                by_recipe.setdefault(recipe, {})[variant] = tables
    entries: list[dict[str, Any]] = []
    for name, paper in papers().items():
        entries += [_entry_of_table(name, paper, number, variants) for number in paper.tables]
    return entries


def _entry_of_table(paper_name: str, paper: Printed, number: str, variants: _VariantsByTable) -> dict[str, Any]:
    table = paper.tables[number]
    name = f"{paper_name}/{number}"
    recipes = _by_scale(name, variants.get(name, {}))
    if table.small and not recipes["small"]:
        other = f"{paper_name}/{table.small}"
        recipes["small"] = _by_scale(other, variants.get(other, {}))["small"]

    reason = table.reason() or "; ".join(filter(None, dict.fromkeys(map(table.reason, table.row_names()))))
    return {
        "name": name,
        "title": table.title,
        "paper": f"{paper.authors} ({paper.year})",
        "recipes": recipes,
        "rows": _rows(table, variants.get(name, {})),
        "measured": table.measured,
        "reason": "" if any(recipes.values()) else reason,
    }


def _rows(table: PrintedTable, recipes: dict[str, dict[str, Tables]]) -> list[dict[str, Any]]:
    """Return a table's rows with their variants, or with the reason for having no variant."""
    trained: dict[str, list[str]] = {row: [] for row in table.row_names()}
    for variants in recipes.values():
        for variant, tables in variants.items():
            with contextlib.suppress(ValueError, TypeError, AttributeError):  # reported when the recipe is loaded
                for row in table.chosen(tables["paper"].get("row", [])):
                    trained[row].append(variant)
    return [
        {"row": row, "recipes": names, "reason": "" if names else table.reason(row)} for row, names in trained.items()
    ]


def _by_scale(table: str, recipes: dict[str, dict[str, Tables]]) -> dict[str, list[str]]:
    """Return the recipes on the paper's data (``full``) and on other data (``small``)."""
    by_scale: dict[str, list[str]] = {"full": [], "small": []}
    for recipe, variants in recipes.items():
        data = str(name_or_value("data", next(iter(variants.values()))))
        by_scale["full" if is_full(table, data) else "small"].append(recipe)
    return by_scale


def texts(values: list[Quoted]) -> list[str]:
    """Format values, one line per row and heading: ``"CBML, CUB: R@1 63.8, R@2 74.8"``."""
    lines = []
    for (row, heading), group in itertools.groupby(values, key=lambda value: (value.row, value.heading)):
        columns = ", ".join(f"{value.column} {value.text}" for value in group)
        lines.append(f"{row}, {heading}: {columns}")
    return lines


def _parsed(file: Traversable) -> Printed:
    try:
        return _printed_of(file.read_text("utf-8"))
    except ValidationError as error:
        raise ConfigError(shortened(f"{file}: {wrong_setting(error)}")) from None
    except ValueError as error:  # also of bytes that are not UTF-8
        raise ConfigError(shortened(f"{file}: not valid TOML: {error}")) from None


@functools.lru_cache(maxsize=64)
def _printed_of(text: str) -> Printed:
    return Printed.model_validate(tomllib.loads(text))
