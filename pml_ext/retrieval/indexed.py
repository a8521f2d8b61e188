"""What a trained run does with an index: builds it, holds it open, searches it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import ConfigError, DataError, unknown
from .checks import RetrievalWarning, check_folder, check_images_folder
from .duplicates import RADIUS, check_radius, duplicate_groups
from .embedding import Embedded, Images, names_of
from .faiss_index import FaissIndex, check_effort, check_factory, chosen_factory
from .index import ABOUT, INDEX, Gallery, Owner, alone_with, indexed_folder, read_index, write_index
from .listing import list_folder
from .reading import several
from .search import METRICS, Answer, answers_of, check_search, own_numbers, rows_as_indexed, rows_within, search_of
from .table import UNKNOWN

if TYPE_CHECKING:
    from ..experiment.recipe import Recipe
    from ..pml import BaseDistance

_FAIR = 0.9  # recall@10 below which an index is warned of


class IndexedRun:
    """The part of a :class:`~.trained.TrainedRun` that has to do with indexes."""

    folder: Path
    device: torch.device
    recipe: Recipe

    @property
    def identity(self) -> str:
        """A number of the trained weights."""
        raise NotImplementedError

    @property
    def is_changed(self) -> bool:
        """Whether the network was changed in Python since it was read."""
        raise NotImplementedError

    @property
    def metric(self) -> BaseDistance | None:
        """The learned metric of the run's loss, if it has one."""
        raise NotImplementedError

    def embed(self, images: Images, normalize: bool = True, batch_size: int = 256) -> Tensor:
        """Embeddings of images."""
        raise NotImplementedError

    def embed_folder(self, folder: str | Path) -> Embedded:
        """Embeddings of a folder's images."""
        raise NotImplementedError

    @property
    def _owner(self) -> Owner:
        return Owner(self.folder, self.identity, self.recipe.model.embedding_size, self.device)

    def index(
        self,
        folder: str | Path | None = None,
        out: str | Path | None = None,
        factory: str = "",
        effort: int | None = None,
    ) -> Gallery:
        """Embeds a folder and writes an index of it; again, it takes up what is new, changed and gone.

        Everything but the images is checked before any is embedded, and those that the run's store has are not embedded
        again. The older index stands until the new one is whole; a reader sees either. A second process that writes the
        same index waits. The result is that of an index from scratch, but for the ids: an image keeps its id while its
        path stays, and no id is used again.

        Args:
            folder: of the images; by default the one that was indexed before.
            out: the folder to write; by default ``index`` in the run's folder, whose older index it replaces.
            factory: ``"exact"``, or a faiss factory string such as ``"IVF64,Flat"`` or ``"HNSW32"``. By default up to
                200,000 images are searched exactly, and more of them by faiss with the square root of their number as
                lists.
            effort: how hard such an index searches, ``nprobe`` or ``efSearch``. By default it is doubled until
                recall@10 reaches 0.95 on a sample; :mod:`pml_ext.retrieval.faiss_index` has the rule.

        Returns:
            The index; its ``changes`` say what is new, and the ``faiss`` of one with a factory string has ``effort``
            and the measured ``recall``.

        Raises:
            DataError: no readable image, or no folder is given and none was indexed.
            ConfigError: faiss refuses the factory string, ``out`` cannot be written, or an effort that is below 1 or
                that nothing would heed.
            UnwritableError: the disk is full, say; the older index stands.
            MissingExtraError: a factory string without faiss.
        """
        place = self._place(out)
        source = indexed_folder(self.folder, place) if folder is None else Path(folder)
        check_images_folder(source)
        check_folder("-o", place)
        check_effort(effort)
        if factory or effort is not None:
            self._check_factory(factory, len(list_folder(source).names), effort)
        with alone_with(place):
            return self._write(place, self.embed_folder(source), factory, effort)

    def write_index(
        self, embedded: Embedded, out: str | Path | None = None, factory: str = "", effort: int | None = None
    ) -> Gallery:
        """Writes an index of embeddings that are there already, of this run's network or made up.

        Args:
            embedded: folder, paths and embeddings, float32 of length 1; the images need not exist.
            out: as of :meth:`index`.
            factory: as of :meth:`index`.
            effort: as of :meth:`index`.

        Returns:
            As of :meth:`index`.

        Raises:
            DataError: embeddings that are not of length 1 or not finite, or paths that leave the folder.
            ConfigError: as of :meth:`index`.

        Example:
            >>> run.write_index(Embedded(Path("photos"), ["a.jpg", "b.jpg"], points, {}))  # doctest: +SKIP
        """
        place = self._place(out)
        check_folder("-o", place)
        check_effort(effort)
        self._check_factory(factory, len(embedded.paths), effort)
        with alone_with(place):
            return self._write(place, embedded, factory, effort)

    def _write(self, place: Path, embedded: Embedded, factory: str, effort: int | None) -> Gallery:
        size = self.recipe.model.embedding_size
        if embedded.embeddings.shape[1:] != (size,):
            raise DataError(
                f"embeddings of shape {list(embedded.embeddings.shape)}; {self.folder} has a network of "
                f"embeddings of size {size}"
            )
        factory = chosen_factory(factory, len(embedded.paths))
        faiss = FaissIndex.build(factory, embedded.embeddings, effort) if factory else None
        if faiss is not None and faiss.recall is not None and faiss.recall < _FAIR:
            more = "a greater --effort, or another --index" if effort is not None else "another --index, or exact,"
            warnings.warn(
                f"the index {factory} finds {faiss.recall:.0%} of what exact search finds; {more} finds more",
                RetrievalWarning,
                stacklevel=3,
            )
        return write_index(place, self._owner, embedded, faiss)

    def _check_factory(self, factory: str, images: int, effort: int | None) -> None:
        if chosen := chosen_factory(factory, images):
            check_factory(chosen, self.recipe.model.embedding_size, images, effort)
        elif effort is not None:
            raise ConfigError(
                f"--effort {effort}: the index would be searched exactly; leave out --effort, or type "
                '--index "IVF64,Flat", say'
            )

    def _place(self, place: str | Path | None) -> Path:
        return Path(place) if place is not None else self.folder / INDEX

    def gallery(self, place: str | Path | None = None) -> Gallery:
        """Opens an index, and holds it open until it is replaced.

        Embeddings, paths and faiss's lists are mapped into memory: what a query does not look at is not read.

        Args:
            place: its folder; by default ``index`` in the run's folder.

        Raises:
            DataError: no index there, a damaged one, or one that another run, or an earlier state of this one, has
                built.
        """
        folder = self._place(place)
        held: dict[Path, tuple[tuple[int, ...], Gallery]] = self.__dict__.setdefault("_held", {})
        try:
            about = os.stat(folder / ABOUT)
            stamp: tuple[int, ...] = (about.st_mtime_ns, about.st_size, about.st_ino)
        except OSError:
            stamp = ()
        if folder not in held or held[folder][0] != stamp:
            held.pop(folder, None)
            held[folder] = (stamp, read_index(folder, self._owner))
        return held[folder][1]

    def check_index(self, place: str | Path | None = None) -> tuple[Gallery, list[str], list[str]]:
        """Reads all files of an index whole, and looks for its images.

        Args:
            place: as of :meth:`gallery`.

        Returns:
            The index, and the paths of images that are gone and that have another size or time than when they were
            indexed.

        Raises:
            DataError: as of :meth:`gallery`, or the folder of the images is gone.
        """
        held = read_index(self._place(place), self._owner, thorough=True)
        embedded = held.embedded
        check_images_folder(embedded.folder)
        assert embedded.sizes is not None
        assert embedded.times is not None
        gone, changed = [], []
        for number, path in enumerate(embedded.paths):
            try:
                about = os.stat(embedded.folder / path)
            except OSError:
                gone.append(path)
                continue
            known = (embedded.sizes[number], embedded.times[number])
            if UNKNOWN not in known and known != (about.st_size, about.st_mtime_ns):
                changed.append(path)
        return held, gone, changed

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
        """The nearest images of an index; fewer than k come with a :class:`RetrievalWarning`.

        Args:
            images: as of :meth:`embed`; an image that lies in the index itself is no answer to itself, and while its
                size and time are those that it was indexed with, it is not embedded again.
            k: how many, at least 1.
            gallery: an index, or its folder; by default the run's own, which is held open for the next query.
            metric: ``"euclidean"``, or ``"learned"`` for a run whose loss has a learned metric.
            shortlist: how many of the nearest by Euclidean distance the learned metric re-ranks; the index's faiss
                finds these, where it has one. By default the metric is compared with all images.
            effort: how hard the index's faiss searches, ``nprobe`` or ``efSearch``; by default what was chosen when
                the index was built. A query that gets fewer than k answers is searched again with twice the effort.
            within: the class whose images alone are answers; these are searched exactly.
            radius: the largest distance of an answer; of a learned metric by which larger is nearer, the smallest
                value.

        Returns:
            An answer for each query.

        Raises:
            ConfigError: k, shortlist or effort below 1, an unknown metric or class, a learned metric that the run does
                not have, a radius that is not above 0, or an effort that nothing would heed.
            DataError: an unreadable query, no index, or one of another run.
        """
        if metric not in METRICS:
            raise ConfigError(unknown("metric", metric, METRICS))
        learned = metric == "learned"
        if not learned:
            check_radius(radius)
        if learned and self.metric is None:
            raise ConfigError(
                f"{self.folder} has no learned metric: its loss is {self.recipe.loss.name}; leave out --metric learned"
            )
        if isinstance(images, (str, Path)) and Path(images).is_dir():
            raise ConfigError(f"{images} is a folder; a query is an image, or several")
        if not isinstance(images, Tensor):
            images = list(several(images))  # a generator can be had once
        held = gallery if isinstance(gallery, Gallery) else self.gallery(gallery)
        check_search(held, k, learned, shortlist, effort, within)
        rows = rows_within(held, within) if within is not None else None
        by = self.metric if learned else None
        search = search_of(held, by, shortlist, effort, rows)
        names = names_of(images)
        own = own_numbers(held, names)
        known = {} if self.is_changed else rows_as_indexed(held, names, own)
        points = self._points(images, held, known)
        return answers_of(
            names,
            own,
            points,
            k,
            held,
            search,
            None if rows is None else len(rows),
            radius,
            larger=bool(getattr(by, "is_inverted", False)),
        )

    def _points(self, images: Images, held: Gallery, known: dict[int, int]) -> Tensor:
        """Embeddings of queries: those that the index has, and the others from the network."""
        if not known:
            return self.embed(images)
        points = torch.empty(len(images), self.recipe.model.embedding_size, device=self.device)
        points[[*known]] = held.embedded.embeddings[[*known.values()]].to(self.device)
        others = [number for number in range(len(images)) if number not in known]
        if others:
            points[others] = self.embed([images[number] for number in others])
        return points

    def duplicates(self, radius: float = RADIUS, gallery: Gallery | str | Path | None = None) -> dict[str, list[str]]:
        """Near-duplicates among the images of an index: for each image the others of its group.

        A group are images that are within the radius of one another, directly or over others.

        Args:
            radius: Euclidean, of embeddings of length 1; :mod:`pml_ext.retrieval.duplicates` says what 0.1 means.
            gallery: as of :meth:`query`.

        Returns:
            ``{path: [others of its group]}``, of every image, an empty list for one that has no duplicate.

        Raises:
            ConfigError: a radius that is not above 0, or an index of a kind that finds nothing by a radius.
            DataError: no index, or one of another run.
        """
        paths = (gallery if isinstance(gallery, Gallery) else self.gallery(gallery)).embedded.paths
        others: dict[str, list[str]] = {path: [] for path in paths}
        for group in self.duplicate_groups(radius, gallery):
            for path in group:
                others[path] = [other for other in group if other != path]
        return others

    def duplicate_groups(self, radius: float = RADIUS, gallery: Gallery | str | Path | None = None) -> list[list[str]]:
        """The groups of :meth:`duplicates`, the largest first, without what is in none."""
        check_radius(radius)
        held = gallery if isinstance(gallery, Gallery) else self.gallery(gallery)
        groups: Sequence[Sequence[int]] = duplicate_groups(held, radius)
        return [[held.embedded.paths[number] for number in group] for group in groups]

    def export_index(self, to: str, gallery: Gallery | str | Path | None = None) -> dict[str, Any]:
        """Writes the images of an index into a vector database; see :mod:`pml_ext.retrieval.database`.

        Args:
            to: ``"lancedb:DIR"``; DIR may be an address of object storage, ``s3://bucket/path``.
            gallery: as of :meth:`query`.

        Returns:
            ``rows`` written, and ``agreement``: the share of its nearest neighbors, of a sample, that exact search
            finds too.

        Raises:
            ConfigError: another kind of database.
            MissingExtraError: lancedb is not installed.
        """
        from .database import export_to

        return export_to(to, gallery if isinstance(gallery, Gallery) else self.gallery(gallery))
