"""The interface of a trained run that embeds and searches images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .fit import EmbeddingListener
from .images import EmbeddedImages, ImageClusters
from .mirror import Mirror

if TYPE_CHECKING:
    from torch import Tensor


class RetrievalWarning(UserWarning):
    """A request was met in part: fewer answers, low recall, an image that cannot be shown."""


class SearchedRun(Protocol):
    """A trained run that embeds images and has an index of some."""

    @property
    def folder(self) -> Path:
        """The run's folder."""

    @property
    def place(self) -> Path:
        """The folder of the run's collection."""

    def check_images(self) -> None:
        """Raise ConfigError for a run that was trained on vectors."""

    def embed(self, images: Any, batch_size: int = 256) -> Tensor:
        """Return the embeddings of one or several images, ``[N, D]``."""

    def embed_folder(self, folder: str | Path, batch_size: int = 256) -> EmbeddedImages:
        """Embed the images of a folder that are not in the collection, and return all of them."""

    def index(self, folder: str | Path | None = None, factory: str = "", retry_damaged: bool = True) -> Any:
        """Embed and index what a folder, or a file of vectors, has; what is unchanged is not embedded again."""

    def indexed_images(self) -> EmbeddedImages:
        """Return the images of the index; DataError without an index."""

    def group(self, images: Any, clusters: int | str, chosen: Sequence[int] | None = None) -> ImageClusters:
        """Cluster images from :meth:`embed_folder` or :meth:`indexed_images`, or the ``chosen`` ones."""

    def identify(self, images: Any, k: int = 3) -> list[Any]:
        """Return each image's class in the index, or that it is new; DataError if that is unknown."""

    def open_filled_store(self, store: str) -> Mirror:
        """Open a store with the images of the index; DataError for an empty store."""


class SearchService(Protocol):
    """The service ``"search"``."""

    def load_run(self, path: str | Path, device: str = "auto", *, store: str | Path | None = None) -> SearchedRun:
        """Load a finished run, with a collection at ``store`` if given; DataError without a run."""

    def run_of(self, place: Path, device: str, listener: EmbeddingListener) -> tuple[Path, Path | None]:
        """Return a run's path and None, or, for a folder of images, its (new) run and the folder."""
