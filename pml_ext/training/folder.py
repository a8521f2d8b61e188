"""The files of a run's folder."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..files import final_path
from ..files.checksums import SUMS, read_sums, replace_file, write_sums

METRICS = "metrics.json"
RECIPE = "recipe.toml"
REPORT = "report.html"
CHOICE = "choice.json"  # what pml-ext train --images has chosen, from the end of its trials on
NETWORK = "network.json"
FILES = ("checkpoints", "figures", METRICS, NETWORK, RECIPE, "records", REPORT, "tensorboard")
# What processes write under temporary names first.
WRITTEN = (METRICS, NETWORK, RECIPE, REPORT, "checkpoints/*.pt", "figures/*.png", "records/*.csv")
DERIVED = ("figures/", NETWORK, RECIPE, REPORT, SUMS)  # written again for a finished run


def no_finished_run(folder: Path, missing: str) -> DataError:
    """Return the error of a folder that lacks a file of a finished run; an unfinished run can be resumed."""
    command = f"pml-ext train RECIPE --out {folder}"
    if (folder / "checkpoints").is_dir():
        command += " --resume"
    return DataError(f"{folder}: no finished run (no {missing} in it); type: {command}")


def write_json(folder: Path, name: str, value: Mapping[str, Any]) -> None:
    """Write a JSON file of a run, and its checksum."""
    text = json.dumps(value, indent=2) + "\n"
    replace_file(folder, name, lambda path: path.write_text(text, "utf-8"))


def write_checksums(folder: Path, lost: Collection[str] = ()) -> None:
    """Write the checksums of a run's files; those of checkpoints and of ``lost`` files stay as they are."""
    kept = {name for name in read_sums(folder) if name.startswith("checkpoints/")}
    kept.update(lost)
    names = []
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if name not in kept and _is_of_a_run(path, name):
            names.append(name)
    write_sums(folder, names, kept.__contains__)


def _is_of_a_run(path: Path, name: str) -> bool:
    """Return whether a run has written a file; ``name`` is relative to the run's folder."""
    if name.partition("/")[0] not in FILES:
        return False
    if name.startswith("figures/") and path.suffix != ".png":
        return False
    return path.is_file() and final_path(path) is None
