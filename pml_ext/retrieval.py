"""A trained run at work: embed a user's images, index them, query them, cluster them, export the network."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pytorch_metric_learning.distances import BaseDistance
from torch import Tensor, nn

from . import models, registry
from .data import build_transforms, image_files, read_image, visible_files
from .devices import choose_device
from .errors import ConfigError, DataError, needs_extra
from .evaluation import Search, default_neighbours, kmeans, learned_metric, neighbours_under, reranked_under
from .evaluation.figures import contact_sheet, galleries
from .experiment import checkpoint
from .experiment.recipe import Recipe, build_loss, build_trunk, load_recipes, loss_context

INDEX = "index"  # the folder in a run's folder that `pml-ext index` writes by default
SHEET = 60  # images of a cluster on its contact sheet
METRICS = ("euclidean", "learned")
Images = Path | str | Tensor | Sequence[Any]


class SkippedImage(UserWarning):
    """A file of a folder was left out; the text has its path and why."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What was found for one query.

    Args:
        query: the query's path, or its number.
        paths: the nearest images, nearest first.
        distances: theirs: Euclidean between normalised embeddings, or of the learned metric.
        classes: the sub-folder of each, where the indexed folder has one a class.
        query_class: that of the query, where it lies in the indexed folder.
    """

    query: str
    paths: list[str]
    distances: list[float]
    classes: list[str]
    query_class: str | None


@dataclasses.dataclass(frozen=True)
class Embedded:
    """Images of a folder and their embeddings.

    Args:
        folder: where they lie.
        paths: relative to the folder.
        embeddings: ``[N, D]``, normalised.
        skipped: ``{path: why}`` of files that are no readable images.
    """

    folder: Path
    paths: list[str]
    embeddings: Tensor
    skipped: dict[str, str]

    @property
    def classes(self) -> list[str]:
        """The first sub-folder of every image; "" for one that lies in the folder itself."""
        return [path.partition("/")[0] if "/" in path else "" for path in self.paths]


@dataclasses.dataclass(frozen=True)
class Gallery:
    """An index that was written.

    Args:
        place: its folder.
        embedded: what it holds.
        factory: faiss's factory string, or "" for exact search.
    """

    place: Path
    embedded: Embedded
    factory: str


def load_run(path: str | Path, device: str = "auto") -> TrainedRun:
    """A finished run, for retrieval.

    Args:
        path: the run's folder.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.

    Raises:
        DataError: no finished run in the folder.
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
        for name in ("recipe.toml", "network.json", "checkpoints/model.pt"):
            if not (folder / name).is_file():
                raise DataError(f"{folder}: no finished run (no {name} in it); pml-ext train RECIPE --out {folder}")
        self.recipe: Recipe = next(iter(load_recipes(str(folder / "recipe.toml")).values()))
        self.network: dict[str, Any] = json.loads((folder / "network.json").read_text("utf-8"))
        state = checkpoint.load(folder / "checkpoints" / "model.pt", self.device)
        size, channels = self.network["image_size"], self.network["channels"]
        self.trunk: nn.Module = build_trunk(self.recipe.model.trunk, channels, size, trained=True)
        self.embedder: nn.Module = models.embedder(
            self.network["features"], self.recipe.model.embedding_size, self.recipe.model.hidden_sizes
        )
        with checkpoint.taking(folder / "checkpoints" / "model.pt"):
            self.trunk.load_state_dict(state["trunk"])
            self.embedder.load_state_dict(state["embedder"])
        self.trunk.to(self.device).eval()
        self.embedder.to(self.device).eval()
        normalize = self.network["normalize"]
        _, self.transform = build_transforms(size, channels, self.network["crop"],
                                             (normalize["mean"], normalize["std"]) if normalize else None)  # fmt: skip
        self._loss_state = state["loss"]

    @property
    def identity(self) -> str:
        """A number of the trained weights: the start of the SHA-256 of ``model.pt``."""
        return hashlib.sha256((self.folder / "checkpoints" / "model.pt").read_bytes()).hexdigest()[:16]

    @property
    def metric(self) -> BaseDistance | None:
        """The learned metric of the run's loss, in evaluation mode, if it has one."""
        loss, _ = build_loss(self.recipe.loss, loss_context(self.recipe, self.network["classes"]))
        loss.load_state_dict(self._loss_state)
        found = learned_metric(loss.modules())
        return found.to(self.device).eval() if found is not None else None

    # Embeddings

    @torch.no_grad()
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
            DataError: a file cannot be read, or a folder has no readable image. Unreadable files of a folder are
                left out with a :class:`SkippedImage` warning.
        """
        if isinstance(images, (str, Path)) and Path(images).is_dir():
            return self.embed_folder(images, normalize, batch_size).embeddings
        parts = [images] if isinstance(images, (str, Path)) else images
        found = [self._network(batch, normalize) for batch in _batches(map(self._image, parts), batch_size)]
        if not found:
            raise DataError("no images to embed; wanted one or more")
        return torch.cat(found)

    @torch.no_grad()
    def embed_folder(self, folder: str | Path, normalize: bool = True, batch_size: int = 256) -> Embedded:
        """Embeddings of all images below a folder; see :meth:`embed`."""
        place = Path(folder)
        if not place.is_dir():
            raise DataError(f"{place}: no such folder")
        files, skipped, kept = visible_files(place), {}, []
        known = set(image_files(place))

        def images() -> Iterator[Tensor]:
            for file in files:
                name = file.relative_to(place).as_posix()
                try:
                    if file not in known:
                        raise DataError(f"{file}: no image by its name")
                    image = self._image(file)
                except DataError as error:
                    skipped[name] = str(error)
                    warnings.warn(f"skipped {error}", SkippedImage, stacklevel=2)
                    continue
                kept.append(name)
                yield image

        found = [self._network(batch, normalize) for batch in _batches(images(), batch_size)]
        if not found:
            first = f"; the first: {next(iter(skipped.values()))}" if skipped else ""
            raise DataError(f"{place}: no readable image among {len(files)} files{first}")
        return Embedded(place, kept, torch.cat(found), skipped)

    def _image(self, image: Any) -> Tensor:
        if isinstance(image, (str, Path)):
            if not Path(image).is_file():
                raise DataError(f"{image}: no such file")
            image = read_image(Path(image), self.network["channels"])
        if not isinstance(image, Tensor) or image.dtype != torch.uint8 or image.ndim != 3:
            raise TypeError(f"an image is a path or a uint8 tensor [C, H, W], not {type(image).__name__}")
        return self.transform(image)  # type: ignore[no-any-return]

    def _network(self, images: list[Tensor], normalize: bool) -> Tensor:
        found = self.embedder(self.trunk(torch.stack(images).to(self.device))).float()
        return nn.functional.normalize(found) if normalize else found

    # Indexing and querying

    def index(self, folder: str | Path, out: str | Path | None = None, factory: str = "") -> Gallery:
        """Embeds a folder and writes an index of it.

        Args:
            folder: of the images.
            out: the folder to write; by default ``index`` in the run's folder, whose older index it replaces.
            factory: a faiss factory string such as ``"IVF64,Flat"`` or ``"HNSW32"`` for large galleries; "" searches
                exactly.

        Raises:
            DataError: no readable image.
            ConfigError: faiss refuses the factory string.
            MissingExtraError: a factory string without faiss.
        """
        embedded = self.embed_folder(folder)
        place = Path(out) if out is not None else self.folder / INDEX
        place.mkdir(parents=True, exist_ok=True)
        points = np.ascontiguousarray(embedded.embeddings.cpu().numpy())
        if factory:
            _write_faiss(place / "index.faiss", factory, points)
        else:
            (place / "index.faiss").unlink(missing_ok=True)
        checkpoint.write_atomically(place / "embeddings.npz", lambda path: _save_npz(path, embedded, points))
        about = {"run": str(self.folder), "identity": self.identity, "folder": str(embedded.folder.resolve()),
                 "factory": factory, "images": len(embedded.paths), "skipped": embedded.skipped}  # fmt: skip
        text = json.dumps(about, indent=2) + "\n"
        checkpoint.write_atomically(place / "index.json", lambda path: path.write_text(text, "utf-8"))
        return Gallery(place, embedded, factory)

    def gallery(self, place: str | Path | None = None) -> Gallery:
        """Reads an index.

        Args:
            place: its folder; by default ``index`` in the run's folder.

        Raises:
            DataError: no index there, or one that another run, or an earlier state of this one, has built.
        """
        place = Path(place) if place is not None else self.folder / INDEX
        if not (place / "index.json").is_file():
            raise DataError(f"{place}: no index; type: pml-ext index {self.folder} FOLDER")
        about = json.loads((place / "index.json").read_text("utf-8"))
        if about["identity"] != self.identity:
            raise DataError(
                f"{place} was built by the run {about['run']} ({about['identity']}), not by {self.folder} "
                f"({self.identity}); type: pml-ext index {self.folder} {about['folder']}"
            )
        with np.load(place / "embeddings.npz") as saved:
            embeddings = torch.from_numpy(saved["embeddings"]).to(self.device)
            paths = [str(path) for path in saved["paths"]]
        return Gallery(place, Embedded(Path(about["folder"]), paths, embeddings, about["skipped"]), about["factory"])

    def query(
        self,
        images: Images,
        k: int = 8,
        gallery: Gallery | str | Path | None = None,
        metric: str = "euclidean",
        shortlist: int | None = None,
    ) -> list[Answer]:
        """The nearest images of an index.

        Args:
            images: as of :meth:`embed`; an image that lies in the index itself is no answer to itself.
            k: how many, at least 1.
            gallery: an index, or its folder; by default the run's own.
            metric: ``"euclidean"``, or ``"learned"`` for a run whose loss has a learned metric.
            shortlist: with the learned metric, re-rank so many nearest by the Euclidean distance, rather than compare
                with all; the index's faiss finds these, where it has one.

        Returns:
            An answer for each query.

        Raises:
            ConfigError: k or shortlist below 1, an unknown metric, or a learned one that the run does not have.
            DataError: an unreadable query, no index, or one of another run.
        """
        if k < 1:
            raise ConfigError(f"-k {k}: wanted 1 or more")
        self._check_metric(metric, shortlist)
        held = gallery if isinstance(gallery, Gallery) else self.gallery(gallery)
        names = _names(images)
        points = self.embed(images)
        places = {(held.embedded.folder / path).resolve(): number for number, path in enumerate(held.embedded.paths)}
        own = [places.get(Path(name).resolve()) if name else None for name in names]
        count = min(k + 1, len(held.embedded.paths))
        search = self._search(held, metric, shortlist)
        distances, indices = search(points, count, held.embedded.embeddings)
        classes = held.embedded.classes
        answers = []
        for number, (row, near) in enumerate(zip(indices.tolist(), distances.tolist(), strict=True)):
            kept = [
                (index, value) for index, value in zip(row, near, strict=True) if index >= 0 and index != own[number]
            ]
            mine = own[number]
            answers.append(Answer(
                names[number] or f"image {number}",
                [held.embedded.paths[index] for index, _ in kept[:k]],
                [float(value) for _, value in kept[:k]],
                [classes[index] for index, _ in kept[:k]],
                classes[mine] or None if mine is not None else None,
            ))  # fmt: skip
        return answers

    def _check_metric(self, metric: str, shortlist: int | None) -> None:
        if metric not in METRICS:
            raise ConfigError(registry.unknown("metric", metric, METRICS))
        if metric == "euclidean":
            if shortlist is not None:
                raise ConfigError("--shortlist goes with --metric learned")
        elif self.metric is None:
            raise ConfigError(f"{self.folder} has no learned metric: its loss is {self.recipe.loss.name}; "
                              "leave out --metric learned")  # fmt: skip
        elif shortlist is not None and shortlist < 1:
            raise ConfigError(f"--shortlist {shortlist}: wanted 1 or more")

    def _search(self, held: Gallery, metric: str, shortlist: int | None) -> Search:
        """What finds the nearest by the metric, with the gallery's faiss where it has one."""
        nearest = default_neighbours().search
        if held.factory:
            nearest = functools.partial(_search_faiss, held.place / "index.faiss")
        if metric == "euclidean":
            return nearest
        assert self.metric is not None
        if shortlist is None:
            return neighbours_under(self.metric).search
        return reranked_under(self.metric, shortlist, nearest).search

    def picture(self, answers: Sequence[Answer], gallery: Gallery | str | Path | None = None,
                beside: Sequence[tuple[str, Sequence[Answer], Path]] = ()) -> Figure:  # fmt: skip
        """Queries and what was found, framed green and red where the classes are known.

        Args:
            answers: what :meth:`query` returned.
            gallery: the index that was asked.
            beside: answers of other runs to the same queries, ``(title, answers, folder of the images)``, drawn below
                each of ours.
        """
        held = gallery if isinstance(gallery, Gallery) else self.gallery(gallery)
        sources = [(self.folder.name, answers, held.embedded.folder), *beside]
        rows = []
        for number, answer in enumerate(answers):
            for title, each, folder in sources:
                found = each[number]
                known = found.query_class is not None
                rows.append((
                    f"{Path(answer.query).name}\n{title if beside else ''}", Path(answer.query),
                    [(folder / path, f"{distance:.2f}", name == found.query_class if known else None)
                     for path, distance, name in zip(found.paths, found.distances, found.classes, strict=True)],
                ))  # fmt: skip
        return galleries(rows, lambda path: read_image(path, self.network["channels"]))

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
            ConfigError: fewer than 1 cluster or more than images.
            DataError: no readable image.
        """
        if clusters < 1:
            raise ConfigError(f"--clusters {clusters}: wanted 1 or more")
        embedded = self.embed_folder(folder)
        count = len(embedded.paths)
        if clusters > count:
            raise ConfigError(f"--clusters {clusters}: wanted from 1 to the {count} images of {folder}")
        found = kmeans(embedded.embeddings, clusters).cpu()
        sizes = torch.bincount(found, minlength=clusters)
        rank = sizes.argsort(descending=True, stable=True).argsort()
        numbers = rank[found].tolist()
        place = Path(out) if out is not None else self.folder / "clusters"
        self._write_clusters(place, embedded, numbers)
        return dict(zip(embedded.paths, numbers, strict=True))

    def _write_clusters(self, place: Path, embedded: Embedded, numbers: list[int]) -> None:
        place.mkdir(parents=True, exist_ok=True)
        for old in place.glob("cluster-*.png"):
            old.unlink()
        points = embedded.embeddings.cpu()
        labels = torch.tensor(numbers)
        distances = torch.zeros(len(numbers))
        for number in sorted(set(numbers)):
            members = torch.where(labels == number)[0]
            center = points[members].mean(0)
            distances[members] = (points[members] - center).norm(dim=1)
            order = members[distances[members].argsort()].tolist()
            shown = order[:SHEET]
            some = f", the {SHEET} nearest to its centre" if len(order) > SHEET else ", nearest to its centre first"
            figure = contact_sheet(
                f"cluster {number}: {len(order)} images{some}",
                [read_image(embedded.folder / embedded.paths[index], self.network["channels"]) for index in shown],
            )
            checkpoint.write_atomically(place / f"cluster-{number:03d}.png", _as_png(figure))

        def write(path: Path) -> None:
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(["path", "cluster", "distance_to_centre"])
                for name, number, distance in zip(embedded.paths, numbers, distances.tolist(), strict=True):
                    writer.writerow([name, number, f"{distance:.6f}"])

        checkpoint.write_atomically(place / "clusters.csv", write)

    # Export

    def export(self, out: str | Path) -> Path:
        """Writes the network for programs without this package: ``model.safetensors`` and ``preprocess.json``.

        Args:
            out: the folder to write.

        Returns:
            The folder.

        Raises:
            MissingExtraError: safetensors is not installed.
        """
        with needs_extra("train", "export"):
            from safetensors.torch import save_file
        place = Path(out)
        place.mkdir(parents=True, exist_ok=True)
        tensors = {
            f"{part}.{name}": tensor.detach().cpu().contiguous()
            for part, module in (("trunk", self.trunk), ("embedder", self.embedder))
            for name, tensor in module.state_dict().items()
        }
        checkpoint.write_atomically(place / "model.safetensors", lambda path: save_file(tensors, path))
        about = {
            "trunk": {"name": self.recipe.model.trunk.name, **self.recipe.model.trunk.settings},
            "embedding_size": self.recipe.model.embedding_size,
            "hidden_sizes": self.recipe.model.hidden_sizes,
            "features": self.network["features"],
            "image_size": self.network["image_size"],
            "channels": self.network["channels"],
            "resize": round(self.network["image_size"] * 256 / 224) if self.network["crop"] else None,
            "normalize": self.network["normalize"],
            "l2_normalize_embeddings": True,
        }
        text = json.dumps(about, indent=2) + "\n"
        checkpoint.write_atomically(place / "preprocess.json", lambda path: path.write_text(text, "utf-8"))
        return place


def save_embeddings(embedded: Embedded, path: Path) -> None:
    """Writes embeddings, paths and classes to an ``.npz`` file."""
    checkpoint.write_atomically(
        path, lambda temporary: _save_npz(temporary, embedded, embedded.embeddings.cpu().numpy())
    )


def _save_npz(path: Path, embedded: Embedded, points: NDArray[np.float32]) -> None:
    with path.open("wb") as file:
        np.savez(file, embeddings=points, paths=np.array(embedded.paths), classes=np.array(embedded.classes))


def _as_png(figure: Figure) -> Callable[[Path], None]:
    return lambda path: figure.savefig(path, format="png")


def _names(images: Images) -> list[str]:
    """The path of every image, "" for one that is a tensor."""
    if isinstance(images, (str, Path)):
        if Path(images).is_dir():
            raise ConfigError(f"{images} is a folder; a query is an image, or several")
        return [str(images)]
    return [str(image) if isinstance(image, (str, Path)) else "" for image in images]


def _batches(images: Iterable[Tensor], size: int) -> Iterator[list[Tensor]]:
    batch: list[Tensor] = []
    for image in images:
        batch.append(image)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _write_faiss(path: Path, factory: str, points: NDArray[np.float32]) -> None:
    with needs_extra("cpu", f"the index {factory!r}"):
        import faiss
    try:
        index = faiss.index_factory(points.shape[1], factory)
        index.train(points)
        index.add(points)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise ConfigError(f"--index {factory}: faiss refuses it for {len(points)} images ({reason})") from None
    checkpoint.write_atomically(path, lambda temporary: faiss.write_index(index, str(temporary)))


def _search_faiss(path: Path, points: Tensor, k: int, _reference: Tensor) -> tuple[Tensor, Tensor]:
    with needs_extra("cpu", "an index with a faiss factory string"):
        import faiss
    distances, indices = faiss.read_index(str(path)).search(np.ascontiguousarray(points.cpu().numpy()), k)
    return torch.from_numpy(distances).clamp(min=0).sqrt(), torch.from_numpy(indices)


@contextlib.contextmanager
def heard() -> Iterator[list[str]]:
    """Collects what :class:`SkippedImage` warnings say, for the command line."""
    texts: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", SkippedImage)
        shown = warnings.showwarning

        def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, SkippedImage):
                texts.append(str(message))
            else:
                shown(message, category, *where, **more)

        warnings.showwarning = show
        yield texts
