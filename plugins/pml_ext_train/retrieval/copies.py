"""The interface of the search for copies among images."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor

CopyKind = Literal["exact", "same", "near"]
"""Same bytes, same pixels, or nearly the same image."""


class FoundCopies(Protocol):
    """Groups of copies, each with the image to keep first."""

    @property
    def groups(self) -> Sequence[Any]:
        """The groups: ``kind``, ``images``, ``keep``, ``others`` (images to spare), ``space``, ``differing(image)``."""

    @property
    def skipped(self) -> Mapping[str, str]:
        """Why an image was not compared, by path."""

    def summary(self, noun: str = "image") -> str:
        """Return one line on what was found."""

    def to_spare(self) -> FoundCopies:
        """Return the groups without kept images (except the first), and without groups that are kept whole."""

    def as_json(self) -> dict[str, Any]:
        """Return the groups as ``pml-ext duplicates --json`` prints them."""

    def as_csv(self) -> str:
        """Return the groups as the table of ``pml-ext duplicates --csv``."""


class CopiesService(Protocol):
    """The service ``"copies"``."""

    def find(
        self,
        folder: Path,
        names: Sequence[str],
        radius: float | None = None,
        keep: str = "most-pixels",
        kinds: Sequence[CopyKind] = ("exact", "same", "near"),
        listener: Callable[[int], None] | None = None,
    ) -> FoundCopies:
        """Return the copies among image files of a folder; ``listener`` receives the number of read files."""

    def find_equal_vectors(self, ids: Sequence[str], embeddings: Tensor, radius: float | None = None) -> FoundCopies:
        """Return the copies among vectors ``[N, D]`` of length 1."""

    def keep_chosen(self, found: Any, kept: Mapping[int, Collection[str]]) -> FoundCopies:
        """Return found copies with other images kept; ``kept`` maps a group's index to paths."""
