"""``pml-ext labels``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from pml_ext.errors import ConfigError, DataError, counted, printable
from pml_ext_train.cli import AsJson, ComparedBy, Exclude, OnDevice, StoreFolder, print_result
from pml_ext_train.data import read_rows
from pml_ext_train.files import as_spelled

from .loading import listed_run

if TYPE_CHECKING:
    from ..collection.embedded import Embedded
    from ..select.suspicious_labels import SuspiciousLabels


def labels(
    run: Annotated[
        Path,
        Argument(
            metavar="FOLDER|RUN",
            help="A folder of images in folders of their classes, which gets a run of its own; or the folder of a "
            "finished run with an index.",
        ),
    ],
    count: Annotated[int, Option("-n", metavar="N", help="Number of images that are shown.")] = 50,
    csv: Annotated[
        Path | None,
        Option(
            "--csv",
            metavar="FILE",
            help="Write a table of all images, the most suspicious first. Correct its column class, and type: "
            "pml-ext fit FOLDER --labels FILE",
        ),
    ] = None,
    sheet: Annotated[Path | None, Option(metavar="FILE", help="Draw the shown images, a PNG file.")] = None,
    groups: Annotated[
        Path | None,
        Option(
            metavar="TABLE",
            help="A table with the columns path and group: images of one group, such as a burst, are not compared.",
        ),
    ] = None,
    exclude: Exclude = None,
    by: ComparedBy = None,
    store: StoreFolder = None,
    device: OnDevice = "auto",
    as_json: AsJson = False,
) -> None:
    """List images that look like another class than their label says.

    Examples:
        pml-ext labels photographs
        pml-ext labels runs/birds --csv labels.csv --sheet labels.png
    """
    if groups is not None and not groups.is_file():
        raise ConfigError(f"--groups {groups}: no such file; wanted a table with the columns path and group")
    trained, noun = listed_run(run, device, store, by, count, csv, sheet, exclude)
    embedded = trained.indexed_images()
    found = trained.suspicious_labels(None if groups is None else _groups(groups, embedded))
    summary = f"more similar to another class: {found.count} of {counted(len(found.rows), noun)}"
    if found.alone:
        summary += f"; {found.alone} alone in their class are left out"
    if csv is not None:
        found.write_table(csv)
    if sheet is not None:
        from ..select.selection_pages import write_suspicious

        write_suspicious(found, count, sheet, summary)
    columns = ["margin", "class", "likely", "id" if noun == "vector" else "path"]
    lines = [summary]
    if found.count > count:
        lines.insert(0, f"the first {count}; -n and --csv FILE list more")
    print_result(
        as_json, found.as_json(count), *lines, columns=columns, rows=_rows(found, min(count, found.count)), right=[0]
    )


def _rows(found: SuspiciousLabels, count: int) -> list[list[str]]:
    rows = []
    for place in range(count):
        texts = (found.classes[place], found.likely[place], found.paths[place])
        rows.append([f"{found.margins[place]:.3f}", *map(printable, texts)])
    return rows


def _groups(table: Path, embedded: Embedded) -> list[str]:
    """Return the group of each image, empty for images that the table leaves out."""
    columns, rows = read_rows(table, "--groups TABLE.csv")
    if not {"path", "group"} <= set(columns):
        raise DataError(f"{table}: found the columns {', '.join(columns) or 'none'}; wanted path and group")
    given = {as_spelled(embedded.folder, str(row["path"]).strip()): str(row["group"]).strip() for _, row in rows}
    known = set(embedded.paths)
    unknown = [path for path in given if path not in known]
    if unknown:
        raise DataError(f"{table}: {unknown[0]}: not indexed ({len(unknown)} of {len(given)} paths)")
    return [given.get(path, "") for path in embedded.paths]
