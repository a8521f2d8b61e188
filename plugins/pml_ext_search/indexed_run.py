"""A trained run that embeds images or vectors, and indexes them."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pml_ext.distributed import num_processes
from pml_ext.errors import ConfigError, DataError
from pml_ext.registry import service
from pml_ext_train.data import class_levels
from pml_ext_train.networks import By, Preprocessing
from pml_ext_train.results import LoadedRun
from pml_ext_train.retrieval import PartsService

from .database import COLLECTION, recorded_by
from .embedded import Embedded
from .embedding import ImageEmbedder, Listener
from .faiss_index import EXACT, new_index
from .folder_pass import FolderPass
from .gallery import Gallery
from .parts_pass import parts_pass
from .reading import Images, Listed, listed
from .run_of_folder import run_of as run_of
from .table_images import cut_images, is_table
from .vectors import VectorEmbedder


class IndexedRun(LoadedRun):
    """A trained network that embeds and indexes images or vectors; the arguments are those of ``load_run``."""

    def __init__(
        self,
        folder: Path,
        device: str,
        workers: int | None,
        store: str | Path | None,
        listener: Listener | None,
        by: By | None = None,
    ) -> None:
        super().__init__(folder, device)
        self.takes_vectors = self.recipe.model.takes_vectors
        place = Path(store or folder / COLLECTION)
        self.by: By = by or recorded_by(place) or "embeddings"
        """What images are compared by."""
        self._embedder: ImageEmbedder | VectorEmbedder
        if self.takes_vectors:
            if workers is not None:
                raise ConfigError(f"--workers is for reading images, and {folder} was trained on vectors; leave it out")
            if self.by == "features":
                raise ConfigError(
                    f"--by features: {folder} was trained on vectors, which are the features; leave it out"
                )
            self._embedder = VectorEmbedder(
                folder, self.network, self.device, self.identity, place, replace=store is None
            )
        else:
            assert isinstance(self._description, Preprocessing)
            self._embedder = ImageEmbedder(
                folder,
                functools.partial(self._network_by, self.by),
                self._description,
                self._description.features if self.by == "features" else self.recipe.model.embedding_size,
                self.device,
                self.identity,
                self.recipe.engine.precision,
                place=place,
                replace=store is None,
                workers=workers,
                listener=listener,
                frozen=self.recipe.model.freeze == "trunk",
                by=self.by,
                class_levels=_class_levels(self.recipe.data.name, self.recipe.data.settings),
            )
        self.collection = self._embedder.collection
        self._gallery: Gallery | None = None

    @property
    def images(self) -> ImageEmbedder:
        """What embeds images; ConfigError for a run that was trained on vectors."""
        if isinstance(self._embedder, ImageEmbedder):
            return self._embedder
        raise ConfigError(f"{self.folder} was trained on vectors, which have no pixels; this wants a run of images")

    @property
    def vectors(self) -> VectorEmbedder:
        """What embeds vectors; ConfigError for a run that was trained on images."""
        if isinstance(self._embedder, VectorEmbedder):
            return self._embedder
        raise ConfigError(f"{self.folder} was trained on images; this wants a run of vectors")

    def check_images(self) -> None:
        """Raise ConfigError for a run that was trained on vectors."""
        _ = self.images

    @property
    def place(self) -> Path:
        """The folder of the collection."""
        return self.collection.place

    @property
    def class_names(self) -> list[str]:
        """The classes that the network was trained on."""
        return self._description.class_names

    # Embeddings

    def embed(self, images: Images, batch_size: int = 256) -> Tensor:
        """Embed images, or vectors.

        Args:
            images: a folder, or one or several images in a list, a generator, an array or a tensor. An image is a path,
                a PIL image, a uint8 array ``[H, W, 3]`` or ``[H, W]``, or a uint8 tensor ``[C, H, W]`` with the run's
                channels. Files and PIL images are turned upright; all but tensors are converted to the run's channels.
                Of a run of vectors: a file of vectors, or an array or tensor ``[N, D]``.
            batch_size: images per batch; of single images, at most one batch is held in memory.

        Returns:
            ``[N, D]``, float32, of length 1, on the run's device; for a folder, in the order of its paths.

        Raises:
            DataError: a file cannot be read, a folder has no readable image, or the network gives NaN. Unreadable
                files of a folder are skipped with a :class:`SkippedImage` warning.
        """
        if self.takes_vectors:
            if isinstance(images, (str, os.PathLike)):
                file = self.vectors.read(Path(images))
                return self.vectors.embed(file.embeddings, file.ids)
            return self.vectors.embed(images)
        if isinstance(images, str) and not images:  # pathlib reads "" as the current folder
            raise ConfigError("the path '' is empty; wanted an image or a folder")
        if isinstance(images, (str, Path)) and Path(images).is_dir():
            return self.embed_folder(images, batch_size).embeddings
        return self.images.embed(images, batch_size)

    def embed_folder(self, folder: str | Path, batch_size: int = 256) -> Embedded:
        """Embed all images below a folder, reusing the embeddings in the collection.

        New embeddings are written after each 1,000 images or 30 seconds; an interrupted call resumes from there. A file
        is embedded again if its size or modification time has changed. Under ``torchrun``, each rank embeds a part and
        returns all embeddings. Errors are those of :meth:`embed`, and UnwritableError, for example for a full disk.
        """
        with FolderPass(self.images).embedded(Path(folder), batch_size) as embedded:
            return embedded

    def embed_part(
        self, items: Listed, part: int = 1, parts: int = 1, out: str | Path = "parts", folder: str | Path | None = None
    ) -> Path:
        """Embed a part of a listing of images into Parquet files, without the collection; return their folder.

        For any number of parts the files are bitwise identical, if all processes have the same number of threads. An
        existing file is not written again, so that a killed part resumes when it is called again.

        Args:
            items: a folder, the address of a folder, such as ``s3://bucket/photos``, a Parquet table of ``path`` and
                ``image`` (bytes), tar shards of webdataset, ``photos-{000..015}.tar``, or paths of images.
            part: number of the part, from 1 to ``parts``.
            parts: number of parts; of a folder or a sequence, at most 1,024 are not empty.
            out: the folder to write, shared by all parts; the input of :meth:`write_index`.
            folder: the root of the paths in a sequence; by default their deepest common folder.
        """
        service_of_parts: PartsService = service("parts", "embed_part")
        service_of_parts.write(self.images, listed(items, folder), part, parts, Path(out))
        return Path(out)

    # The index

    def write_index(self, parts: str | Path, folder: str | Path | None = None, factory: str = "") -> Gallery:
        """Index the embeddings that :meth:`embed_part` wrote, without embedding; otherwise as :meth:`index`.

        ``folder`` has the images; by default the folder that they were read from. Raise DataError if a part is missing.
        """
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
        self._gallery = Gallery(self.collection, self.device, changes)
        return self.gallery()

    def index(self, folder: str | Path | None = None, factory: str = "") -> Gallery:
        """Embed a folder, a table or a file of vectors and index it, or update it by what is new, changed and deleted.

        The previous index remains until the new one is complete. An image keeps its id while its path stays the same;
        ids are never reused.

        Args:
            folder: the folder of the images, or the file of vectors; by default the one that was indexed before. Of a
                ``.csv`` or ``.parquet`` table, the boxes are cut into files in ``collection-images`` beside the
                collection, which becomes the indexed folder.
            factory: ``"exact"``, or a faiss factory string such as ``"IVF64,Flat"`` or ``"HNSW32"``. By default up to
                200,000 images are searched exactly; more are searched by faiss ``IVFn,Flat``, n the square root of the
                number of images.

        Returns:
            The index; ``changes`` counts new, changed and deleted images; ``faiss`` has ``effort`` and ``recall``.
        """
        source = self.indexed_folder() if folder is None else Path(folder)
        if self.takes_vectors:
            return self._write_index(self.vectors.file_pass(source), factory)
        if is_table(source):
            source = self._images_of_table(source)
        return self._write_index(FolderPass(self.images).embedded(source), factory)

    def _images_of_table(self, table: Path) -> Path:
        """Return the folder with the images that a table lists, once they are cut along its boxes."""
        if num_processes() > 1:
            raise ConfigError(f"{table}: one process cuts the images of a table; leave out torchrun")
        folder = self.place.with_name(f"{self.place.name}-images")
        cut_images(table, folder, self.images.channels, self.recipe.data.settings.get("columns", {}))
        return folder

    def indexed_folder(self) -> Path:
        """Return the indexed folder, also if an earlier state of the run indexed it."""
        if self.collection.exists:
            with self.collection.transaction() as current:
                if current.state.index is not None:
                    return Path(current.state.index.folder)
        raise DataError(f"{self.collection.place}: no index; type: {self.collection.command()}")

    def gallery(self) -> Gallery:
        """Open the index and keep it open; raise DataError if it is missing, damaged or of other weights."""
        gallery = self._kept_gallery()
        with gallery.reading():  # opens the index, or raises
            return gallery

    def indexed_images(self) -> Embedded:
        """Return the images of the index; DataError if it is missing, damaged or of other weights."""
        return self.gallery().embedded

    def _kept_gallery(self) -> Gallery:
        """Return the index that queries share; its first :meth:`Gallery.reading` opens it."""
        if self._gallery is None:
            self._gallery = Gallery(self.collection, self.device)
        return self._gallery


def _class_levels(data_set: str, settings: Mapping[str, Any]) -> int | None:
    """Return how many sub-folders name a class, None for all, as where a run was trained on a folder."""
    if not data_set.startswith("folder:"):
        return 1
    return class_levels(settings.get("classes", "outer"), settings.get("levels"))
