"""A trained run for embedding, search and clustering of images."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from torch import Tensor, nn

from pml_ext.distributed import choose_device, keep_freed_memory
from pml_ext.errors import ConfigError, DataError, unknown
from pml_ext.registry import service
from pml_ext_train.files import check_writable, composed
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


def load_run(
    path: str | Path,
    device: str = "auto",
    workers: int | None = None,
    store: str | Path | None = None,
    listener: OnProgress | None = None,
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
        listener: called with an :class:`EmbeddingProgress` after each batch of a folder's images.
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


class TrainedRun:
    """A trained network that embeds, indexes and searches images or vectors; see :func:`load_run` for the arguments."""

    def __init__(
        self,
        folder: Path,
        device: str,
        workers: int | None = None,
        store: str | Path | None = None,
        listener: OnProgress | None = None,
        by: By | None = None,
    ) -> None:
        self.loaded = LoadedRun(folder, device)
        """The run's network, recipe and learned metric."""
        self.folder = folder
        self.device = self.loaded.device
        self.recipe = self.loaded.recipe
        self.identity = self.loaded.identity
        self.search_index = index_of(self.loaded, store, workers, listener, by)
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
        """The learned metric of the run's loss, in evaluation mode; None if the loss has no such metric."""
        return self.loaded.metric

    @property
    def class_names(self) -> list[str]:
        """The classes that the network was trained on."""
        return self.loaded.description.class_names

    @property
    def images(self) -> ImageEmbedder:
        """What embeds images; ConfigError for a run that was trained on vectors."""
        return self.search_index.images

    @property
    def vectors(self) -> VectorEmbedder:
        """What embeds vectors; ConfigError for a run that was trained on images."""
        return self.search_index.vectors

    @property
    def place(self) -> Path:
        """The folder of the collection."""
        return self.collection.place

    def check_images(self) -> None:
        """Raise ConfigError for a run that was trained on vectors."""
        _ = self.images

    def export(self, out: str | Path, onnx: bool = False, by: By = "embeddings") -> Path:
        """Write the network for other programs; see :meth:`LoadedRun.export`."""
        return self.loaded.export(out, onnx, by)

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
        return self.search_index.embed(images, batch_size)

    def embed_folder(self, folder: str | Path, batch_size: int = 256) -> Embedded:
        """Embed all images below a folder, reusing the embeddings in the collection.

        New embeddings are written after each 1,000 images or 30 seconds; an interrupted call resumes from there. A file
        is embedded again if its size or modification time has changed. Under ``torchrun``, each rank embeds a part and
        returns all embeddings. Errors are those of :meth:`embed`, and UnwritableError, for example for a full disk.
        """
        return self.search_index.embed_folder(folder, batch_size)

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
        return self.search_index.write_index(parts, folder, factory)

    def index(self, folder: str | Path | None = None, factory: str = "", retry_damaged: bool = True) -> Gallery:
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
            retry_damaged: whether to read files again that an earlier pass found damaged and that have not changed.

        Returns:
            The index; ``changes`` counts new, changed and deleted images; ``faiss`` has ``effort`` and ``recall``.
        """
        return self.search_index.index(folder, factory, retry_damaged)

    def gallery(self) -> Gallery:
        """Open the index and keep it open; raise DataError if it is missing, damaged or of other weights."""
        return self.search_index.gallery()

    def indexed_images(self) -> Embedded:
        """Return the images of the index; DataError if it is missing, damaged or of other weights."""
        return self.search_index.indexed_images()

    def indexed_folder(self) -> Path:
        """Return the indexed folder, also if an earlier state of the run indexed it."""
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
            from .query.reranking import reranking_of

            reranking = reranking_of(rerank)
        learned = self._learned_metric(metric)
        options = QueryOptions(k, SearchFilter(within and composed(within), radius), learned, shortlist, reranking)
        of_store = None if store is None else functools.partial(self._search_of_store, store, options)
        return self.search_index.query(images, options, of_store)

    def query_texts(
        self, texts: Sequence[str], k: int = 8, within: str | None = None, radius: float | None = None
    ) -> list[Answer]:
        """Return the images of the index that are nearest to texts, for example to ``["a red car"]``.

        The trunk must be the frozen image encoder of a pair such as CLIP or SigLIP, with ``pool = "projected"``: texts
        are compared with its features, before any head. The other arguments are as in :meth:`query`; distances of texts
        and images are on another scale than those of images. ConfigError for other runs.
        """
        from .query.texts import answers_to_texts

        return answers_to_texts(
            self.loaded,
            self.search_index,
            list(texts),
            QueryOptions(k, SearchFilter(within and composed(within), radius)),
        )

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
                self.vectors, queries, find, file, names_in_index(self.search_index.kept_gallery(), queries)
            )
        return match(self.images, listed(items, folder), find, file)

    def _search_of_store(self, store: str, options: QueryOptions) -> Answers:
        """Return a function from names and embeddings to a store's answers."""
        return answers_of_store(self.open_filled_store(store), self.search_index.kept_gallery(), options)

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
        self, radius: float | None = None, keep: str = "most-pixels", kinds: Sequence[CopyKind] = get_args(CopyKind)
    ) -> FoundCopies:
        """Return copies among the images, or vectors, of the index: their groups, each with what to keep.

        See :func:`pml_ext_copies.duplicates.find_duplicates` for the arguments. Images in shards have no files; they
        are compared by their embeddings, as vectors are. PluginError without the plugin ``copies``.
        """
        copies: CopiesService = service("copies", "TrainedRun.duplicates")
        embedded = self.gallery().embedded
        if self.takes_vectors or not any((embedded.folder / name).is_file() for name in embedded.paths):
            return copies.find_equal_vectors(embedded.paths, embedded.embeddings, radius)
        return copies.find(embedded.folder, embedded.paths, radius, keep, kinds)

    def select(self, count: int = 10, kind: SelectionKind = "distinct") -> Selection:
        """Return the most distinct images, or vectors, of the index, its outliers, or those nearest to class centers.

        Args:
            count: how many; of ``"central"``, of each class.
            kind: ``"distinct"``, ``"outliers"`` or ``"central"``; see :mod:`pml_ext_search.select.selection`.
        """
        from .select.selection import select

        return select(self.indexed_images(), count, kind)

    # Known or new

    def identify(
        self, images: Images, k: int = 3, far: Rate = None, radius: float | None = None, nearest: Nearest | None = None
    ) -> list[Identified]:
        """Return which class of the index each photograph shows, or that it is new.

        A photograph is new if the nearest class is farther than the collection's threshold, which is calibrated where
        it is missing or stale, with a :class:`RetrievalWarning`; see :meth:`calibrate`.

        Args:
            images: as in :meth:`query`, or a folder; an indexed image is compared with the others.
            k: number of nearest classes to return.
            far: the wanted rate of false acceptances, or ``"best-accuracy"``; as for :meth:`calibrate`.
            radius: the greatest distance of a known photograph, in place of the threshold.
            nearest: ``"center"`` or ``"image"``: what the distance to a class is taken to.

        DataError if no class is indexed, or if no threshold can be calibrated.
        """
        from .open_set.identify import identify

        return identify(self.search_index, self.loaded, images, k, far, radius, nearest)

    def calibrate(self, far: Rate = None, nearest: Nearest | None = None, on: str | Path | None = None) -> Calibration:
        """Return the threshold between known and new; calibrate and keep it if it is missing, stale or another one.

        Args:
            far: the wanted rate of false acceptances: of photographs of individuals that are not enrolled, the share
                that is taken for known. Or ``"best-accuracy"``: as many of the enrolled images, each left out, are
                right as can be, known and new together. By default what is kept, and 0.05 at first.
            nearest: ``"center"`` or ``"image"``; by default what is kept, and the center at first.
            on: a folder with photographs of other individuals, a sub-folder each. By default every enrolled image of a
                class that the run was not trained on stands for a new individual, while its class is left out.
        """
        from .open_set.identify import Identifier, tell

        return Identifier(self.search_index, self.loaded, tell).calibration(far, nearest, on)

    def score(self, folder: str | Path, far: Rate = None, radius: float | None = None) -> Scored:
        """Return the open-set metrics of a folder of photographs with a sub-folder per class, enrolled or not.

        Of a run of vectors, ``folder`` is a file of vectors with labels. An indexed image is compared with the others.
        """
        from .open_set.identify import score

        return score(self.search_index, self.loaded, folder, far, radius)

    def enroll(self, photographs: Sequence[str | Path], name: str) -> Enrolment:
        """Add photographs of an individual to the indexed folder and its index, without training.

        Args:
            photographs: paths of images, or folders of them, which are copied into the sub-folder ``name`` of the
                indexed folder. One whose bytes are there already is not copied again.
            name: of the class.
        """
        from .open_set.enrolment import enroll

        return enroll(self.search_index, [Path(each) for each in photographs], name)

    def picture(self, answers: Sequence[Answer]) -> Figure:
        """Draw queries and their 50 nearest answers, framed green (right) or red (wrong) if the classes are known."""
        from .query.pictures import answers_picture

        channels = self.images.channels
        gallery = self.search_index.kept_gallery()
        if not gallery.is_open:
            gallery = self.gallery()
        return answers_picture(answers, gallery.folder, channels)

    # Clusters

    def group(self, images: Embedded, clusters: Number, chosen: Sequence[int] | None = None) -> Grouping:
        """Return clusters of embedded images, without writing anything; see :func:`pml_ext_search.group`."""
        from .cluster.clusters import group

        return group(images, clusters, chosen)

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
        from .cluster.clusters import check_clusters, group, write_clusters

        if out is not None:
            place = Path(out)
        else:
            place = self.folder / "clusters"
        check_writable("-o", place)
        check_clusters(clusters)
        grouping = group(self.embed_folder(folder), clusters)
        return write_clusters(place, grouping, self.images.channels)
