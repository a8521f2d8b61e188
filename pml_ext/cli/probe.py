"""``pml-ext probe``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from .common import AsJson, DataFolder, OnDevice, Overrides, Progress, print_json, print_table, stdout


def probe(
    data_set: Annotated[
        str,
        typer.Argument(metavar="FOLDER", help="A folder of photographs, table:FILE.csv, or a data set."),
    ],
    trunks: Annotated[
        str, typer.Option(help="Names of trunks, separated by commas; NAME=WEIGHTS for a file, or a library's weights.")
    ],
    head: Annotated[
        str | None, typer.Option(metavar="RECIPE", help="Train this head on the features, for example cbml/frozen.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of heads for each trunk.")] = 1,
    out: Annotated[Path, typer.Option(help="The folder to write, or to go on in.")] = Path("runs/probe"),
    device: OnDevice = "auto",
    data: DataFolder = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Compare frozen trunks on your images, with and without a trained head; nothing finished is done again."""
    from ..experiment.probing import HEADS, probe, table_rows

    name = f"folder:{data_set}" if Path(data_set).is_dir() else data_set
    with Progress() as bar:
        named = [each for each in trunks.split(",") if each]
        probes = probe(name, named, out, head, seeds, device, data, overrides or (), bar)
    if as_json:
        print_json({"trunks": [dataclasses.asdict(each) for each in probes]})
        return
    rows = [row for each in probes for row in table_rows(each)]
    print_table(HEADS, rows, right=[number for number in range(1, len(HEADS)) if number != HEADS.index("%")])
    stdout().print(f"page: {out / 'probe.html'}")
