"""Copies among images, as the tool that finds them shows them to another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor

CopyKind = Literal["exact", "same", "near"]
"""Copies of the same bytes, of the same pixels, and near ones."""


class FoundCopies(Protocol):
    """Groups of copies, each with the image to keep first."""

    @property
    def groups(self) -> Sequence[Any]:
        """The groups: ``kind``, ``images``, ``keep``, ``others`` (images to spare), ``space``, ``differing(image)``."""

    @property
    def skipped(self) -> Mapping[str, str]:
        """Why an image was not compared, by path."""

    def summary(self, noun: str = "image") -> str:
        """Return what was found, in a line."""

    def to_spare(self) -> FoundCopies:
        """Return the groups without images that are kept beside the first; without groups that are kept whole."""

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
        """Return the copies among image files of a folder; ``listener`` is called with the number of read ones."""

    def find_equal_vectors(self, ids: Sequence[str], embeddings: Tensor, radius: float | None = None) -> FoundCopies:
        """Return the copies among vectors ``[N, D]`` of length 1."""

    def keep_chosen(self, found: Any, kept: Mapping[int, Collection[str]]) -> FoundCopies:
        """Return found copies with other images kept: paths of a group, by its place."""
