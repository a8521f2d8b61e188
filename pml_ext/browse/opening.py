"""From what was typed to collections: which index is looked at, and that there is one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import DataError
from ..retrieval import INDEX, Gallery, TrainedRun, load_run
from .collection import Collection

OWN = "browse"  # the folder in a run's folder with an index of another folder than `pml-ext index` took


def open_collections(
    runs: Sequence[str | Path],
    folder: str | Path | None = None,
    device: str = "auto",
    tell: Callable[[str], None] = warnings.warn,
) -> list[Collection]:
    """The collections of runs, all of one folder of images.

    The index of a run is taken where it is of this folder. Otherwise one is made: ``RUN/index`` where there is none,
    ``RUN/browse`` where ``RUN/index`` is of another folder and stays.

    Args:
        runs: their folders, the first one's collection first.
        folder: of the images; by default the one that the first run's index is of.
        device: where to compute.
        tell: called before a folder is indexed, which may take a while.

    Raises:
        DataError: no index and no folder, no such folder, or no readable image in it.
    """
    collections: list[Collection] = []
    for place in runs:
        run = load_run(place, device)
        gallery = run.gallery() if folder is None else _gallery_of(run, Path(folder), tell)
        folder = gallery.embedded.folder
        collections.append(Collection(_name(Path(place), collections), run, gallery))
    return collections


def _gallery_of(run: TrainedRun, folder: Path, tell: Callable[[str], None]) -> Gallery:
    free = None
    for name in (OWN, INDEX):
        try:
            gallery = run.gallery(run.folder / name)
        except DataError:  # none there, a damaged one, or one of an earlier state of the run: of no use to anybody
            free = run.folder / name
            continue
        if gallery.embedded.folder.resolve() == folder.resolve():
            return gallery
    place = free or run.folder / OWN
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    tell(f"{run.folder} has no index of {folder}: it is made, in {place}")
    return run.index(folder, place)


def _name(place: Path, others: Sequence[Collection]) -> str:
    """The run's folder's name; with the folder above it, where another run has the same."""
    resolved = place.resolve()
    if resolved.name not in [other.name for other in others]:
        return resolved.name
    return f"{resolved.parent.name}/{resolved.name}"
