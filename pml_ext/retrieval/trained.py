"""A trained run: its network, read from the run's folder, and the uses of it."""

from __future__ import annotations

import functools
import shlex
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import Field, ValidationError
from torch import Tensor, nn

from ..checksums import check_unchanged, sha256_of
from ..devices import choose_device
from ..errors import ConfigError, DataError, shortened, unknown
from ..experiment import checkpoint
from ..experiment.recipe import Recipe, build_loss, build_network, load_recipes, loss_context
from ..files import DamagedError, read_json, read_toml
from ..models import builtin_trunk
from ..network import Network, Preprocessing
from .checks import RetrievalWarning, check_folder, check_images_folder, reason_of
from .collection import COLLECTION, Changes, Collection, Vectors
from .embedding import Embedded, ImageEmbedder, Images, Listener, names_of
from .query import METRICS, RADIUS, Answer, Gallery, Options, is_inside
from .reading import check_workers, list_folder, several
from .search import FaissIndex, check_effort, check_factory, chosen_factory

if TYPE_CHECKING:  # seconds to import, which a query need not take
    from matplotlib.figure import Figure

    from ..pml import BaseDistance
    from .clusters import Clusters, Number, SheetProgress
    from .pictures import Source

_WEIGHTS = "checkpoints/model.pt"
_FAIR = 0.9  # recall@10 below which an index is warned of


class NetworkFacts(Preprocessing):
    """The content of ``network.json``: length of the trunk's features, labels and names of the training classes."""

    features: int = Field(ge=1)
    classes: list[int]
    class_names: list[str] = Field(default_factory=list)


