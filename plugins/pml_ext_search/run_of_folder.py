"""A folder of images in place of a run: it has a run of its own, which is made on the way."""

from __future__ import annotations

from pathlib import Path

from pml_ext.tool import EmbeddingListener, FitService, service

from .reading import list_folder

_OF_RUNS = ("recipe.toml", "choice.json", "trials", "checkpoints")


def run_of(place: Path, device: str, listener: EmbeddingListener) -> tuple[Path, Path | None]:
    """Return the run that a path names, and None; of a folder of images, its run and the folder.

    A folder of images without a run gets one, without labels and without training.
    """
    if not place.is_dir() or any((place / name).exists() for name in _OF_RUNS) or not list_folder(place).names:
        return place, None
    fits: FitService = service("fit", f"{place}, a folder of images in place of a run,")
    return fits.run_of_folder(place, device, listener), place
