"""Interfaces of trained runs that search images, and of what makes them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .images import EmbeddedImages, ImageClusters
from .mirror import Mirror

if TYPE_CHECKING:
    from torch import Tensor


class EmbeddingListener(Protocol):
    """Receives progress."""

    def step(self, text: str) -> None:
        """A step begins."""

    def iteration(self, epoch: int, done: int, iterations: int, loss: float) -> None:
        """An iteration is done; ``loss`` is its loss."""

    def warn(self, text: str) -> None:
        """A warning; the run continues."""

    def embedding(self, now: Any) -> None:
        """Progress over images: ``done``, ``images``, ``rate`` and ``seconds_left``."""


class FitService(Protocol):
    """The service ``"fit"``."""

    def run_of_folder(
        self, folder: Path, device: str, listener: EmbeddingListener, exclude: Sequence[str] | None = None
    ) -> Path:
        """The run of a folder of images, or a new one without training; DataError without images."""


class RetrievalWarning(UserWarning):
    """A request was only partly met, for example with fewer answers."""


class SearchedRun(Protocol):
    """A trained run that embeds images, and may have an index."""

    @property
    def folder(self) -> Path:
        """The run's folder."""

    @property
    def place(self) -> Path:
        """Folder of its collection."""

    def check_images(self) -> None:
        """Raise ConfigError for a run of vectors."""

    def embed(self, images: Any, batch_size: int = 256) -> "Tensor":
        """Embed one or several images: ``[N, D]``."""

    def embed_folder(self, folder: str | Path, batch_size: int = 256) -> EmbeddedImages:
        """All images of a folder; only those not in the collection are embedded."""

    def index(self, folder: str | Path | None = None, factory: str = "", retry_damaged: bool = True) -> Any:
        """Index a folder or a file of vectors; only new and changed images are embedded."""

    def indexed_images(self) -> EmbeddedImages:
        """Images of the index; DataError without one."""

    def group(
        self, images: Any, clusters: int | str, chosen: Sequence[int] | None = None, min_size: int = 1
    ) -> ImageClusters:
        """Cluster embedded images, or the ``chosen`` ones; clusters below ``min_size`` go to the rest."""

    def suspicious_labels(self, groups: Sequence[str] | None = None, images: Any = None) -> Any:
        """Embedded images that look like another class, the most suspicious first."""

    def identify(self, images: Any, k: int = 3) -> list[Any]:
        """Each image's class in the index, or that it is new."""

    def open_filled_store(self, store: str) -> Mirror:
        """Open a store; DataError if it is empty."""


class SearchService(Protocol):
    """The service ``"search"``."""

    def load_run(
        self,
        path: str | Path,
        device: str = "auto",
        *,
        store: str | Path | None = None,
        exclude: Sequence[str] | None = None,
    ) -> SearchedRun:
        """Load a finished run, with a collection at ``store``; DataError without a run."""

    def run_of(
        self, place: Path, device: str, listener: EmbeddingListener, exclude: Sequence[str] | None = None
    ) -> tuple[Path, Path | None]:
        """A run's path and None, or a folder's (new) run and the folder."""
