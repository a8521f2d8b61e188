"""A run's recipe and metrics, and its damaged files."""

from pathlib import Path
from typing import Any

from pml_ext.errors import DataError, first_of, shortened

from ..files import SUMS, DamagedError, checksums, read_json, read_toml
from .run_folder import METRICS, RECIPE, REPORT, check_unchanged, how_to_redo

Metrics = dict[str, Any]
MODEL = "checkpoints/model.pt"
LAST = "checkpoints/last.pt"


def tables_of_run(folder: Path) -> dict[str, Any]:
    """Return a run's recipe, with ``[run]``; DataError if it is damaged."""
    check_against_sums(folder, RECIPE)
    try:
        return read_toml(folder / RECIPE, "run")
    except DamagedError as error:
        raise DataError(
            f"{folder / RECIPE}: not the recipe of a run ({shortened(error, 200)}); {how_to_redo(folder, RECIPE)}"
        ) from None


def check_against_sums(folder: Path, name: str) -> None:
    """Like :func:`check_unchanged`, but damaged checksums are ignored."""
    if checksums.read_sums(folder):
        check_unchanged(folder, name)


def is_finished(folder: Path) -> bool:
    """Return whether a run is finished."""
    return (folder / METRICS).exists() and REPORT in checksums.read_sums(folder)


def read_finished(folder: Path) -> tuple[Metrics, list[str]]:
    """Return the metrics of a finished run, and its missing and damaged files."""
    check_against_sums(folder, METRICS)
    metrics = read_metrics(folder / METRICS)
    damaged = {name for name in checksums.missing_files(folder) if not name.startswith("checkpoints/")}
    damaged.update(name for name in (SUMS, MODEL) if not (folder / name).exists())
    damaged.update(checksums.changed_files(folder))
    if REPORT not in checksums.read_sums(folder):
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
