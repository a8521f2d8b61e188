"""``pml-ext cluster``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from pml_ext.errors import ConfigError, counted, printable
from pml_ext_train.cli import AsJson, ComparedBy, Exclude, OnDevice, StoreFolder, Workers, print_result

from .loading import RunOrImages, embedding_run, run_for_command

if TYPE_CHECKING:
    from ..cluster.clusters import Clusters


ClusteredFolder = Annotated[
    Path | None,
    Argument(metavar="FOLDER", help="A folder of images, sub-folders included (default: RUN, if it has images)."),
]


def cluster(
    run: RunOrImages,
    folder: ClusteredFolder = None,
    clusters: Annotated[str, Option(metavar="N|auto", help="Number (k-means), or auto (first neighbors).")] = "auto",
    min_size: Annotated[
        int, Option(metavar="N", help="Put images that are in no group of N or more aside, as the rest.")
    ] = 1,
    out: Annotated[Path | None, Option("--out", "-o", help="The folder to write (default RUN/clusters).")] = None,
    exclude: Exclude = None,
    by: ComparedBy = None,
    workers: Workers = None,
    store: StoreFolder = None,
    device: OnDevice = "auto",
    as_json: AsJson = False,
) -> None:
    """Cluster a folder's images into a CSV table and contact sheets; each image is in one cluster, or in the rest.

    Examples:
        pml-ext cluster photographs --min-size 3
        pml-ext cluster photographs --clusters 20 --out clusters
    """
    run, images = run_for_command(run, device, exclude)
    folder = folder or images
    if folder is None:
        raise ConfigError(f"wanted a folder of images to cluster; type: pml-ext cluster {run} FOLDER")
    number = int(clusters) if clusters.removeprefix("-").isdecimal() else clusters
    with embedding_run(run, folder, device, workers, store, by, exclude=exclude) as trained:
        result = trained.cluster(folder, number, out, min_size)
    sheets = {number: str(sheet) for number, sheet in result.sheets.items()}
    shown = [
        dataclasses.asdict(each) | {"rest": each.is_rest, "sheet": sheets.get(each.number)} for each in result.clusters
    ]
    about = {
        "folder": str(folder),
        "method": result.grouping.method,
        "table": str(result.table),
        "other_numbers": result.grouping.other_numbers,
        "clusters": shown,
    }
    rest = result.grouping.rest
    text = f"{counted(len(result.clusters) - bool(rest), 'cluster')} by {result.grouping.method}"
    if rest:
        text += f"; rest: {counted(rest, 'image')} in no group of {min_size} or more"
    if result.grouping.other_numbers:
        others = " or ".join(str(number) for number in result.grouping.other_numbers)
        text += f". For smaller or larger ones: --clusters {others}"
    lines = [text, f"table and {len(result.sheets)} contact sheets: {out or run / 'clusters'}"]
    columns, rows = _cluster_rows(result)
    right = [0, 1, 3] if "share" in columns else [0, 1]
    print_result(as_json, about, *lines, columns=columns, rows=rows, right=right)


def _cluster_rows(result: Clusters) -> tuple[list[str], list[list[str]]]:
    paths = result.grouping.embedded.paths
    with_classes = any(each.share is not None for each in result.clusters)
    columns = ["cluster", "images", *(["class", "share"] if with_classes else []), "for example"]
    rows = []
    for each in result.clusters:
        row = ["rest" if each.is_rest else str(each.number), str(len(each.members))]
        if with_classes:
            row += [printable(each.name) or "(no folder)", f"{each.share or 0:.0%}"]
        examples = ", ".join(paths[member] for member in each.members[:3])
        rows.append([*row, printable(examples)])
    return columns, rows
