"""A trained run: its network, read from the run's folder, and what can be done with it."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..devices import choose_device
from ..errors import ConfigError
from ..experiment.recipe import build_loss, loss_context
from .checks import check_folder, check_images_folder
from .embedding import Embedded, HowToRead, ImageEmbedder, Images, Listener
from .index import Gallery
from .indexed import IndexedRun
from .listing import list_folder
from .reading import check_workers
from .run_files import RunFiles
from .search import Answer
from .store import STORE

if TYPE_CHECKING:  # seconds to import, which a query need not take
    from matplotlib.figure import Figure

    from ..pml import BaseDistance
    from .clusters import Clusters, Progress
    from .grouping import Number
    from .pictures import Source


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


class TrainedRun(IndexedRun):
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
        place = (folder / STORE if store is None else Path(store)).absolute()
        self._images = ImageEmbedder(
            str(folder),
            self.network,
            self.device,
            self.identity,
            self.recipe.engine.precision,
            HowToRead(place, store is None, workers, listener),
        )
        self.transform = self._images.transform

    @property
    def identity(self) -> str:
        """A number of the trained weights: the start of the SHA-256 of ``model.pt``."""
        return self._files.identity

    @property
    def is_changed(self) -> bool:
        """Whether weights were changed or replaced in Python since the run was read: what is kept is not of them."""
        return self._images.is_changed

    @functools.cached_property
    def metric(self) -> BaseDistance | None:
        """The learned metric of the run's loss, in evaluation mode, if it has one."""
        from ..evaluation import learned_metric

        recipe = self._files.checked_recipe()
        loss, _ = build_loss(recipe.loss, loss_context(recipe, self._files.facts.classes))
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
        if isinstance(images, str) and not images:  # which pathlib takes for this folder
            raise ConfigError("the path '' is empty; wanted an image or a folder")
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

    # Pictures; indexes and queries are of IndexedRun

    def picture(
        self, answers: Sequence[Answer], gallery: Gallery | str | Path | None = None, beside: Sequence[Source] = ()
    ) -> Figure:
        """Queries and the nearest of their answers, framed green and red where the classes are known.

        An image that cannot be read any more is a gray square with a cross, and a :class:`RetrievalWarning`.

        Args:
            answers: what :meth:`query` returned; the 50 nearest of each are drawn.
            gallery: the index that was asked.
            beside: answers of other runs to the same queries, ``(title, answers, folder of the images)``, drawn below
                each of ours.
        """
        from .pictures import answers_picture

        return answers_picture(self._sources(answers, gallery, beside), self.network.preprocessing.channels)

    def pictures(
        self, answers: Sequence[Answer], gallery: Gallery | str | Path | None = None, beside: Sequence[Source] = ()
    ) -> Iterator[Figure]:
        """All answers, 50 of a query in each picture, in up to 20 pictures; for the arguments see :meth:`picture`."""
        from .pictures import answers_pictures

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
        sheets: int = 100,
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
        from .clusters import write_clusters
        from .grouping import check_clusters, group

        source, place = Path(folder), Path(out) if out is not None else self.folder / "clusters"
        check_images_folder(source)
        check_folder("-o", place)
        if sheets < 0:
            raise ConfigError(f"--sheets {sheets}: wanted 0 or more")
        check_clusters(clusters, smallest, 0, str(source))
        check_clusters(clusters, smallest, len(list_folder(source).names), str(source))
        grouping = group(self.embed_folder(source), clusters, smallest)
        return write_clusters(place, grouping, self.network.preprocessing.channels, sheets, progress)

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
        from .card import card
        from .export import WEIGHTS, write_card, write_export
        from .portable import ONNX, TORCH_EXPORT, check_onnx

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
