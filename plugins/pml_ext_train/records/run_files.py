"""The files of a run's folder: names, checksums, damage."""

import json
import shlex
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pml_ext.errors import DataError, first_of, shortened

from ..files import (
    SUMS,
    DamagedError,
    checksums,
    final_path,
    read_json,
    read_sums,
    read_toml,
    reading,
    replace_file,
    sha256_of,
    write_sums,
)

Metrics = dict[str, Any]
MODEL = "checkpoints/model.pt"
LAST = "checkpoints/last.pt"
METRICS = "metrics.json"
RECIPE = "recipe.toml"
REPORT = "report.html"
CHOICE = "choice.json"  # what a tool has chosen to train, before the run writes its recipe
TRIALS = "trials"  # a folder of a tool's trials, before it has chosen
NETWORK = "network.json"
FILES = ("checkpoints", "figures", METRICS, NETWORK, RECIPE, "records", REPORT, "tensorboard")
# What processes write under temporary names first.
WRITTEN = (METRICS, NETWORK, RECIPE, REPORT, "checkpoints/*.pt", "figures/*.png", "records/*.csv")
DERIVED = ("figures/", NETWORK, RECIPE, REPORT, SUMS)  # written again for a finished run


def no_finished_run(folder: Path, missing: str) -> DataError:
    """Return the error of a folder that lacks a file, with the command to resume."""
    command = f"pml-ext train RECIPE --out {shlex.quote(str(folder))}"
    if (folder / "checkpoints").is_dir():
        command += " --resume"
    return DataError(f"{folder}: no finished run (no {missing} in it); type: {command}")


def remove_run(folder: Path) -> None:
    """Remove a run's files, the recipe last, so that an interrupted removal can be resumed."""
    for name in sorted([*FILES, SUMS], key=RECIPE.__eq__):
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def write_run_json(folder: Path, name: str, value: Mapping[str, Any]) -> None:
    """Write a JSON file of a run, and its checksum."""
    text = json.dumps(value, indent=2) + "\n"
    replace_file(folder, name, lambda path: path.write_text(text, "utf-8", newline="\n"))


def write_checksums(folder: Path, lost: Collection[str] = ()) -> None:
    """Write checksums of all files but checkpoints and ``lost`` ones."""
    kept = {name for name in read_sums(folder) if name.startswith("checkpoints/")}
    kept.update(lost)
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if _is_of_a_run(folder, path)]
    write_sums(folder, [name for name in names if name not in kept], kept.__contains__)


def _is_of_a_run(folder: Path, path: Path) -> bool:
    place, *inner = path.relative_to(folder).parts
    if place not in FILES or (place == "figures" and inner and path.suffix != ".png"):
        return False
    return path.is_file() and final_path(path) is None


def check_unchanged(folder: Path, name: str, damaged_sums: bool = False) -> None:
    """Raise DataError if a file differs from its checksum.

    Damaged checksums raise it too, unless ``damaged_sums`` is set.
    """
    sums = read_sums(folder)
    if not (sums or damaged_sums) and (folder / SUMS).exists():
        raise DataError(f"{folder / SUMS}: damaged; {how_to_redo(folder, SUMS)}")
    wanted = sums.get(name)
    with reading(folder / name):
        differs = wanted is not None and sha256_of(folder / name) != wanted
    if differs:
        raise DataError(
            f"{folder / name}: not the file that the run wrote (see {folder / SUMS}); restore it, or "
            f"{how_to_redo(folder, name)}"
        )


def how_to_redo(folder: Path, name: str) -> str:
    """Return the remedy for a missing or damaged file."""
    again = f"repeat the command that trained it, with --out {shlex.quote(str(folder))} --resume"
    if name == METRICS:
        return f"delete it and {again}: the run is tested again"
    if name in (RECIPE, MODEL) or not (folder / METRICS).exists():
        return f"{again}: it is written again"
    return f"type: pml-ext report {shlex.quote(str(folder))}"


def tables_of_run(folder: Path) -> dict[str, Any]:
    """Return a run's recipe, with ``[run]``; DataError if it is damaged."""
    check_unchanged(folder, RECIPE, damaged_sums=True)
    try:
        return read_toml(folder / RECIPE, "run")
    except DamagedError as error:
        raise DataError(
            f"{folder / RECIPE}: not the recipe of a run ({shortened(error, 200)}); {how_to_redo(folder, RECIPE)}"
        ) from None


def is_finished(folder: Path) -> bool:
    """Return whether a run is finished."""
    return (folder / METRICS).exists() and REPORT in read_sums(folder)


def read_finished(folder: Path) -> tuple[Metrics, list[str]]:
    """Return the metrics of a finished run, and its missing and damaged files."""
    check_unchanged(folder, METRICS, damaged_sums=True)
    metrics = read_metrics(folder / METRICS)
    damaged = {name for name in checksums.missing_files(folder) if not name.startswith("checkpoints/")}
    damaged.update(name for name in (SUMS, MODEL) if not (folder / name).exists())
    damaged.update(checksums.changed_files(folder))
    if REPORT not in read_sums(folder):
        damaged.add(REPORT)
    if MODEL in damaged and not (folder / LAST).exists():
        raise DataError(
            f"{folder / MODEL} is missing or damaged, and {folder / LAST} is missing; delete "
            f"{folder / METRICS} and train with --resume to start over at the first epoch"
        )
    return metrics, sorted(damaged)


def read_metrics(path: Path) -> Metrics:
    """Read a ``metrics.json``; DataError if it is damaged."""
    try:
        metrics = read_json(path)
        missing = [name for name in ("recipe", "seed", "after") if name not in metrics]
        if missing:
            raise DamagedError(f"no {first_of(missing, 3)} in it")
        return metrics  # type: ignore[no-any-return]
    except DamagedError as error:
        raise DataError(
            f"{path}: not the metrics of a run ({shortened(error, 200)}); {how_to_redo(path.parent, METRICS)}"
        ) from None
