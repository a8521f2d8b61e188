"""A trained run: its network, read from the run's folder, and what can be done with it."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Sequence
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
from .checks import check_folder, check_images_folder
from .clusters import SHEETS, Clusters, Progress, write_clusters
from .embedding import Embedded, ImageEmbedder, Images, names_of
from .export import write_export
from .faiss_index import FaissIndex, check_effort, check_factory
from .grouping import Number, check_clusters, group
from .index import INDEX, Gallery, Owner, read_index, write_index
from .pictures import Source, answers_picture, answers_pictures
from .run_files import RunFiles
from .search import METRICS, Answer, RetrievalWarning, answers_of, check_search, search_of

_FAIR = 0.9  # recall@10 below which an index is warned of


def load_run(path: str | Path, device: str = "auto") -> TrainedRun:
    """A finished run, for retrieval.

    Args:
        path: the run's folder.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.

    Raises:
        DataError: no finished run in the folder, or a file of it is empty, cut or of another run.
        ConfigError: a wrong device.

    Example:
        >>> run = load_run("runs/mine")  # doctest: +SKIP
        >>> run.embed(["photo.png"]).shape  # doctest: +SKIP
        torch.Size([1, 64])
    """
    return TrainedRun(Path(path), choose_device(device))


class TrainedRun:
    """A trained network with the preprocessing of its run; see :func:`load_run`.

    Args:
        folder: the run's folder.
        device: where it works.
    """

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self.folder, self.device = folder, torch.device(device)
        self._files = RunFiles(folder, self.device)
        self.recipe = self._files.recipe
        self.network = self._files.network().to(self.device).eval()
        self.trunk, self.embedder = self.network.trunk, self.network.embedder
        self._images = ImageEmbedder(str(folder), self.network, self.device)
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
            images: a folder, an image file, several of them, or uint8 tensors ``[C, H, W]`` (or all in one
                ``[N, C, H, W]``). Files are turned upright and read as the run's channels say.
            normalize: whether embeddings have length 1.
            batch_size: images at a time.

        Returns:
            ``[N, D]``, float32, on the run's device; of a folder, in the order of its paths.

        Raises:
            DataError: a file cannot be read, a folder has no readable image, or the network gives NaN. Unreadable
                files of a folder are left out with a :class:`SkippedImage` warning.
        """
        if isinstance(images, (str, Path)) and Path(images).is_dir():
            return self.embed_folder(images, normalize, batch_size).embeddings
        return self._images.embed(images, normalize, batch_size)

    def embed_folder(self, folder: str | Path, normalize: bool = True, batch_size: int = 256) -> Embedded:
        """Embeddings of all images below a folder; see :meth:`embed`."""
        return self._images.embed_folder(Path(folder), normalize, batch_size)

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
        held = gallery if isinstance(gallery, Gallery) else self.gallery(gallery)
        check_search(held, k, learned, shortlist, effort)
        search = search_of(held, self.metric if learned else None, shortlist, effort)
        return answers_of(names_of(images), self.embed(images), k, held, search)

    def picture(self, answers: Sequence[Answer], gallery: Gallery | str | Path | None = None,
                beside: Sequence[Source] = ()) -> Figure:  # fmt: skip
        """Queries and the nearest of their answers, framed green and red where the classes are known.

        An image that cannot be read any more is a gray square with a cross, and a :class:`RetrievalWarning`.

        Args:
            answers: what :meth:`query` returned; the 50 nearest of each are drawn.
            gallery: the index that was asked.
            beside: answers of other runs to the same queries, ``(title, answers, folder of the images)``, drawn below
                each of ours.
        """
        return answers_picture(self._sources(answers, gallery, beside), self.network.preprocessing.channels)

    def pictures(self, answers: Sequence[Answer], gallery: Gallery | str | Path | None = None,
                 beside: Sequence[Source] = ()) -> Iterator[Figure]:  # fmt: skip
        """All answers, 50 of a query in each picture, in up to 20 pictures; for the arguments see :meth:`picture`."""
        return answers_pictures(self._sources(answers, gallery, beside), self.network.preprocessing.channels)

    def _sources(
        self, answers: Sequence[Answer], gallery: Gallery | str | Path | None, beside: Sequence[Source]
    ) -> list[Source]:
        held = gallery if isinstance(gallery, Gallery) else self.gallery(gallery)
        return [(self.folder.name, answers, held.embedded.folder), *beside]

    # Clusters

    def cluster(
        self,
        folder: str | Path,
        clusters: Number,
        out: str | Path | None = None,
        *,
        smallest: int | None = None,
        sheets: int = SHEETS,
        progress: Progress | None = None,
    ) -> Clusters:
        """Sorts a folder's images into clusters, and writes a table, and contact sheets of the largest clusters.

        Args:
            folder: of the images.
            clusters: how many, from 1 to the number of images, by k-means; ``"auto"`` where that is not known, by
                HDBSCAN. :func:`pml_ext.retrieval.grouping.group` has the rules for large collections.
            out: the folder to write, with ``clusters.csv`` and ``cluster-000.png``, ... (``noise.png`` of images in no
                cluster); by default ``clusters`` in the run's folder.
            smallest: with ``"auto"``, images that a cluster has at least; 5 by default.
            sheets: how many clusters have a contact sheet.
            progress: called with how many sheets are drawn, and how many there will be.

        Returns:
            The cluster of every path, -1 for none; clusters are numbered by size, the largest first. Its ``clusters``
            have the majority class of each and its share, where the folder has a sub-folder per class.

        Raises:
            ConfigError: fewer than 1 cluster or more than images, or ``out`` cannot be written.
            DataError: no readable image.
        """
        source, place = Path(folder), Path(out) if out is not None else self.folder / "clusters"
        check_images_folder(source)
        check_folder("-o", place)
        if sheets < 0:
            raise ConfigError(f"--sheets {sheets}: wanted 0 or more")
        check_clusters(clusters, smallest, 0, str(source))
        check_clusters(clusters, smallest, len(image_files(source)), str(source))
        grouping = group(self.embed_folder(source), clusters, smallest)
        return write_clusters(place, grouping, self.network.preprocessing.channels, sheets, progress)

    # Export

    def export(self, out: str | Path) -> Path:
        """Writes the network for programs without this package: ``model.safetensors`` and ``preprocess.json``.

        Args:
            out: the folder to write.

        Returns:
            The folder.

        Raises:
            ConfigError: ``out`` cannot be written.
            MissingExtraError: safetensors is not installed.
        """
        place = Path(out)
        check_folder("-o", place)
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
        write_export(place, {"trunk": self.trunk, "embedder": self.embedder}, about)
        return place
