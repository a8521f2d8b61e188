"""The interface of the search for copies."""

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
        """Groups with ``kind``, ``images``, ``keep``, ``others``, ``space``, ``differing(image)``."""

    @property
    def skipped(self) -> Mapping[str, str]:
        """Reason by path of each image that was not compared."""

    def summary(self, noun: str = "image") -> str:
        """One line on what was found."""

    def to_spare(self) -> "FoundCopies":
        """The groups with only the first kept image."""

    def as_json(self) -> dict[str, Any]:
        """The groups for ``pml-ext duplicates --json``."""

    def as_csv(self) -> str:
        """The groups for ``pml-ext duplicates --csv``."""


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
        """Find copies among image files; ``listener`` receives the number of read files."""

    def find_equal_vectors(self, ids: Sequence[str], embeddings: "Tensor", radius: float | None = None) -> FoundCopies:
        """Find copies among vectors ``[N, D]`` of length 1."""

    def keep_chosen(self, found: Any, kept: Mapping[int, Collection[str]]) -> FoundCopies:
        """Keep other images; ``kept`` maps a group's index to paths."""
