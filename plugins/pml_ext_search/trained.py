"""A trained run for embedding, search and clustering of images."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from torch import Tensor, nn

from pml_ext.distributed import choose_device, keep_freed_memory
from pml_ext.errors import ConfigError, DataError, unknown
from pml_ext.registry import service
from pml_ext_train.data import AS_KEPT, FolderRules, Pages
from pml_ext_train.files import check_writable, composed, file_stat
from pml_ext_train.networks import By, Network
from pml_ext_train.results import LoadedRun
from pml_ext_train.retrieval import Changes, CopiesService, CopyKind, FoundCopies, Mirror, PartsService, SearchFilter

from .collection.embedded import Embedded
from .embedding.embedding import ImageEmbedder, OnProgress
from .embedding.reading import Images, Listed, listed
from .embedding.vectors import VectorEmbedder
from .query.gallery import Gallery
from .query.match import match, match_vectors
from .query.queries import names_in_index
from .query.query import METRICS, Answer, Answers, QueryOptions, check_options
from .query.search_index import index_of
from .query.stored import answers_of_store, is_store, open_store
from .run_of_folder import run_of as run_of

if TYPE_CHECKING:  # takes seconds to import, which a query saves
    from matplotlib.figure import Figure

    from pml_ext.evaluation import KReciprocal, QueryExpansion
    from pml_ext.pml import BaseDistance

    from .cluster.clusters import Clusters, Grouping, Number
    from .open_set.calibration import Calibration
    from .open_set.enrolment import Enrolment
    from .open_set.identify import Identified, Rate, Scored
    from .open_set.open_set import Nearest
    from .select.selection import Selection, SelectionKind
    from .select.suspicious_labels import SuspiciousLabels


def load_run(
    path: str | Path,
    device: str = "auto",
    workers: int | None = None,
    store: str | Path | None = None,
    listener: OnProgress | None = None,
    by: By | None = None,
    size: int | None = None,
    exclude: Sequence[str] | None = None,
    pages: Pages | None = None,
) -> TrainedRun:
    """Load a finished run for retrieval.

    Args:
        path: the run's folder.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        workers: processes that read a folder's images. By default one per processor, up to 8, but none below 1,000
            images, in a script, and on Windows and macOS. Workers import a script again, so guard it with ``if __name__
            == "__main__":``.
        store: the collection's folder; by default ``collection`` in the run's folder.
        listener: called with an :class:`EmbeddingProgress` after each batch.
        by: ``"embeddings"``, or ``"features"`` of the trunk; by default what the collection has.
        size: how many first dimensions of the embeddings to compare; by default as the collection, else all.
        exclude: patterns as in ``.gitignore``, relative to a folder, of files that are left out of it; by default as in
            the index, or in the run. The index keeps them.
        pages: ``"all"`` makes each page of a TIFF, and each frame of an animation, an image ``FILE#N``; default and
            kept as ``exclude``.

    DataError for an unfinished or damaged run.
    """
    if store is not None and is_store(str(store)):
        scheme = str(store).partition(":")[0]  # what follows may have a password
        raise ConfigError(
            f"--store {scheme}:...: wanted a folder; a database is filled by: pml-ext index {path} --to STORE"
        )
    rules = FolderRules.of(exclude, pages)
    return TrainedRun(Path(path), choose_device(device), workers, store, listener, by, size, rules)


def load_embedder(path: str, device: str, by: By) -> ImageEmbedder:
    """Load the embedder of images in a worker process; on a CPU, freed memory is reused."""
    keep_freed_memory(choose_device(device))
    return load_run(path, device, workers=0, by=by).images


class TrainedRun:
    """A trained network that embeds, indexes and searches; :func:`load_run` makes one."""

    def __init__(
        self,
        folder: Path,
        device: str,
        workers: int | None = None,
        store: str | Path | None = None,
        listener: OnProgress | None = None,
        by: By | None = None,
        size: int | None = None,
        rules: FolderRules = AS_KEPT,
    ) -> None:
        self.loaded = LoadedRun(folder, device)
        """The run's network, recipe and learned metric."""
        self.folder = folder
        self.device = self.loaded.device
        self.recipe = self.loaded.recipe
        self.identity = self.loaded.identity
        self.search_index = index_of(self.loaded, store, workers, listener, by, size, rules)
        """The run's collection with what embeds into it."""
        self.collection = self.search_index.collection
        self.by: By = self.collection.by
        """What images are compared by."""
        self.takes_vectors: bool = self.search_index.takes_vectors

    @property
    def network(self) -> Network:
        """The trained network."""
        return self.loaded.network

    @property
    def trunk(self) -> nn.Module:
        """The trunk of the network."""
        return self.network.trunk

    @property
    def embedder(self) -> nn.Module:
        """The embedder of the network."""
        return self.network.embedder

    @property
    def metric(self) -> BaseDistance | None:
        """The learned metric of the run's loss, or None."""
        return self.loaded.metric

    @property
    def class_names(self) -> list[str]:
        """The classes that the network was trained on."""
        return self.loaded.description.class_names

    @property
    def images(self) -> ImageEmbedder:
        """The embedder of images; ConfigError for a run of vectors."""
        return self.search_index.images

    @property
    def vectors(self) -> VectorEmbedder:
        """The embedder of vectors; ConfigError for a run of images."""
        return self.search_index.vectors

    @property
    def place(self) -> Path:
        """The folder of the collection."""
        return self.collection.place

    def check_images(self) -> None:
        """Raise ConfigError for a run of vectors."""
        _ = self.images

    def export(self, out: str | Path, onnx: bool = False, by: By = "embeddings") -> Path:
        """Write the network for other programs; see :meth:`LoadedRun.export`."""
        return self.loaded.export(out, onnx, by)

    # Embeddings

    def embed(self, images: Images, batch_size: int = 256) -> Tensor:
        """Embed images or vectors.

        Args:
            images: a folder, an image, or several in a list, generator, array or tensor. An image is a path, a PIL
                image, a uint8 array ``[H, W, 3]`` or ``[H, W]``, or a uint8 tensor ``[C, H, W]``. All but tensors are
                turned upright and converted to the run's channels. For a run of vectors: a file, or ``[N, D]``.
            batch_size: images per batch.

        Returns:
            ``[N, D]``, float32, of length 1, on the run's device; for a folder, in the order of its paths.

        Raises:
            DataError: no image is readable, or the network gives NaN.
        """
        return self.search_index.embed(images, batch_size)

    def embed_folder(self, folder: str | Path, batch_size: int = 256) -> Embedded:
        """Embed all images below a folder, except unchanged ones in the collection.

        Unreadable files are skipped with a :class:`SkippedImage` warning. Embeddings are written every 1,000 images or
        30 seconds; an interrupted call resumes. Under ``torchrun``, each rank embeds a part and returns all.
        """
        return self.search_index.embed_folder(folder, batch_size)

    def embed_part(
        self, items: Listed, part: int = 1, parts: int = 1, out: str | Path = "parts", folder: str | Path | None = None
    ) -> Path:
        """Embed a part of many images into Parquet files, and return their folder.

        Existing files are kept, so that a killed part resumes. With equally many threads, the files do not depend on
        the number of parts.

        Args:
            items: a folder, or its address, such as ``s3://bucket/photos``; a Parquet table of ``path`` and ``image``
                (bytes); tar shards of webdataset, ``photos-{000..015}.tar``; or paths of images.
            part: from 1 to ``parts``.
            parts: number of parts, at most 1,024 for a folder or a sequence.
            out: the folder to write, shared by all parts.
            folder: the root of the paths in a sequence; by default their deepest common folder.
        """
        service_of_parts: PartsService = service("parts", "embed_part")
        service_of_parts.write(self.images, listed(items, folder, self.images.rules), part, parts, Path(out))
        return Path(out)

    # The index

    def write_index(self, parts: str | Path, folder: str | Path | None = None, factory: str = "") -> Gallery:
        """Index what :meth:`embed_part` wrote; DataError if a part is missing.

        ``folder`` has the images; by default where they were read.
        """
        return self.search_index.write_index(parts, folder, factory)

    def index(self, folder: str | Path | None = None, factory: str = "", retry_damaged: bool = True) -> Gallery:
        """Embed and index a folder, a table or a file of vectors; unchanged images are kept.

        The previous index stays until the new one is complete. An image keeps its id while its path stays the same; ids
        are never reused.

        Args:
            folder: the folder, table or file; by default the indexed one. Boxes of a ``.csv`` or ``.parquet`` table are
                cut into ``collection-images`` beside the collection.
            factory: ``"exact"``, or a faiss factory string such as ``"IVF64,Flat"`` or ``"HNSW32"``. By default exact
                up to 200,000 images, above ``IVFn,Flat`` with n the square root of their number.
            retry_damaged: whether to read and name unchanged skipped files again.

        Returns:
            The index; ``changes`` counts new, changed and deleted images.
        """
        return self.search_index.index(folder, factory, retry_damaged)

    def gallery(self) -> Gallery:
        """Open the index; DataError if it is missing, damaged or belongs to other weights."""
        return self.search_index.gallery()

    def indexed_images(self) -> Embedded:
        """The images of the index; errors as for :meth:`gallery`."""
        return self.search_index.indexed_images()

    def indexed_folder(self) -> Path:
        """The indexed folder, even if an earlier state of the run indexed it."""
        return self.search_index.indexed_folder()

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
        """The nearest images of the index; a :class:`RetrievalWarning` if there are fewer than k.

        Args:
            images: as for :meth:`embed`; an indexed image is not an answer to itself. For a run of vectors: ids, a file
                of vectors, or an array.
            k: number of answers.
            metric: ``"euclidean"``, or ``"learned"``: the metric of the run's loss.
            shortlist: how many of the nearest images the learned metric re-ranks; by default all.
            within: the only class to search.
            radius: maximum distance of an answer; a minimum for learned metrics whose larger values are nearer.
            store: the address of a store to search, filled by :meth:`copy_to_store`.
            rerank: ``"average"`` or ``"alpha"`` query expansion, ``"k-reciprocal"`` among the 1,000 nearest images, or
                an object from :mod:`pml_ext.evaluation`. It changes the distances.
        """
        check_options(store, metric, shortlist, rerank, radius)
        reranking = None
        if rerank is not None:
            from .query.reranking import reranking_of

            reranking = reranking_of(rerank)
        learned = self._learned_metric(metric)
        options = QueryOptions(k, SearchFilter(within and composed(within), radius), learned, shortlist, reranking)
        of_store = None if store is None else functools.partial(self._search_of_store, store, options)
        return self.search_index.query(images, options, of_store)

    def query_texts(
        self, texts: Sequence[str], k: int = 8, within: str | None = None, radius: float | None = None
    ) -> list[Answer]:
        """The indexed images nearest to texts, ``["a red car"]``; other arguments as for :meth:`query`.

        The trunk must be the frozen image encoder of a pair such as CLIP or SigLIP, with ``pool = "projected"``. Texts
        are compared with its features, so distances have another scale.
        """
        from .query.texts import answers_to_texts

        return answers_to_texts(
            self.loaded,
            self.search_index,
            list(texts),
            QueryOptions(k, SearchFilter(within and composed(within), radius)),
        )

    def _learned_metric(self, metric: str) -> BaseDistance | None:
        if metric not in METRICS:
            raise ConfigError(unknown("metric", metric, METRICS))
        if metric == "euclidean":
            return None
        if self.metric is None:
            raise ConfigError(
                f"{self.folder} has no learned metric: its loss is {self.recipe.loss.name}; leave out --metric learned"
            )
        if self.by == "features" or self.collection.cut is not None:
            found = "features" if self.by == "features" else f"{self.collection.cut} dimensions of them"
            raise ConfigError(
                f"the learned metric compares embeddings, and {self.collection.place} has {found}; leave out "
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
        """Write the answers to many queries to a ``.parquet`` or ``.jsonl`` file.

        ``items`` and ``folder`` are as for :meth:`embed_part`, or ``items`` is a file of vectors. Returns the numbers
        of queries and answers.
        """
        file = Path(out)
        if file.suffix not in (".parquet", ".jsonl"):
            raise ConfigError(f"-o {file}: wanted a file that ends in .parquet or .jsonl")
        check_writable("-o", file, file=True)
        options = QueryOptions(k, SearchFilter(within and composed(within), radius))
        if store is None:
            find: Answers = functools.partial(self.gallery().answer, options=options)
        else:
            find = self._search_of_store(store, options)
        if self.takes_vectors:
            if folder is not None or not isinstance(items, (str, os.PathLike)):
                raise ConfigError("-o needs one file of vectors; leave out --list")
            queries = self.vectors.read(Path(items))
            return match_vectors(
                self.vectors, queries, find, file, names_in_index(self.search_index.shared_gallery, queries)
            )
        return match(self.images, listed(items, folder, self.images.rules), find, file)

    def _search_of_store(self, store: str, options: QueryOptions) -> Answers:
        return answers_of_store(self.open_filled_store(store), self.search_index.shared_gallery, options)

    def open_filled_store(self, store: str) -> Mirror:
        """Open a store; DataError if it has no images of this network."""
        opened = self.open_store(store)
        if not opened.count():
            remedy = self.collection.index_command("--to", opened.shown)
            raise DataError(
                f"{opened.shown}: no images of {self.folder} ({self.collection.identity}) in it; type: {remedy}"
            )
        return opened

    def open_store(self, store: str) -> Mirror:
        """Open a store by its address, such as ``lancedb:DIR``; see :class:`pml_ext.plugin.Store`.

        Each state of a network has its own table.
        """
        return open_store(store, self.collection.identity, self.collection.size)

    def copy_to_store(self, store: str) -> tuple[Changes, float | None]:
        """Synchronize a store with the index; return the changes and recall@10 on a sample."""
        opened = self.open_store(store)
        embedded = self.gallery().embedded
        return opened.update(embedded), opened.recall_at_10(embedded)

    def duplicates(
        self, radius: float | None = None, keep: str = "most-pixels", kinds: Sequence[CopyKind] = get_args(CopyKind)
    ) -> FoundCopies:
        """Groups of copies in the index; see :func:`pml_ext_copies.duplicates.find_duplicates`.

        Vectors, and images in shards, are compared by embeddings.
        """
        copies: CopiesService = service("copies", "TrainedRun.duplicates")
        embedded = self.gallery().embedded
        if self.takes_vectors or not any(file_stat(embedded.folder / name) for name in embedded.paths):
            return copies.find_equal_vectors(embedded.paths, embedded.embeddings, radius)
        return copies.find(embedded.folder, embedded.paths, radius, keep, kinds)

    def select(self, count: int = 10, kind: SelectionKind = "distinct") -> Selection:
        """The most distinct images of the index, its outliers, or those nearest to class centers.

        ``count`` is per class for ``"central"``.
        """
        from .select.selection import select

        return select(self.indexed_images(), count, kind)

    def suspicious_labels(
        self, groups: Sequence[str] | None = None, images: Embedded | None = None
    ) -> SuspiciousLabels:
        """Images by how much more similar they are to another class than to their own.

        Args:
            groups: the group of each image; images of one group are not compared.
            images: embedded images; by default the indexed ones.

        DataError for fewer than two classes.
        """
        from .select.suspicious_labels import suspicious_labels

        return suspicious_labels(images or self.indexed_images(), groups)

    # Known or new

    def identify(
        self, images: Images, k: int = 3, far: Rate = None, radius: float | None = None, nearest: Nearest | None = None
    ) -> list[Identified]:
        """The class of the index that each photograph shows, or that it is new.

        Args:
            images: as for :meth:`query`, or a folder; an indexed image is compared with the others.
            k: number of nearest classes to return.
            far: the rate of false acceptances, or ``"best-accuracy"``, as for :meth:`calibrate`.
            radius: the greatest distance of a known photograph, in place of the calibrated threshold.
            nearest: distances are to a class's ``"center"`` or its nearest ``"image"``.

        DataError if no class is indexed, or no threshold can be calibrated.
        """
        from .open_set.identify import Identifier, tell

        identifier = Identifier(self.search_index, self.loaded, tell)
        threshold, nearest = identifier.threshold(far, radius, nearest)
        return identifier.identified(identifier.queries(images), k, threshold, nearest)

    def calibrate(self, far: Rate = None, nearest: Nearest | None = None, on: str | Path | None = None) -> Calibration:
        """The threshold between known and new, calibrated unless a stored one fits.

        Args:
            far: the share of new individuals' photographs that are accepted as known, or ``"best-accuracy"``; by
                default as stored, else 0.05.
            nearest: ``"center"`` or ``"image"``; by default as stored, else the center.
            on: a folder with photographs of other individuals, a sub-folder each. By default each enrolled class that
                the run was not trained on is left out in turn.
        """
        from .open_set.identify import Identifier, tell

        return Identifier(self.search_index, self.loaded, tell).calibration(far, nearest, on)

    def score(self, folder: str | Path, far: Rate = None, radius: float | None = None) -> Scored:
        """Open-set metrics of a folder with a sub-folder per class, or of a file of vectors with labels."""
        from .open_set.identify import Identifier, tell

        identifier = Identifier(self.search_index, self.loaded, tell)
        threshold, nearest = identifier.threshold(far, radius, None)
        return identifier.scored(identifier.labelled(Path(folder)), threshold, nearest)

    def enroll(self, photographs: Sequence[str | Path], name: str) -> Enrolment:
        """Copy photographs of an individual into the indexed folder and index them.

        ``photographs`` are images or folders; ``name`` is the class. Bytes that the class already has are not copied
        again.
        """
        from .open_set.enrolment import enroll

        return enroll(self.search_index, [Path(each) for each in photographs], name)

    def picture(self, answers: Sequence[Answer]) -> Figure:
        """Draw queries and their 50 nearest answers, framed green (right) or red (wrong)."""
        from .query.pictures import answers_picture

        channels = self.images.channels
        return answers_picture(answers, self.gallery().folder, channels)

    # Clusters

    def group(
        self, images: Embedded, clusters: Number, chosen: Sequence[int] | None = None, min_size: int = 1
    ) -> Grouping:
        """Cluster embedded images; see :func:`pml_ext_search.cluster.clusters.group`."""
        from .cluster.clusters import group

        return group(images, clusters, chosen, min_size)

    def cluster(
        self, folder: str | Path, clusters: Number, out: str | Path | None = None, min_size: int = 1
    ) -> Clusters:
        """Cluster a folder's images; write ``clusters.csv``, and sheets of the 100 largest clusters.

        Args:
            folder: the folder of the images.
            clusters: their number, for k-means, or ``"auto"``, by first neighbors.
            out: the folder to write; by default ``clusters`` in the run's folder.
            min_size: images of smaller clusters go to the rest, number -1.

        Returns:
            The cluster of every path, numbered by decreasing size.
        """
        from .cluster.clusters import check_clusters, group, write_clusters

        place = Path(out or self.folder / "clusters")
        check_writable("-o", place)
        check_clusters(clusters, min_size)
        grouping = group(self.embed_folder(folder), clusters, min_size=min_size)
        return write_clusters(place, grouping, self.images.channels)
