"""A trained run: its network, read from the run's folder, and what can be done with it."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from ..data import image_files
from ..devices import choose_device
from ..errors import ConfigError, unknown
from ..evaluation import learned_metric
from ..experiment.recipe import build_loss, loss_context
from ..pml import BaseDistance
from .card import card
from .checks import check_folder, check_images_folder
from .clusters import check_clusters, sort_into_clusters, write_clusters
from .embedding import Embedded, HowToRead, ImageEmbedder, Images, Listener, names_of
from .export import WEIGHTS, write_card, write_export
from .faiss_index import FaissIndex, check_effort, check_factory
from .index import INDEX, Gallery, Owner, read_index, write_index
from .pictures import answers_picture
from .portable import ONNX, TORCH_EXPORT, check_onnx
from .reading import check_workers, several
from .run_files import RunFiles
from .search import METRICS, Answer, RetrievalWarning, answers_of, check_search, search_of
from .store import STORE

_FAIR = 0.9  # recall@10 below which an index is warned of


def load_run(
    path: str | Path,
    device: str = "auto",
    workers: int | None = None,
    store: str | Path | None = None,
    listener: Listener | None = None,
) -> TrainedRun:
    """A finished run, for retrieval.

    Args:
        path: the run's folder.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        workers: processes that read the images of a folder; 0 for this one. By default none for fewer than 256 images
            that are to be read, else as many as there are processors, up to 8; none on Windows and macOS.
        store: the folder in which embeddings of folders are kept, so that none is computed twice; by default
            ``embeddings`` in the run's folder.
        listener: called with a :class:`Progress` after each batch of a folder's images.

    Raises:
        DataError: no finished run in the folder, or a file of it is empty, cut or of another run.
        ConfigError: a wrong device, or workers below 0.

    Example:
        >>> run = load_run("runs/mine")  # doctest: +SKIP
        >>> run.embed(["photo.png"]).shape  # doctest: +SKIP
        torch.Size([1, 64])
    """
    check_workers(workers)
    return TrainedRun(Path(path), choose_device(device), workers, store, listener)


class TrainedRun:
    """A trained network with the preprocessing of its run; see :func:`load_run`.

    Args:
        folder: the run's folder.
        device: where it works.
        workers: as of :func:`load_run`.
        store: as of :func:`load_run`.
        listener: as of :func:`load_run`.
    """

    def __init__(
        self,
        folder: Path,
        device: str = "cpu",
        workers: int | None = None,
        store: str | Path | None = None,
        listener: Listener | None = None,
    ) -> None:
        self.folder, self.device = folder, torch.device(device)
        self._files = RunFiles(folder, self.device)
        self.recipe = self._files.recipe
        self.network = self._files.network().to(self.device).eval()
        self.trunk, self.embedder = self.network.trunk, self.network.embedder
        place = folder / STORE if store is None else Path(store)
        self._images = ImageEmbedder(
            str(folder), self.network, self.device, self.identity, self.recipe.engine.precision,
            HowToRead(place, store is None, workers, listener),
        )  # fmt: skip
        self.transform = self._images.transform

    @property
    def identity(self) -> str:
        """A number of the trained weights: the start of the SHA-256 of ``model.pt``."""
        return self._files.identity

    @functools.cached_property
    def metric(self) -> BaseDistance | None:
        """The learned metric of the run's loss, in evaluation mode, if it has one."""
        loss, _ = build_loss(self.recipe.loss, loss_context(self.recipe, self._files.facts.classes))
        self._files.load(loss, "loss")
        metric = learned_metric(loss.modules())
        return metric.to(self.device).eval() if metric is not None else None

    # Embeddings

    def embed(self, images: Images, normalize: bool = True, batch_size: int = 256) -> Tensor:
        """Embeddings of images.

        Args:
            images: a folder, or one or several images in a list, a generator, an array or a tensor. An image is a path,
                a PIL image, a uint8 array ``[H, W, 3]`` or ``[H, W]``, or a uint8 tensor ``[C, H, W]`` with the run's
                channels. Files and PIL images are turned upright; all but tensors are converted to the run's channels.
            normalize: whether embeddings have length 1.
            batch_size: images at a time; of several, no more are held.

        Returns:
            ``[N, D]``, float32, on the run's device; of a folder, in the order of its paths.

        Raises:
            DataError: a file cannot be read, a folder has no readable image, or the network gives NaN. Unreadable
                files of a folder are left out with a :class:`SkippedImage` warning.
            TypeError: something that is no image.
            ConfigError: ``batch_size`` below 1.
        """
        if isinstance(images, (str, Path)) and Path(images).is_dir():
            return self.embed_folder(images, normalize, batch_size).embeddings
        return self._images.embed(images, normalize, batch_size)

    def embed_folder(
        self, folder: str | Path, normalize: bool = True, batch_size: int = 256, workers: int | None = None
    ) -> Embedded:
        """Embeddings of all images below a folder; those that the run's store has are not computed again.

        They are written to the store as they come, after each 1,000 images or 30 seconds: what is interrupted goes on
        from there. A file is embedded again if its size or its time of modification is another one. Processes that
        ``torchrun`` started embed a part each, and return all.

        Args:
            folder: of images, in sub-folders too.
            normalize: as of :meth:`embed`; the store has them as they are.
            batch_size: images at a time, at most; 64 are enough.
            workers: as of :func:`load_run`, for this folder.

        Raises:
            DataError: as of :meth:`embed`, or a worker that reads died; the text has the image that it had.
            UnwritableError: the disk is full, say; what was written stays.
            ConfigError: ``batch_size`` below 1, or workers below 0.
        """
        return self._images.embed_folder(Path(folder), normalize, batch_size, workers)

    # Indexing and querying

    @property
    def _owner(self) -> Owner:
        return Owner(self.folder, self.identity, self.recipe.model.embedding_size, self.device)

    def index(
        self, folder: str | Path, out: str | Path | None = None, factory: str = "", effort: int | None = None
    ) -> Gallery:
        """Embeds a folder and writes an index of it.

        Everything but the images is checked before any is embedded. The older index stands until the new one is whole;
        a reader sees either.

        Args:
            folder: of the images.
            out: the folder to write; by default ``index`` in the run's folder, whose older index it replaces.
            factory: a faiss factory string such as ``"IVF64,Flat"`` or ``"HNSW32"`` for large galleries; "" searches
                exactly.
            effort: how hard such an index searches, ``nprobe`` or ``efSearch``. By default it is doubled until
                recall@10 reaches 0.95 on a sample; :mod:`pml_ext.retrieval.faiss_index` has the rule.

        Returns:
            The index; the ``faiss`` of one with a factory string has ``effort`` and the measured ``recall``.

        Raises:
            DataError: no readable image.
            ConfigError: faiss refuses the factory string, ``out`` cannot be written, or an effort that is below 1 or
                that nothing would heed.
            MissingExtraError: a factory string without faiss.
        """
        source, place = Path(folder), Path(out) if out is not None else self.folder / INDEX
        check_images_folder(source)
        check_folder("-o", place)
        check_effort(effort)
        if factory:
            check_factory(factory, self.recipe.model.embedding_size, len(image_files(source)), effort)
        elif effort is not None:
            raise ConfigError(f"--effort {effort}: an index without --index is searched exactly; leave out --effort")
        embedded = self.embed_folder(source)
        faiss = FaissIndex.build(factory, embedded.embeddings, effort) if factory else None
        if faiss is not None and faiss.recall is not None and faiss.recall < _FAIR:
            more = "a greater --effort, or another --index" if effort is not None else "another --index, or none,"
            warnings.warn(f"the index {factory} finds {faiss.recall:.0%} of what exact search finds; {more} finds more",
                          RetrievalWarning, stacklevel=2)  # fmt: skip
        return write_index(place, self._owner, embedded, faiss)

    def gallery(self, place: str | Path | None = None) -> Gallery:
        """Reads an index.

        Args:
            place: its folder; by default ``index`` in the run's folder.

        Raises:
            DataError: no index there, a damaged one, or one that another run, or an earlier state of this one, has
                built.
        """
        return read_index(Path(place) if place is not None else self.folder / INDEX, self._owner)

    def query(
        self,
        images: Images,
        k: int = 8,
        gallery: Gallery | str | Path | None = None,
        metric: str = "euclidean",
        shortlist: int | None = None,
        effort: int | None = None,
    ) -> list[Answer]:
        """The nearest images of an index; fewer than k come with a :class:`RetrievalWarning`.

        Args:
            images: as of :meth:`embed`; an image that lies in the index itself is no answer to itself.
            k: how many, at least 1.
            gallery: an index, or its folder; by default the run's own.
            metric: ``"euclidean"``, or ``"learned"`` for a run whose loss has a learned metric.
            shortlist: how many of the nearest by Euclidean distance the learned metric re-ranks; the index's faiss
                finds these, where it has one. By default the metric is compared with all images.
            effort: how hard the index's faiss searches, ``nprobe`` or ``efSearch``; by default what was chosen when
                the index was built. A query that gets fewer than k answers is searched again with twice the effort.

        Returns:
            An answer for each query.

        Raises:
            ConfigError: k, shortlist or effort below 1, an unknown metric, a learned one that the run does not have,
                or an effort that nothing would heed.
            DataError: an unreadable query, no index, or one of another run.
        """
        if metric not in METRICS:
            raise ConfigError(unknown("metric", metric, METRICS))
        learned = metric == "learned"
        if learned and self.metric is None:
            raise ConfigError(f"{self.folder} has no learned metric: its loss is {self.recipe.loss.name}; "
                              "leave out --metric learned")  # fmt: skip
        if isinstance(images, (str, Path)) and Path(images).is_dir():
            raise ConfigError(f"{images} is a folder; a query is an image, or several")
        if not isinstance(images, Tensor):
            images = list(several(images))  # a generator can be had once
        held = gallery if isinstance(gallery, Gallery) else self.gallery(gallery)
        check_search(held, k, learned, shortlist, effort)
        search = search_of(held, self.metric if learned else None, shortlist, effort)
        return answers_of(names_of(images), self.embed(images), k, held, search)

    def picture(self, answers: Sequence[Answer], gallery: Gallery | str | Path | None = None,
                beside: Sequence[tuple[str, Sequence[Answer], Path]] = ()) -> Figure:  # fmt: skip
        """Queries and the nearest of their answers, framed green and red where the classes are known.

        An image that cannot be read any more is a gray square with a cross, and a :class:`RetrievalWarning`.

        Args:
            answers: what :meth:`query` returned; the 50 nearest of each are drawn.
            gallery: the index that was asked.
            beside: answers of other runs to the same queries, ``(title, answers, folder of the images)``, drawn below
                each of ours.
        """
        held = gallery if isinstance(gallery, Gallery) else self.gallery(gallery)
        sources = [(self.folder.name, answers, held.embedded.folder), *beside]
        return answers_picture(sources, self.network.preprocessing.channels)

    # Clusters

    def cluster(self, folder: str | Path, clusters: int, out: str | Path | None = None) -> dict[str, int]:
        """Sorts a folder's images into clusters by k-means, and writes a table and a contact sheet for each.

        Args:
            folder: of the images.
            clusters: how many, from 1 to the number of images.
            out: the folder to write, with ``clusters.csv`` and ``cluster-000.png``, ...; by default ``clusters`` in the
                run's folder.

        Returns:
            The cluster of every path; clusters are numbered by size, the largest first.

        Raises:
            ConfigError: fewer than 1 cluster or more than images, or ``out`` cannot be written.
            DataError: no readable image.
        """
        source, place = Path(folder), Path(out) if out is not None else self.folder / "clusters"
        check_images_folder(source)
        check_folder("-o", place)
        check_clusters(clusters, source)
        embedded = self.embed_folder(source)
        numbers = sort_into_clusters(embedded, clusters)
        write_clusters(place, embedded, numbers, self.network.preprocessing.channels)
        return dict(zip(embedded.paths, numbers, strict=True))

    # Export

    def export(
        self,
        out: str | Path,
        onnx: bool = False,
        torch_export: bool = False,
        images: str | Path | None = None,
    ) -> Path:
        """Writes the network for programs without this package, with a model card, ``README.md``.

        ``model.safetensors`` has the weights, ``preprocess.json`` what is done to images, and checksums. Graphs, which
        need no code of the network, are for batches of any size; their embeddings are compared with the network's, and
        the largest difference of a number stands in ``preprocess.json``.

        Args:
            out: the folder to write.
            onnx: whether ``model.onnx`` is written.
            torch_export: whether ``model.pt2`` is, which ``torch.export.load`` reads.
            images: a folder of images by which graphs are compared, 100 of them; by default images of noise are.

        Returns:
            The folder.

        Raises:
            ConfigError: ``out`` cannot be written, torch cannot write a graph, or its embeddings differ by more than
                1e-4.
            DataError: no readable image to compare by.
            MissingExtraError: safetensors, or what ``onnx`` needs, is not installed.
        """
        place = Path(out)
        check_folder("-o", place)
        names = [name for name, wanted in ((ONNX, onnx), (TORCH_EXPORT, torch_export)) if wanted]
        if images is not None and not names:
            raise ConfigError(f"--images {images}: nothing to compare with; it goes with --onnx or --torch-export")
        if onnx:
            check_onnx()
        compared = self._images.some_images(None if images is None else Path(images)) if names else None
        seen, model = self.network.preprocessing, self.recipe.model
        about = {
            "trunk": {"name": model.trunk.name, **model.trunk.settings},
            "embedding_size": model.embedding_size,
            "hidden_sizes": model.hidden_sizes,
            "features": self.network.features,
            "image_size": seen.image_size,
            "channels": seen.channels,
            "resize": seen.resized_to,
            "squash": seen.squash,
            "bgr": seen.bgr,
            "value_range": seen.value_range,
            "normalize": seen.normalize.model_dump() if seen.normalize is not None else None,
            "l2_normalize_embeddings": True,
        }
        graphs = {name: compared for name in names if compared is not None}
        differences = write_export(place, self.network, about, graphs)
        text = card(self.folder, self.recipe, self.trunk, about, [WEIGHTS, *differences])
        write_card(place, text, differences)
        return place