def load_run(
    path: str | Path,
    device: str = "auto",
    workers: int | None = None,
    store: str | Path | None = None,
    listener: Listener | None = None,
) -> TrainedRun:
    """Load a finished run for retrieval.

    Args:
        path: the run's folder.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        workers: processes that read the images of a folder; 0 for this one. By default none for fewer than 256 images
            that are to be read, else as many as there are processors, up to 8; none on Windows and macOS.
        store: the folder of the collection, in which embeddings are kept; by default ``collection`` in the run's
            folder.
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
    """A trained network with the preprocessing of its run; see :func:`load_run` for the arguments."""

    def __init__(
        self,
        folder: Path,
        device: str = "cpu",
        workers: int | None = None,
        store: str | Path | None = None,
        listener: Listener | None = None,
    ) -> None:
        self.folder, self.device = folder, torch.device(device)
        for name in ("recipe.toml", "network.json", _WEIGHTS):
            if not (folder / name).is_file():
                again = name == "network.json" and (folder / "metrics.json").is_file()
                remedy = f"report {folder}" if again else f"train RECIPE --out {folder}"
                raise DataError(f"{folder}: no finished run (no {name} in it); type: pml-ext {remedy}")
        self.recipe = self._read_recipe()
        self._facts = self._read_facts()
        digest = sha256_of(folder / _WEIGHTS)
        state = checkpoint.load(folder / _WEIGHTS, self.device, digest=digest)
        for name in ("recipe.toml", "network.json"):
            check_unchanged(folder, name)
        self.identity = digest[:16]
        """The start of the SHA-256 of ``model.pt``."""
        self.network = self._build_network(state).to(self.device).eval()
        self._state = {key: state.get(key) for key in ("loss", "versions")}  # the rest is in the network
        self.trunk, self.embedder = self.network.trunk, self.network.embedder
        place = (folder / COLLECTION if store is None else Path(store)).absolute()
        self._images = ImageEmbedder(
            folder,
            self.network,
            self.device,
            self.identity,
            self.recipe.engine.precision,
            place,
            store is None,
            workers,
            listener,
        )
        self.transform = self._images.transform
        self._galleries: dict[Path, Gallery] = {}

    # The run's files

    def _read_recipe(self) -> Recipe:
        """Read the recipe; plugins are imported, which takes a second, only where the network is of one."""
        try:
            tables = read_toml(self.folder / "recipe.toml", "run")
        except DamagedError as error:
            path = self.folder / "recipe.toml"
            raise DataError(
                f"{path}: empty, cut or changed ({shortened(error, 200)}); delete {self.folder / 'metrics.json'} and "
                f"type: pml-ext train RECIPE --out {self.folder} --resume"
            ) from None
        tables.pop("run")
        try:
            recipe = Recipe.model_validate(tables)
        except ValidationError:
            return self._checked_recipe()
        return recipe if builtin_trunk(recipe.model.trunk.name) is not None else self._checked_recipe()

    def _checked_recipe(self) -> Recipe:
        return next(iter(load_recipes(str(self.folder / "recipe.toml")).values()))

    def _read_facts(self) -> NetworkFacts:
        try:
            return NetworkFacts.model_validate(read_json(self.folder / "network.json"))
        except (DamagedError, ValidationError) as error:
            raise self._damaged_facts(reason_of(error)) from None

    def _damaged_facts(self, reason: str) -> DataError:
        recipe = str(self.folder / "recipe.toml")
        again = shlex.join(["pml-ext", "train", recipe, "--out", str(self.folder), "--resume"])
        return DataError(
            f"{self.folder / 'network.json'}: empty, cut or of another run ({reason}); delete "
            f"{self.folder / 'metrics.json'} and type: {again}"
        )

    def _build_network(self, state: dict[str, Any]) -> Network:
        try:
            network = build_network(self.recipe.model, self._facts, self._facts.features, trained=True)
        except ConfigError as error:
            self._checked_recipe()  # an error of the recipe is told as one
            raise self._damaged_facts(str(error)) from None
        self._load_weights(network.trunk, "trunk", state)
        self._load_weights(network.embedder, "embedder", state)
        return network

    def _load_weights(self, module: nn.Module, part: str, state: dict[str, Any]) -> None:
        with checkpoint.taking(self.folder / _WEIGHTS, state):
            module.load_state_dict(state[part])

    @property
    def is_changed(self) -> bool:
        """Whether weights were changed or replaced in Python since the run was read.

        Such a network neither reads nor writes the collection.
        """
        return self._images.is_changed

    @functools.cached_property
    def metric(self) -> BaseDistance | None:
        """The learned metric of the run's loss, in evaluation mode, if it has one."""
        from ..evaluation import learned_metric

        recipe = self._checked_recipe()
        loss, _ = build_loss(recipe.loss, loss_context(recipe, self._facts.classes))
        self._load_weights(loss, "loss", self._state)
        metric = learned_metric(loss.modules())
        return metric.to(self.device).eval() if metric is not None else None

    # Embeddings

    def embed(self, images: Images, normalize: bool = True, batch_size: int = 256) -> Tensor:
        """Embed images.

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
        """Embed all images below a folder; those that the collection has are not computed again.

        They are written to the collection after each 1,000 images or 30 seconds: an interrupted call goes on from
        there. A file is embedded again if its size or its time of modification has changed. Processes that ``torchrun``
        started embed a part each, and return all.

        Args:
            folder: of images, in sub-folders too.
            normalize: as of :meth:`embed`.
            batch_size: images at a time, at most; 64 are enough.
            workers: as of :func:`load_run`, for this folder.

        Raises:
            DataError: as of :meth:`embed`, or a worker that reads died.
            UnwritableError: the disk is full, say; what was written stays.
        """
        return self._images.embed_folder(Path(folder), normalize, batch_size, workers)

    # The index

    def index(
        self,
        folder: str | Path | None = None,
        out: str | Path | None = None,
        factory: str = "",
        effort: int | None = None,
    ) -> Gallery:
        """Embed a folder and index it; again, take up what is new, changed and gone.

        Images that the collection has are not embedded again. The index before stands until the new one is whole. An
        image keeps its id while its path stays, and no id is used again.

        Args:
            folder: of the images; by default the one that was indexed before.
            out: the folder of another collection to write; by default the run's own.
            factory: ``"exact"``, or a faiss factory string such as ``"IVF64,Flat"`` or ``"HNSW32"``. By default up to
                200,000 images are searched exactly, and more of them by faiss with the square root of their number as
                lists.
            effort: how hard such an index searches, ``nprobe`` or ``efSearch``; by default as much as recall@10 of 0.95
                takes.

        Returns:
            The index; its ``changes`` say what is new, and its ``faiss`` has ``effort`` and the measured ``recall``.

        Raises:
            DataError: no readable image, or no folder is given and none was indexed.
            ConfigError: faiss refuses the factory string, ``out`` cannot be written, or an effort without effect.
            UnwritableError: the disk is full, say; the index before stands.
        """
        collection = self._collection(out)
        source = self.indexed_folder(out) if folder is None else Path(folder)
        check_images_folder(source)
        check_folder("--store", collection.place)
        check_effort(effort)
        if factory or effort is not None:
            self._check_factory(factory, len(list_folder(source).names), effort)
        if self.is_changed:
            raise ConfigError(f"{self.folder}: its network was changed since it was read; an index is of the run's own")
        if collection.place != self._images.collection.place:
            return self._write(collection, self.embed_folder(source), factory, effort)
        with self._images.folder_pass(source, 256) as done:
            changes = collection.write_index(
                source, done.paths, done.facts, done.numbers, done.skipped, self._build(factory, effort)
            )
        return self._gallery(collection, changes)

    def write_index(
        self, embedded: Embedded, out: str | Path | None = None, factory: str = "", effort: int | None = None
    ) -> Gallery:
        """Index embeddings that are there already, of this run's network or made up.

        Args:
            embedded: folder, paths and embeddings, float32 of length 1; the images need not exist.
            out: as of :meth:`index`.
            factory: as of :meth:`index`.
            effort: as of :meth:`index`.

        Raises:
            DataError: embeddings that are not of length 1 or not finite, or paths that leave the folder.
            ConfigError: as of :meth:`index`.
        """
        collection = self._collection(out)
        check_folder("--store", collection.place)
        check_effort(effort)
        self._check_factory(factory, len(embedded.paths), effort)
        return self._write(collection, embedded, factory, effort)

    def _write(self, collection: Collection, embedded: Embedded, factory: str, effort: int | None) -> Gallery:
        points = embedded.embeddings.cpu().numpy()
        _check_embedded(embedded, points, self.recipe.model.embedding_size)
        unknown_facts = np.full((len(points), 2), -1, dtype=np.int64)
        known = embedded.sizes is not None and embedded.times is not None
        facts = np.stack([embedded.sizes, embedded.times], 1) if known else unknown_facts  # type: ignore[list-item]
        faiss = self._build(factory, effort)(points)  # before anything is written, since faiss may refuse
        with collection.locked():
            collection.create(replace=True)
            first = collection.append_vectors(points)
            changes = collection.write_index(
                embedded.folder,
                embedded.paths,
                [(size, time) for size, time in facts.tolist()],
                first + np.arange(len(points), dtype=np.int64),
                embedded.skipped,
                lambda _: faiss,
            )
            collection.compact()
        return self._gallery(collection, changes)

    def _build(self, factory: str, effort: int | None) -> Any:
        def build(points: Vectors) -> FaissIndex | None:
            chosen = chosen_factory(factory, len(points))
            if not chosen:
                return None
            faiss = FaissIndex.build(chosen, torch.from_numpy(points), effort)
            if faiss.recall is not None and faiss.recall < _FAIR:
                more = "a greater --effort, or another --index" if effort is not None else "another --index, or exact,"
                text = f"the index {chosen} finds {faiss.recall:.0%} of what exact search finds; {more} finds more"
                warnings.warn(text, RetrievalWarning, stacklevel=5)
            return faiss

        return build

    def _check_factory(self, factory: str, images: int, effort: int | None) -> None:
        if chosen := chosen_factory(factory, images):
            check_factory(chosen, self.recipe.model.embedding_size, effort)
        elif effort is not None:
            raise ConfigError(
                f"--effort {effort}: the index would be searched exactly; leave out --effort, or type "
                '--index "IVF64,Flat", say'
            )

    def _collection(self, place: str | Path | None) -> Collection:
        own = self._images.collection
        return own if place is None else Collection(Path(place), own.owner)

    def indexed_folder(self, place: str | Path | None = None) -> Path:
        """Return the folder that was indexed, by this run or by an earlier state of it."""
        collection = self._collection(place)
        if collection.exists:
            with collection.transaction() as current:
                if current.state.index is not None:
                    return Path(current.state.index.folder)
        raise DataError(f"{collection.place}: no index; type: {collection.command()}")

    def _gallery(self, collection: Collection, changes: Changes | None) -> Gallery:
        self._galleries[collection.place] = gallery = Gallery(collection, self.device, changes)
        return gallery

    def gallery(self, place: str | Path | None = None) -> Gallery:
        """Open an index, by default the run's own, and hold it open.

        Raises:
            DataError: no index there, a damaged one, or one of another run, or of an earlier state of this one.
        """
        collection = self._collection(place)
        held = self._galleries.get(collection.place)
        if held is None:
            return self._gallery(collection, None)
        held.refresh()
        return held

    def check_index(self, place: str | Path | None = None) -> tuple[Gallery, list[str], list[str]]:
        """Read all of an index; return it, and the paths of images that are gone and that have changed since."""
        held = self.gallery(place)
        return held, *held.check()

    def query(
        self,
        images: Images,
        k: int = 8,
        gallery: Gallery | str | Path | None = None,
        metric: str = "euclidean",
        shortlist: int | None = None,
        effort: int | None = None,
        within: str | None = None,
        radius: float | None = None,
    ) -> list[Answer]:
        """Return the nearest images of an index; fewer than k come with a :class:`RetrievalWarning`.

        Args:
            images: as of :meth:`embed`; an image of the index is no answer to itself, and is not embedded again while
                its size and time are those that it was indexed with.
            k: how many, at least 1.
            gallery: an index, or its folder; by default the run's own.
            metric: ``"euclidean"``, or ``"learned"`` for a run whose loss has a learned metric.
            shortlist: how many of the nearest by Euclidean distance the learned metric re-ranks; by default it is
                compared with all images.
            effort: of the index's faiss, ``nprobe`` or ``efSearch``; it is doubled for a query that gets fewer than k.
            within: the class whose images alone are answers; these are searched exactly.
            radius: the largest distance of an answer; of a learned metric by which larger is nearer, the smallest
                value.

        Raises:
            ConfigError: an option out of range, an unknown metric or class, or a learned metric that the run lacks.
            DataError: an unreadable query, no index, or one of another run.
        """
        if metric not in METRICS:
            raise ConfigError(unknown("metric", metric, METRICS))
        if metric == "learned" and self.metric is None:
            raise ConfigError(
                f"{self.folder} has no learned metric: its loss is {self.recipe.loss.name}; leave out --metric learned"
            )
        if isinstance(images, (str, Path)) and Path(images).is_dir():
            raise ConfigError(f"{images} is a folder; a query is an image, or several")
        if not isinstance(images, Tensor):
            images = list(several(images))  # a generator can be had once
        held = gallery if isinstance(gallery, Gallery) else self.gallery(gallery)
        options = Options(k, self.metric if metric == "learned" else None, shortlist, effort, within, radius)
        held.check_options(options)
        names = names_of(images)
        known = {} if self.is_changed else held.known(names)
        others = [number for number in range(len(names)) if number not in known]
        points = torch.empty(len(names), self.recipe.model.embedding_size, device=self.device)
        for number, vector in known.items():
            points[number] = vector
        if others or not names:
            points[others] = self.embed(images if not known else [images[number] for number in others])
        return held.answer(names, points, options)

    def duplicates(self, radius: float = RADIUS, gallery: Gallery | str | Path | None = None) -> list[list[str]]:
        """Return groups of near-duplicates among the images of an index; see :meth:`Gallery.duplicates`."""
        return (gallery if isinstance(gallery, Gallery) else self.gallery(gallery)).duplicates(radius)

    duplicate_groups = duplicates

    def picture(
        self, answers: Sequence[Answer], gallery: Gallery | str | Path | None = None, beside: Sequence[Source] = ()
    ) -> Figure:
        """Draw queries and the 50 nearest of their answers, framed green and red where the classes are known.

        Args:
            answers: of :meth:`query`.
            gallery: the index that was asked.
            beside: answers of other runs to the same queries, ``(title, answers, folder of the images)``.
        """
        from .pictures import answers_picture

        held = gallery if isinstance(gallery, Gallery) else self.gallery(gallery)
        sources = [(self.folder.name, answers, held.folder), *beside]
        return answers_picture(sources, self.network.preprocessing.channels)

    # Clusters and exports

    def cluster(
        self,
        folder: str | Path,
        clusters: Number,
        out: str | Path | None = None,
        *,
        smallest: int | None = None,
        sheets: int = 100,
        progress: SheetProgress | None = None,
    ) -> Clusters:
        """Sort a folder's images into clusters, and write a table, and contact sheets of the largest clusters.

        Args:
            folder: of the images.
            clusters: how many, by k-means; ``"auto"`` where that is not known, by HDBSCAN. See
                :func:`pml_ext.retrieval.group`.
            out: the folder to write, with ``clusters.csv``, ``cluster-000.png``, ... and ``noise.png``; by default
                ``clusters`` in the run's folder.
            smallest: with ``"auto"``, images that a cluster has at least; 5 by default.
            sheets: how many clusters have a contact sheet.
            progress: called with how many sheets are drawn, and how many there will be.

        Returns:
            The cluster of every path, -1 for none; clusters are numbered by size, the largest first.

        Raises:
            ConfigError: fewer than 1 cluster or more than images, or ``out`` cannot be written.
            DataError: no readable image.
        """
        from .clusters import check_clusters, group, write_clusters

        source, place = Path(folder), Path(out) if out is not None else self.folder / "clusters"
        check_images_folder(source)
        check_folder("-o", place)
        if sheets < 0:
            raise ConfigError(f"--sheets {sheets}: wanted 0 or more")
        check_clusters(clusters, smallest, 0, str(source))
        check_clusters(clusters, smallest, len(list_folder(source).names), str(source))
        grouping = group(self.embed_folder(source), clusters, smallest)
        return write_clusters(place, grouping, self.network.preprocessing.channels, sheets, progress)

    def export(self, out: str | Path, onnx: bool = False, torch_export: bool = False) -> Path:
        """Write the network for programs without this package, with a model card; return the folder.

        Args:
            out: the folder to write, with ``model.safetensors``, ``preprocess.json``, ``README.md`` and checksums.
            onnx: whether ``model.onnx`` is written, for batches of any size.
            torch_export: whether ``model.pt2`` is, which ``torch.export.load`` reads.

        Raises:
            ConfigError: ``out`` cannot be written, torch cannot write a graph, or its embeddings differ from the
                network's by more than 1e-4 on 100 images of noise.
            MissingExtraError: safetensors, or what ``onnx`` needs, is not installed.
        """
        from .export import check_onnx, write_export

        place = Path(out)
        check_folder("-o", place)
        if onnx:
            check_onnx()
        graphs = [name for name, wanted in (("model.onnx", onnx), ("model.pt2", torch_export)) if wanted]
        write_export(place, self.folder, self.recipe, self.network, graphs, self._images.noise() if graphs else None)
        return place


def _check_embedded(embedded: Embedded, points: Vectors, size: int) -> None:
    if points.ndim != 2 or points.shape[1] != size:
        raise DataError(f"embeddings of shape {list(points.shape)}; the run has a network of embeddings of size {size}")
    if len(points) != len(embedded.paths) or not len(points):
        raise DataError(
            f"an index wants an embedding for each of 1 image or more; there are {len(embedded.paths)} "
            f"paths and embeddings of shape {list(points.shape)}"
        )
    outside = next((name for name in embedded.paths if not is_inside(name)), None)
    if outside is not None:
        raise DataError(f"{shortened(outside, 100)!r} is no path inside of {embedded.folder}")
    for start in range(0, len(points), 1 << 16):
        lengths = np.linalg.norm(points[start : start + (1 << 16)], axis=1)
        wrong = ~(np.isfinite(lengths) & ((abs(lengths - 1) < 0.01) | (lengths == 0)))
        if wrong.any():
            number = int(wrong.argmax())
            raise DataError(
                f"{embedded.paths[start + number]}: its embedding has length {lengths[number]:.4g}; an "
                "index wants embeddings of length 1"
            )
