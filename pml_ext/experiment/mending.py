"""Files of a finished run that are no longer what the run wrote: what can be made again is, the others are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..errors import DataError
from ..files import write_json
from ..sums import SUMS, changed_files, check_unchanged, gone_files, has_all, write_sums
from .evaluation import write_neighbors
from .records import write_csv_files
from .view import View

METRICS, RECIPE, REPORT = "metrics.json", "recipe.toml", "report.html"
MODEL, LAST = "checkpoints/model.pt", "checkpoints/last.pt"
_OWN = ("checkpoints", "figures", METRICS, "network.json", "neighbors.npz", RECIPE, "records", REPORT, "tensorboard")
_AGAIN = ("figures/", REPORT)  # written with each report
_MADE_AGAIN = ("checkpoints/before.pt", "network.json", "neighbors.npz", RECIPE, *_AGAIN)


def sum_up(folder: Path, again: bool = False) -> None:
    """Writes ``SHA256SUMS`` of a finished run.

    Args:
        folder: of the run; its checksums are of what the run has written, of nothing that lies beside.
        again: whether there are checksums, of which the report's alone are taken anew.
    """
    mended = set(_changed(folder)) if again else set()
    write_sums(
        folder,
        _lies_beside,
        anew=lambda name: (
            not again or name.startswith(_AGAIN) or (name in mended and name.startswith((*_MADE_AGAIN, "records/")))
        ),
    )


def _lies_beside(name: str) -> bool:
    return name.partition("/")[0] not in _OWN or (name.startswith("figures/") and not name.endswith(".png"))


def _changed(folder: Path) -> list[str]:
    """What is not what the run wrote, and what is gone and is made again; checkpoints may be deleted."""
    again = [name for name in gone_files(folder) if name.startswith((*_MADE_AGAIN, "records/"))]
    gone = [name for name in again if name != REPORT and not name.startswith("checkpoints/")]
    return sorted({*changed_files(folder), *gone})


def to_mend(folder: Path) -> list[str]:
    """What a finished run lacks, and what has changed since, by paths in its folder.

    Raises:
        DataError: ``metrics.json`` is not what the run wrote, or neither the model nor a checkpoint of it is left.
    """
    check_unchanged(folder, METRICS)
    if not (folder / MODEL).exists():
        if not (folder / LAST).exists():
            raise DataError(
                f"{folder / MODEL} is gone, and {folder / LAST}, from which it could be made again, too; delete "
                f"{folder / METRICS} and train with --resume: training begins again with the first epoch"
            )
        return [MODEL]
    if (folder / REPORT).exists() and not (folder / SUMS).exists():  # killed before, or of an earlier version
        sum_up(folder)
    without = [] if has_all(folder, _lies_beside) else [SUMS]
    return [*([] if (folder / REPORT).exists() else [REPORT]), *without, *_changed(folder)]


def mend(view: View, warn: Callable[[str], None]) -> None:
    """Makes again what can be, before a report is drawn; the rest is told of.

    Args:
        view: of the finished run, with the tested weights in its networks.
        warn: called with a line, if something has changed.
    """
    folder, changed = view.folder, _changed(view.folder)
    tables = [name for name in changed if name.startswith("records/") and name.endswith(".csv")]
    if "records/logs.db" in changed:
        tables = []
    made = [name for name in changed if name.startswith((*_MADE_AGAIN, SUMS)) or name in tables]
    lost = [name for name in changed if name not in made]
    if made:
        warn(f"{folder}: not what {SUMS} says, and made again: {_listed(made)}")
    if lost:
        warn(
            f"{folder}: not what {SUMS} says, and left as it is, since a finished run does not need it: {_listed(lost)}"
        )
    if "checkpoints/before.pt" in changed:
        view.checkpoint("before").unlink()  # made again by who wants it
    if tables:
        write_csv_files(folder / "records")
    if "network.json" in changed:
        write_json(folder / "network.json", view.network_json())
    if "neighbors.npz" in changed:
        write_neighbors(view)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:4]) + " ..." * (len(names) > 4)
