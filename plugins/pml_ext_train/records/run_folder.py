"""The files of a run's folder."""

import json
import shlex
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pml_ext.errors import DataError

from ..files import SUMS, final_path, read_sums, reading, replace_file, sha256_of, write_sums

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


def check_unchanged(folder: Path, name: str) -> None:
    """Raise DataError if a file differs from its checksum."""
    sums = read_sums(folder)
    if not sums and (folder / SUMS).exists():
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
    if name in (RECIPE, "checkpoints/model.pt") or not (folder / METRICS).exists():
        return f"{again}: it is written again"
    return f"type: pml-ext report {shlex.quote(str(folder))}"
