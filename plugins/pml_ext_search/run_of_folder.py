"""Runs for folders of images that have none."""

from collections.abc import Sequence
from pathlib import Path

from pml_ext.errors import DataError
from pml_ext.registry import service
from pml_ext_train.data import FolderRules, list_folder
from pml_ext_train.retrieval import EmbeddingListener, FitService

from .embedding.reading import found_instead

_OF_RUNS = ("recipe.toml", "choice.json", "trials", "checkpoints")
_LEFT_OF_RUNS = ("metrics.json", "network.json", "collection")  # without the others, and without images


def run_of(
    place: Path, device: str, listener: EmbeddingListener, exclude: Sequence[str] | None = None
) -> tuple[Path, Path | None]:
    """The run that a path names, and the folder of images if the path is one.

    A folder of images gets a run, without labels and training, and without images that match a pattern of ``exclude``.
    DataError for anything else.
    """
    if not place.exists():
        raise DataError(f"{place}: no such folder; wanted the folder of a run, or of images")
    if not place.is_dir():
        raise DataError(f"{place}: a file, not the folder of a run or of images; type: pml-ext fit {place} --out RUN")
    if any((place / name).exists() for name in _OF_RUNS):
        return place, None
    listing = list_folder(place, FolderRules.of(exclude))
    if not listing.names:
        if any((place / name).exists() for name in _LEFT_OF_RUNS):
            return place, None
        raise DataError(
            f"{place}: neither a finished run nor images; wanted the folder of a run, or of .jpg, .png, ... "
            f"files{found_instead(listing)}"
        )
    fits: FitService = service("fit", f"{place}, a folder of images in place of a run,")
    return fits.run_of_folder(place, device, listener, exclude), place
