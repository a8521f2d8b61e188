"""The index of a collection, filled and searched by an embedder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pml_ext.distributed import num_processes
from pml_ext.errors import ConfigError, DataError
from pml_ext.registry import service
from pml_ext_train.data import AS_KEPT, FolderRules, class_levels
from pml_ext_train.networks import By
from pml_ext_train.results import LoadedRun
from pml_ext_train.retrieval import Embedder, PartsService

from ..collection.collection import Collection
from ..collection.database import COLLECTION, recorded
from ..collection.embedded import Embedded
from ..collection.faiss_index import EXACT, new_index
from ..embedding.batch_embedder import BatchEmbedder, NetworkEmbedder
from ..embedding.embedding import ImageEmbedder, OnProgress
from ..embedding.folder_pass import FolderPass, parts_pass
from ..embedding.reading import Images
from ..embedding.table_images import cut_images, is_table
from ..embedding.vectors import VectorEmbedder
from .gallery import Gallery
from .queries import answers_to_images, answers_to_vectors
from .query import Answer, Answers, QueryOptions


def open_index(
    embedder: Embedder,
    folder: str | Path,
    device: str = "cpu",
    workers: int | None = None,
    listener: OnProgress | None = None,
) -> SearchIndex:
    """Open the index that an embedder of any kind has in a folder.

    Args:
        embedder: see :class:`pml_ext_train.retrieval.Embedder`.
        folder: the folder of the collection, for this embedder alone.
        device: where embeddings are compared, ``"cpu"`` or ``"cuda"``.
        workers: as for :func:`load_run`.
        listener: called with an :class:`EmbeddingProgress` after each batch.
    """
    computed = BatchEmbedder(embedder, torch.device(device))
    collection = Collection(Path(folder), None, computed.identity, computed.size)
    return SearchIndex(ImageEmbedder(computed, collection, False, workers, listener))


def index_of(
    run: LoadedRun,
    store: str | Path | None = None,
    workers: int | None = None,
    listener: OnProgress | None = None,
    by: By | None = None,
    size: int | None = None,
    rules: FolderRules = AS_KEPT,
) -> SearchIndex:
    """Open the index of a run; arguments as for ``load_run``."""
    place = Path(store or run.folder / COLLECTION)
    kept_by, kept_cut = recorded(place) or ("embeddings", None)
    by = by or kept_by
    cut = _cut_of(run, by, size, kept_cut)
    data = run.recipe.data
    if run.recipe.model.takes_vectors:
        if workers is not None:
            raise ConfigError(f"--workers is for reading images, and {run.folder} was trained on vectors; leave it out")
        if rules != AS_KEPT:
            raise ConfigError(
                f"--exclude and --pages are for folders of images, and {run.folder} was trained on vectors; leave them "
                "out"
            )
        if by == "features":
            raise ConfigError(
                f"--by features: {run.folder} was trained on vectors, which are the features; leave it out"
            )
        return SearchIndex(VectorEmbedder(run, place, store is None, cut))
    computed = NetworkEmbedder(run, by, cut)
    collection = Collection(place, run.folder, computed.identity, computed.size, by, cut=cut)
    levels = _class_levels(data.name, data.settings)
    of_run = FolderRules.of(data.settings.get("exclude"), data.settings.get("pages"))
    images = ImageEmbedder(computed, collection, store is None, workers, listener, levels, rules, of_run)
    return SearchIndex(images, data.settings.get("columns"))


def _cut_of(run: LoadedRun, by: By, size: int | None, kept: int | None) -> int | None:
    """How many first dimensions of the embeddings are kept, None for all: as typed, or as in the collection."""
    whole = run.recipe.model.embedding_size
    if size is None:
        return kept if kept is not None and kept < whole and by == "embeddings" else None
    if by == "features":
        raise ConfigError("--size shortens embeddings, and the dimensions of features have no order; leave it out")
    if not 1 <= size <= whole:
        raise ConfigError(f"--size {size}: the embeddings of {run.folder} have {whole} dimensions; type 1 to {whole}")
    return size if size < whole else None


def _class_levels(data_set: str, settings: Mapping[str, Any]) -> int | None:
    """How many sub-folders name a class, None for all, as in the run's training data."""
    if not data_set.startswith("folder:"):
        return 1
    return class_levels(settings.get("classes", "outer"), settings.get("levels"))


