"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

if TYPE_CHECKING:
    from ..recipe import Override

Device = Literal["auto", "cpu", "cuda", "mps", "xpu"]
RunFolder = Annotated[Path, Argument(metavar="RUN", help="The folder of a finished run (pml-ext train).")]
ImageFolder = Annotated[Path, Argument(metavar="FOLDER", help="A folder of images, sub-folders included.")]
DataFolder = Annotated[Path | None, Option("--data", help="The folder of the data set's files, if it needs one.")]
OnDevice = Annotated[Device, Option("--device", help="The device to compute on.")]
AsJson = Annotated[bool, Option("--json", help="Print JSON.")]
Exclude = Annotated[
    list[str] | None,
    Option(
        metavar="PATTERN",
        help="Leave out files and folders that match, as in .gitignore, for example thumbs/; repeatable. It is kept "
        "with the run and its index; '!*' brings everything back.",
    ),
]
ComparedBy = Annotated[
    Literal["embeddings", "features"] | None,
    Option(
        "--by",
        help=(
            "Compare by embeddings, or by features of the trunk, before the head (default: as in the "
            "collection; embeddings for a new one)."
        ),
    ),
]
Verbose = Annotated[bool, Option("--verbose", "-v", help="Show all details, with tracebacks.")]
Workers = Annotated[
    int | None,
    Option(help="Processes that read images (default: none below 1,000 images, else one per processor, up to 8)."),
]
StoreFolder = Annotated[
    Path | None, Option("--store", metavar="FOLDER", help="The collection of embeddings (default RUN/collection).")
]
RayAddress = Annotated[str | None, Option(help="The cluster for --on ray (default: start Ray on this machine).")]


def _parsed(texts: list[str] | None) -> list[Any]:  # typer evaluates annotations
    """Return the overrides of ``--set``; typer's own parsers would change the errors."""
    from ..recipe.override import parse_override

    return [parse_override(text, "--set") for text in texts or ()]


_SET = Option(
    "--set",
    metavar="KEY=VALUE",
    help="Override a key of the recipe, such as loss.margin=0.1; repeatable.",
    callback=_parsed,
)
if TYPE_CHECKING:
    Overrides = Annotated[list[Override] | None, _SET]
else:
    Overrides = Annotated[list[str] | None, _SET]  # what typer reads; commands get what _parsed returns


def overrides_of_exclude(patterns: list[str] | None) -> list[Override]:
    """The override that leaves files out of a data set; empty without patterns."""
    from ..recipe import Override

    if not patterns:
        return []
    return [Override("data.exclude", patterns, " ".join(f"--exclude {pattern}" for pattern in patterns))]
