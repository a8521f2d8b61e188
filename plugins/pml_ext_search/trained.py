"""A trained run for embedding, search and clustering of images."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pml_ext.plugin import SearchFilter
from pml_ext.tool import (
    By,
    Changes,
    ConfigError,
    DataError,
    LoadedRun,
    Mirror,
    PartsService,
    Steps,
    check_writable,
    choose_device,
    class_levels,
    keep_freed_memory,
    num_processes,
    service,
    unknown,
)

from .database import COLLECTION, recorded_by
from .embedded import Embedded
from .embedding import ImageEmbedder, Listener
from .faiss_index import EXACT, new_index
from .folder_pass import FolderPass
from .gallery import Gallery
from .match import match, match_vectors
from .parts_pass import parts_pass
from .queries import answers_to_images, answers_to_vectors, names_in_index
from .query import METRICS, Answer, Answers, QueryOptions, check_options
from .reading import Images, Listed, listed
from .run_of_folder import run_of as run_of
from .stored import answers_of_store, is_store, open_store
from .table_images import cut_images, is_table
from .vectors import VectorEmbedder

if TYPE_CHECKING:  # takes seconds to import, which a query saves
    from matplotlib.figure import Figure

    from pml_ext.tool import BaseDistance, KReciprocal, QueryExpansion

    from .clusters import Clusters, Grouping, Number
    from .duplicates import Duplicates, Kind


def load_run(
    path: str | Path,
    device: str = "auto",
    workers: int | None = None,
    store: str | Path | None = None,
    listener: Listener | None = None,
    by: By | None = None,
) -> TrainedRun:
    """Load a finished run for retrieval.

    Args:
        path: the run's folder.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        workers: number of processes that read a folder's images; 0 to read in the calling process. By default 0 for
            fewer than 1,000 images to read and in a script, else one per processor, up to 8; on Windows and macOS 0.
            Each worker imports a script again: with workers, its work stands below ``if __name__ == "__main__":``.
        store: the folder of the collection, with embeddings and index; by default ``collection`` in the run's folder.
        listener: called with a :class:`Progress` after each batch of a folder's images.
        by: ``"embeddings"``, or ``"features"``: images are embedded and compared by the features of the trunk, before
            the head. By default what the collection was made by, and embeddings without a collection.

    Raise DataError if the folder has no finished run, or if one of its files is empty, cut or of another run, and
    ConfigError for the address of a database as ``store``.
    """
    if store is not None and is_store(str(store)):
        scheme = str(store).partition(":")[0]  # what follows may have a password
        raise ConfigError(
            f"--store {scheme}:...: wanted a folder; a database is filled by: pml-ext index {path} --to STORE"
        )
    return TrainedRun(Path(path), choose_device(device), workers, store, listener, by)


def load_embedder(path: str, device: str, by: By) -> ImageEmbedder:
    """Load what embeds images in a worker process; on a CPU, the process reuses freed memory from then on."""
    keep_freed_memory(choose_device(device))
    return load_run(path, device, workers=0, by=by).images


class TrainedRun(LoadedRun):
    """A trained network that embeds, indexes and searches images or vectors; see :func:`load_run` for the arguments."""

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
            self._embedder = ImageEmbedder(
                folder,
                self.network_by(self.by),
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
    def transform(self) -> Steps:
        """The steps from a uint8 image to the network's input."""
        return self.images.transform

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

    def query(
        self,
        images: Images,
        k: int = 8,
        metric: str = "euclidean",
        shortlist: int | None = None,
        within: str | None = None,
        radius: float | None = None,
        store: str | None = None,
        rerank: str | QueryExpansion | KReciprocal | None = None,
    ) -> list[Answer]:
        """Return the nearest images of the index; warn with :class:`RetrievalWarning` if fewer than k.

        Args:
            images: as in :meth:`embed`; an indexed image is not an answer to itself, and is not embedded again. Of a
                run of vectors: ids of the index, which are not answers to themselves, a file of vectors, or an array.
            k: number of answers, at least 1.
            metric: ``"euclidean"``, or ``"learned"`` for a run whose loss has a learned metric.
            shortlist: number of nearest images by Euclidean distance that the learned metric re-ranks; by default the
                learned metric is computed for all images.
            within: the only class to search; the index searches its images exactly.
            radius: maximum distance of an answer; minimum value for a learned metric by which larger values are
                nearer.
            store: the address of a store that :meth:`copy_to_store` filled; it is searched instead of the index.
            rerank: ranks again without training: ``"average"`` or ``"alpha"`` query expansion, ``"k-reciprocal"`` among
                the 1,000 nearest images, or a :class:`pml_ext.evaluation.QueryExpansion` or
                :class:`pml_ext.evaluation.KReciprocal`. The distances are then those of the new ranking.
        """
        check_options(store, metric, shortlist, rerank, radius)
        reranking = None
        if rerank is not None:
            from .reranking import reranking_of

            reranking = reranking_of(rerank)
        learned = self._learned_metric(metric)
        options = QueryOptions(k, SearchFilter(within, radius), learned, shortlist, reranking)
        of_store = None if store is None else functools.partial(self._search_of_store, store, options)
        if self.takes_vectors:
            return answers_to_vectors(self.vectors, self._kept_gallery(), images, options, of_store)
        if isinstance(images, (str, Path)) and Path(images).is_dir():
            raise ConfigError(f"{images} is a folder; a query is an image, or several")
        return answers_to_images(self.images, self.embed, self._kept_gallery(), images, options, of_store)

    def _learned_metric(self, metric: str) -> BaseDistance | None:
        """Return the learned metric if ``metric`` names it, None for ``"euclidean"``; ConfigError without one."""
        if metric not in METRICS:
            raise ConfigError(unknown("metric", metric, METRICS))
        if metric == "euclidean":
            return None
        if self.metric is None:
            raise ConfigError(
                f"{self.folder} has no learned metric: its loss is {self.recipe.loss.name}; leave out --metric learned"
            )
        if self.by == "features":
            raise ConfigError(
                f"the learned metric compares embeddings, and {self.collection.place} has features; leave out "
                "--metric learned"
            )
        return self.metric

    def match(
        self,
        items: Listed,
        out: str | Path,
        k: int = 8,
        within: str | None = None,
        radius: float | None = None,
        store: str | None = None,
        folder: str | Path | None = None,
    ) -> tuple[int, int]:
        """Write the nearest images of each query to a ``.parquet`` or ``.jsonl`` file.

        ``items`` and ``folder`` are as in :meth:`embed_part`, the others as in :meth:`query`; of a run of vectors,
        ``items`` is a file of vectors. Return the numbers of queries and answers. Images that cannot be read are
        skipped with a warning.
        """
        file = Path(out)
        if file.suffix not in (".parquet", ".jsonl"):
            raise ConfigError(f"-o {file}: wanted a file that ends in .parquet or .jsonl")
        check_writable("-o", file, file=True)
        options = QueryOptions(k, SearchFilter(within, radius))
        if store is None:
            find: Answers = functools.partial(self.gallery().answer, options=options)
        else:
            find = self._search_of_store(store, options)
        if self.takes_vectors:
            if folder is not None or not isinstance(items, (str, os.PathLike)):
                raise ConfigError("-o wants one file of vectors; leave out --list")
            queries = self.vectors.read(Path(items))
            return match_vectors(self.vectors, queries, find, file, names_in_index(self._kept_gallery(), queries))
        return match(self.images, listed(items, folder), find, file)

    def _search_of_store(self, store: str, options: QueryOptions) -> Answers:
        """Return a function from names and embeddings to a store's answers."""
        return answers_of_store(self.open_filled_store(store), self._kept_gallery(), options)

    def open_filled_store(self, store: str) -> Mirror:
        """Open a store as :meth:`open_store`; DataError if it has no images of this network."""
        opened = self.open_store(store)
        if not opened.count():
            command = ["pml-ext", "index", str(self.folder), "--to", opened.shown]
            if self.by != "embeddings":
                command += ["--by", self.by]
            run = shlex.join(command)
            raise DataError(
                f"{opened.shown}: no images of {self.folder} ({self.collection.identity}) in it; type: {run}"
            )
        return opened

    def open_store(self, store: str) -> Mirror:
        """Open a store by its address, such as ``lancedb:DIR``; see :class:`pml_ext.plugin.Store`.

        The store has a separate table for each state of a network. PluginError without the plugin ``stores``.
        """
        return open_store(store, self.collection.identity, self.collection.size)

    def copy_to_store(self, store: str) -> tuple[Changes, float | None]:
        """Synchronize a store with the index: write new and changed images, delete removed ones; ids stay the same.

        Return the changes of the store, and its recall@10 against exact search on a sample of the images.
        """
        opened = self.open_store(store)
        embedded = self.gallery().embedded
        return opened.update(embedded), opened.recall_at_10(embedded)

    def duplicates(
        self, radius: float | None = None, keep: str = "most-pixels", kinds: Sequence[Kind] = ("exact", "same", "near")
    ) -> Duplicates:
        """Return copies among the images, or vectors, of the index: their groups, each with what to keep.

        See :func:`pml_ext_search.duplicates.find_duplicates` for the arguments. Images in shards have no files; they
        are compared by their embeddings, as vectors are.
        """
        from .duplicates import find_duplicates, find_equal_vectors
        from .image_files import ImageFiles

        embedded = self.gallery().embedded
        if self.takes_vectors or not any((embedded.folder / name).is_file() for name in embedded.paths):
            return find_equal_vectors(embedded, radius)
        return find_duplicates(ImageFiles(embedded.folder, embedded.paths), radius, keep, kinds)

    def picture(self, answers: Sequence[Answer]) -> Figure:
        """Draw queries and their 50 nearest answers, framed green (right) or red (wrong) if the classes are known."""
        from .pictures import answers_picture

        channels = self.images.channels
        gallery = self._kept_gallery()
        if not gallery.is_open:
            gallery = self.gallery()
        return answers_picture(answers, gallery.folder, channels)

    # Clusters

    def group(self, images: Embedded, clusters: Number) -> Grouping:
        """Return clusters of embedded images, without writing anything; see :func:`pml_ext_search.group`."""
        from .clusters import group

        return group(images, clusters)

    def cluster(self, folder: str | Path, clusters: Number, out: str | Path | None = None) -> Clusters:
        """Cluster a folder's images; write a table, and contact sheets of the 100 largest clusters.

        Args:
            folder: the folder of the images.
            clusters: their number, for k-means, or ``"auto"``, by first neighbors; see :func:`pml_ext_search.group`.
            out: the folder to write, with ``clusters.csv``, ``cluster-000.png`` and so on; by default ``clusters`` in
                the run's folder.

        Returns:
            The cluster of every path; clusters are numbered by size, the largest first.
        """
        from .clusters import check_clusters, group, write_clusters

        if out is not None:
            place = Path(out)
        else:
            place = self.folder / "clusters"
        check_writable("-o", place)
        check_clusters(clusters)
        grouping = group(self.embed_folder(folder), clusters)
        return write_clusters(place, grouping, self.images.channels)


def _class_levels(data_set: str, settings: Mapping[str, Any]) -> int | None:
    """Return how many sub-folders name a class, None for all, as where a run was trained on a folder."""
    if not data_set.startswith("folder:"):
        return 1
    return class_levels(settings.get("classes", "outer"), settings.get("levels"))