class SearchIndex:
    """A collection with an embedder, which fills and searches it."""

    def __init__(self, embedder: ImageEmbedder | VectorEmbedder, columns: Mapping[str, str] | None = None) -> None:
        self._embedder = embedder
        self._columns = columns or {}  # of tables of images
        self.collection = embedder.collection
        self.device = embedder.device
        self.shared_gallery = Gallery(self.collection, self.device)
        """The index that queries share, opened by its first :meth:`Gallery.reading`."""
        self.takes_vectors: bool = isinstance(embedder, VectorEmbedder)

    @property
    def images(self) -> ImageEmbedder:
        """The embedder of images; ConfigError for a run of vectors."""
        if isinstance(self._embedder, ImageEmbedder):
            return self._embedder
        run = self.collection.run
        raise ConfigError(f"{run} was trained on vectors, which have no pixels; name a run of images")

    @property
    def vectors(self) -> VectorEmbedder:
        """The embedder of vectors; ConfigError for a run of images."""
        if isinstance(self._embedder, VectorEmbedder):
            return self._embedder
        raise ConfigError(f"{self.collection.run or self.place} was trained on images; name a run of vectors")

    @property
    def place(self) -> Path:
        """The folder of the collection."""
        return self.collection.place

    # Embeddings

    def embed(self, images: Images, batch_size: int = 256) -> Tensor:
        """Embeddings, ``[N, D]``; see :meth:`TrainedRun.embed`."""
        if self.takes_vectors:
            if isinstance(images, (str, Path)):
                return self.vectors.embedded(Path(images)).embeddings
            return self.vectors.embed(images)
        if isinstance(images, str) and not images:  # pathlib reads "" as the current folder
            raise ConfigError("an empty path; name an image or a folder")
        if isinstance(images, (str, Path)) and Path(images).is_dir():
            return self.embed_folder(images, batch_size).embeddings
        return self.images.embed(images, batch_size)

    def embed_folder(self, folder: str | Path, batch_size: int = 256) -> Embedded:
        """Embed all images below a folder; see :meth:`TrainedRun.embed_folder`."""
        with FolderPass(self.images, Path(folder)).embedded(batch_size) as embedded:
            return embedded

    # The index

    def write_index(self, parts: str | Path, folder: str | Path | None = None, factory: str = "") -> Gallery:
        """Index what ``embed_part`` wrote; see :meth:`TrainedRun.write_index`."""
        service_of_parts: PartsService = service("parts", "--from PARTS")
        embedder = self.images
        rows = service_of_parts.read(Path(parts), embedder.identity, embedder.by)
        place = None if folder is None else Path(folder)
        return self._write_index(parts_pass(embedder, rows, Path(parts), place), factory)

    def _write_index(self, embedding: contextlib.AbstractContextManager[Embedded], factory: str) -> Gallery:
        if factory and factory != EXACT:
            new_index(factory, self.collection.size)  # raises ConfigError before anything is embedded
        with embedding as embedded:
            changes = self.collection.write_index(embedded, factory)
        self.shared_gallery = Gallery(self.collection, self.device, changes)
        return self.gallery()

    def index(self, folder: str | Path | None = None, factory: str = "", retry_damaged: bool = True) -> Gallery:
        """Index a folder, a table or a file of vectors; see :meth:`TrainedRun.index`."""
        source = self.indexed_folder() if folder is None else Path(folder)
        if self.takes_vectors:
            return self._write_index(self.vectors.file_pass(source), factory)
        rules = None
        if is_table(source):
            if self.images.typed != AS_KEPT:
                raise ConfigError(f"{source} is a table; --exclude and --pages are for folders, so leave them out")
            if num_processes() > 1:
                raise ConfigError(f"{source}: the images of a table are cut by one process; leave out torchrun")
            cut_images(source, self.folder_of_cuts, self.images.channels, self._columns)
            source = self.folder_of_cuts
            rules = AS_KEPT
        return self._write_index(FolderPass(self.images, source, retry_damaged, rules).embedded(), factory)

    @property
    def folder_of_cuts(self) -> Path:
        """The folder beside the collection for images cut from tables."""
        return self.place.with_name(f"{self.place.name}-images")

    def indexed_folder(self) -> Path:
        """The indexed folder, even if an earlier state of the run indexed it."""
        if self.collection.exists:
            folder = self.collection.indexed_folder()
            if folder:
                return Path(folder)
        raise DataError(f"{self.collection.place}: no index; type: {self.collection.command()}")

    def gallery(self) -> Gallery:
        """Open the index; DataError if it is missing, damaged or belongs to other weights."""
        with self.shared_gallery.reading():  # opens the index, or raises
            return self.shared_gallery

    def indexed_images(self) -> Embedded:
        """The images of the index; errors as for :meth:`gallery`."""
        return self.gallery().embedded

    def query(
        self, images: Images, options: QueryOptions, of_store: Callable[[], Answers] | None = None
    ) -> list[Answer]:
        """The nearest images; ``of_store`` opens a store to search instead of the index."""
        if self.takes_vectors:
            return answers_to_vectors(self.vectors, self.shared_gallery, images, options, of_store)
        if isinstance(images, (str, Path)) and Path(images).is_dir():
            raise ConfigError(f"{images} is a folder; a query is an image, or several")
        return answers_to_images(self.images, self.shared_gallery, images, options, of_store)
