"""The service ``"copies"`` for other tools."""

from collections.abc import Callable, Sequence
from pathlib import Path

from pml_ext_train.retrieval import CopyKind

from .choices import keep_chosen as keep_chosen
from .duplicates import find_duplicates, find_equal_vectors as find_equal_vectors
from .groups import KINDS, Duplicates
from .image_files import ImageFiles


def find(
    folder: Path,
    names: Sequence[str],
    radius: float | None = None,
    keep: str = "most-pixels",
    kinds: Sequence[CopyKind] = KINDS,
    listener: Callable[[int], None] | None = None,
) -> Duplicates:
    """Find the copies in a folder; see :func:`pml_ext_copies.duplicates.find_duplicates`."""
    return find_duplicates(ImageFiles(folder, names), radius, keep, kinds, listener)
