"""A trained run that embeds and searches images, as the tool that has it shows it to another."""

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
        """Embed the images below a folder that the collection does not have, and return all."""

    def index(self, folder: str | Path | None = None, factory: str = "", retry_damaged: bool = True) -> Any:
        """Embed and index what a folder, or a file of vectors, has; what is unchanged is not embedded again."""

    def indexed_images(self) -> EmbeddedImages:
        """Return the images of the index; DataError if there is none."""

    def group(self, images: Any, clusters: int | str, chosen: Sequence[int] | None = None) -> ImageClusters:
        """Return clusters of images that :meth:`embed_folder` or :meth:`indexed_images` gave; of some of them only."""

    def identify(self, images: Any, k: int = 3) -> list[Any]:
        """Return which class of the index each image shows, or that it is new; DataError if that cannot be told."""

    def open_filled_store(self, store: str) -> Mirror:
        """Open a store that has the images of the index; DataError if it has none."""


class SearchService(Protocol):
    """The service ``"search"``."""

    def load_run(self, path: str | Path, device: str = "auto", *, store: str | Path | None = None) -> SearchedRun:
        """Load a finished run, maybe with a collection at another place; DataError if the folder has none."""

    def run_of(self, place: Path, device: str, listener: EmbeddingListener) -> tuple[Path, Path | None]:
        """Return the run that a path names, and None; of a folder of images, its run, made on the way, and itself."""
