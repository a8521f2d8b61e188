"""``pml-ext select``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from pml_ext.errors import counted, printable
from pml_ext_train.cli import AsJson, ComparedBy, Exclude, OnDevice, StoreFolder, print_result

from .loading import listed_run

if TYPE_CHECKING:
    from ..select.selection import Selection

_SHOWN = 200  # rows of the table in a terminal


def select(
    run: Annotated[
        Path,
        Argument(
            metavar="FOLDER|RUN",
            help="A folder of images, which gets a run of its own; or the folder of a finished run, whose index is "
            "selected from.",
        ),
    ],
    count: Annotated[int, Option("-n", metavar="N", help="Number of images; of central ones, of each class.")] = 10,
    kind: Annotated[
        Literal["distinct", "outliers", "central"],
        Option(
            help="distinct: each the farthest from those before it; outliers: the farthest from their fifth nearest "
            "image; central: the nearest to the center of their class, or of all."
        ),
    ] = "distinct",
    csv: Annotated[Path | None, Option("--csv", metavar="FILE", help="Write a table, a row for each image.")] = None,
    sheet: Annotated[Path | None, Option(metavar="FILE", help="Draw a contact sheet, a PNG file.")] = None,
    exclude: Exclude = None,
    by: ComparedBy = None,
    store: StoreFolder = None,
    device: OnDevice = "auto",
    as_json: AsJson = False,
) -> None:
    """Select images that represent a folder, or are rare in it: distinct ones, outliers, or centers of classes.

    Examples:
        pml-ext select photographs -n 50
        pml-ext select runs/birds -n 50
    """
    trained, noun = listed_run(run, device, store, by, count, csv, sheet, exclude)
    found = trained.select(count, kind)
    summary = _summary(found, noun)
    if csv is not None or sheet is not None:
        from ..select import selection_pages as pages

        if csv is not None:
            pages.write_table(found, csv)
        if sheet is not None:
            pages.write_sheet(found, sheet, summary.partition(":")[0])
    lines = [summary]
    columns, rows = _table(found, noun)
    if len(rows) > _SHOWN:
        lines.insert(0, f"the first {_SHOWN} of {len(rows)} rows; --csv FILE and --json have all")
    print_result(
        as_json,
        found.as_json(),
        *lines,
        columns=columns,
        rows=rows[:_SHOWN],
        right=[0, 1],
    )


def _summary(found: Selection, noun: str) -> str:
    from ..select.selection import NEIGHBORS

    of_all = f"{len(found.rows)} of {counted(len(found.embedded.paths), noun)}"
    if found.kind == "distinct":
        copies = found.distances[1:].count(0)
        text = f"{of_all}, the most distinct: every {noun} is within {found.covered:.3g} of one of them"
        if copies:
            text += f"; the last {copies} are copies, at a distance of 0"
        return text
    if found.kind == "outliers":
        neighbor = f"fifth nearest {noun}"
        if len(found.embedded.paths) <= NEIGHBORS:
            neighbor = f"farthest {noun}, since there are so few"
        return f"{of_all}, the farthest from the others: distances are to the {neighbor}"
    classes = {name for name in found.classes if name}
    if not classes:
        return f"{of_all}, the nearest to the center of all: no {noun} has a class"
    centers = "center of 1 class" if len(classes) == 1 else f"centers of {len(classes)} classes"
    text = f"{of_all}, the nearest to the {centers}"
    if found.without_class:
        text += f": {counted(found.without_class, noun)} without a class are left out"
    return text


def _table(found: Selection, noun: str) -> tuple[list[str], list[list[str]]]:
    columns = ["", "distance", "id" if noun == "vector" else "path"]
    with_classes = any(found.classes)
    if with_classes:
        columns.insert(2, "class")
    rows = []
    for path, name, rank, distance in zip(found.paths, found.classes, found.ranks, found.distances, strict=True):
        row = [str(rank), "" if distance is None else f"{distance:.3f}", printable(path)]
        if with_classes:
            row.insert(2, printable(name))
        rows.append(row)
    return columns, rows
