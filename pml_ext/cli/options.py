"""Options that several commands have."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Device(StrEnum):
    """A device to compute on."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"
    xpu = "xpu"


class Metric(StrEnum):
    """What distances are of."""

    euclidean = "euclidean"
    learned = "learned"


RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run (pml-ext train).")]
ImageFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of images, sub-folders included.")]
DataFolder = Annotated[
    Path | None, typer.Option("--data", help="The folder of the data, where the data set wants one.")
]
OnDevice = Annotated[Device, typer.Option("--device", help="Where to compute.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON on stdout.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the recipe; repeatable.")
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Processes that read images (default: none for fewer than 256, else the number of processors, up to 8)."
    ),
]
StoreFolder = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="FOLDER",
        help="The collection: where embeddings are kept, so that none is computed twice (default RUN/collection).",
    ),
]
