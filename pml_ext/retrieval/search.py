"""Nearest vectors by Euclidean distance: exactly, or approximately with faiss.

Up to 200,000 images are compared with every query; more are searched by faiss's ``IVFn,Flat``, n the square root of
their number. Without faiss, all are compared.

An index of lists (``IVF...``) compares a query with some of its lists, ``nprobe``; a graph (``HNSW...``) keeps some
candidates, ``efSearch``. Either number is the *effort* of a search. It is chosen when the index is built: doubled,
``nprobe`` from 1 and ``efSearch`` from 64, until recall@10 reaches 0.95 on a sample of at most 200 of the images; where
no effort does (codes that lose too much), the smallest within 0.01 of the best is taken. A query that gets fewer
answers than it asks for is searched again with twice the effort.

With less than 64 candidates, a graph finds more neighbors of an image that is in it than of a new one, and the
measured recall would promise too much.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ConfigError, needs_extra
from ..evaluation import default_neighbors, has_faiss

EXACT, MOST_EXACT = "exact", 200_000  # what is typed for exact search, and the images up to which it is the default
TARGET = 0.95  # recall@10 that the effort is chosen for
_SAMPLE, _NEIGHBORS = 200, 10  # queries and their exact answers, for measured recall
_FIRST = {"nprobe": 1, "efSearch": 64}  # faiss's names of the effort, and what the doubling begins with
_MOST_CANDIDATES = 1024  # the greatest efSearch that is tried for recall
_ROWS = 1 << 16  # vectors that are copied at a time


def nearest_of(points: Tensor, k: int, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Return distances and numbers of the nearest references, ``[Q, k]``, nearest first."""
    if points.device.type != "cpu" or not has_faiss():
        return default_neighbors().search(points, k, reference)
    import faiss

    squared, numbers = faiss.knn(_rows(points), _rows(reference), k)
    return torch.from_numpy(squared).clamp_(min=0).sqrt_(), torch.from_numpy(numbers)


def nearest_among(rows: NDArray[np.int64], points: Tensor, k: int, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Return distances and numbers of the nearest among some references, 65,536 of which are copied at a time."""
    best, which = points.new_empty(len(points), 0), torch.empty(len(points), 0, dtype=torch.long, device=points.device)
    for start in range(0, len(rows), _ROWS):
        some = torch.from_numpy(rows[start : start + _ROWS]).to(reference.device)
        distances, numbers = nearest_of(points, min(k, len(some)), reference[some].to(points.device))
        best = torch.cat([best, distances], 1)
        which = torch.cat([which, some.to(numbers.device)[numbers]], 1)
        best, order = best.sort(dim=1, stable=True)
        best, which = best[:, :k], which.gather(1, order)[:, :k]
    return best, which


def chosen_factory(factory: str, images: int) -> str:
    """Return the factory string of an index, "" for exact search."""
    if factory:
        return "" if factory == EXACT else factory
    return f"IVF{math.isqrt(images)},Flat" if images > MOST_EXACT and has_faiss() else ""


def _faiss(factory: str) -> Any:
    with needs_extra("cpu", f"the index {factory!r}"):
        import faiss
    return faiss


class FaissIndex:
    """A faiss index of normalized embeddings; see :meth:`build` and :meth:`read`."""

    def __init__(self, factory: str, index: Any) -> None:
        self.factory, self.index = factory, index
        self.setting = _setting(factory, index)
        self.effort = self._effort_set = 0
        self.recall: float | None = None

    @classmethod
    def build(cls, factory: str, points: Tensor, effort: int | None = None) -> FaissIndex:
        """Index points and measure the recall."""
        faiss, rows = _faiss(factory), _rows(points)
        try:
            index = faiss.index_factory(rows.shape[1], factory)
            index.train(rows)
            index.add(rows)
        except RuntimeError as error:
            raise _refused(factory, f" for {len(rows)} images", error) from None
        built = cls(factory, index)
        built._tune(points, effort)
        return built

    @classmethod
    def read(cls, path: Path, factory: str) -> FaissIndex:
        """Open an index that :meth:`write` wrote, without effort and recall; a damaged file raises RuntimeError.

        Lists, and with faiss of 1.11 or later graphs and codes too, are mapped into memory.
        """
        faiss = _faiss(factory)
        lists = "IVF" in factory or not hasattr(faiss, "IO_FLAG_MMAP_IFC")
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP if lists else faiss.IO_FLAG_MMAP_IFC)
        for part in _parts(faiss, index):
            on_disk = faiss.downcast_InvertedLists(part.invlists) if hasattr(part, "invlists") else None
            if on_disk is not None and hasattr(on_disk, "prefetch_nthread"):
                on_disk.prefetch_nthread = 0  # threads that fetch a query's lists take longer than the search
        return cls(factory, index)

    def write(self, path: Path) -> None:
        """Write the index, but for effort and recall."""
        _faiss(self.factory).write_index(self.index, str(path))

    @property
    def most(self) -> int:
        """The greatest effort that changes anything: all lists, or all images."""
        if self.setting == "nprobe":
            return int(_faiss(self.factory).extract_index_ivf(self.index).nlist)
        return int(self.index.ntotal)

    def search(self, points: Tensor, k: int, effort: int | None = None) -> tuple[Tensor, Tensor]:
        """Return distances and numbers of the nearest points, ``[Q, k]`` on the CPU; -1 where there are no more."""
        rows, effort = _rows(points), effort or self.effort
        if self.setting == "efSearch":
            effort = max(effort, k)  # fewer candidates than answers would leave some out
        distances, numbers = self._search(rows, k, effort)
        while self.setting and effort < self.most and (short := (numbers < 0).any(1)).any():
            effort = min(2 * effort, self.most)
            distances[short], numbers[short] = self._search(rows[short], k, effort)
        return torch.from_numpy(distances).clamp(min=0).sqrt(), torch.from_numpy(numbers)

    def _search(self, rows: NDArray[np.float32], k: int, effort: int) -> tuple[Any, Any]:
        self._set(effort)
        return self.index.search(rows, k)  # type: ignore[no-any-return]

    def _set(self, effort: int) -> None:
        if self.setting and effort != self._effort_set:  # setting it takes as long as searching a list
            _faiss(self.factory).ParameterSpace().set_index_parameter(self.index, self.setting, effort)
            self._effort_set = effort

    def within(self, points: Tensor, radius: float) -> tuple[Tensor, Tensor]:
        """Return the pairs of points and images within a radius, as far as the index's own effort finds them."""
        self._set(self.effort)
        try:
            limits, _, numbers = self.index.range_search(_rows(points), (1 + 1e-5) * radius**2 + 1e-6)
        except RuntimeError as error:
            raise ConfigError(
                f"--duplicates: the index {self.factory} finds no images by a radius "
                f"({_reason(error)}); type: pml-ext index RUN --index exact"
            ) from None
        counts = torch.from_numpy(np.diff(limits.astype(np.int64)))
        return torch.arange(len(points)).repeat_interleave(counts), torch.from_numpy(numbers)

    def _tune(self, points: Tensor, effort: int | None) -> None:
        """Choose the effort by the rule of this module, and measure recall@10."""
        if len(points) < 2:  # an image has no other to find
            self.effort, self.recall = effort or _FIRST.get(self.setting, 0), None
            return
        sample = _Sample(points)
        if effort is not None or not self.setting:
            self.effort = effort or 0
            self.recall = sample.recall(self, self.effort)
            return
        tried: dict[int, float] = {}
        for each in _doubled(_FIRST[self.setting], self.most if self.setting == "nprobe" else _MOST_CANDIDATES):
            tried[each] = sample.recall(self, each)
            if tried[each] >= TARGET:
                break
        best = max(tried.values())
        enough = TARGET if best >= TARGET else best - 0.01
        self.effort, self.recall = next((each, recall) for each, recall in tried.items() if recall >= enough)


def _doubled(first: int, most: int) -> Iterator[int]:
    while first < most:
        yield first
        first *= 2
    yield most


class _Sample:
    """Some of at least 2 indexed points with their exact nearest ones, themselves left out."""

    def __init__(self, points: Tensor) -> None:
        count = len(points)
        self.points, self.neighbors = points, min(_NEIGHBORS, count - 1)
        self.chosen = torch.linspace(0, count - 1, min(_SAMPLE, count)).round().long().to(points.device)
        _, exact = nearest_of(points[self.chosen], self.neighbors + 1, points)
        distances, counted = self._distances(exact)
        # An answer as near as the farthest exact one is right: duplicates make several right answers.
        self.farthest = distances.where(counted, -torch.inf).amax(1, keepdim=True)

    def recall(self, index: FaissIndex, effort: int) -> float:
        """Return the share of the exact answers that a search finds."""
        numbers = index.search(self.points[self.chosen], self.neighbors + 1, effort)[1]
        distances, counted = self._distances(numbers)
        right = counted & (distances <= self.farthest + 1e-6)
        return int(right.sum()) / (len(self.chosen) * self.neighbors)

    def _distances(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Exact distances of answers, and which count: not missing ones, the asking point, or one too many."""
        numbers = numbers.to(self.points.device)
        distances = (self.points[numbers] - self.points[self.chosen][:, None]).norm(dim=2)
        others = (numbers >= 0) & (numbers != self.chosen[:, None])
        return distances, others & (others.cumsum(1) <= self.neighbors)


def check_factory(factory: str, size: int, effort: int | None = None) -> None:
    """Refuse a factory string before there is anything to index."""
    faiss = _faiss(factory)
    try:
        index = faiss.index_factory(size, factory)
        parts = [*_parts(faiss, index)]
        if any(part.hnsw.nb_neighbors(1) < 2 for part in parts if hasattr(part, "hnsw")):
            raise RuntimeError("a graph of fewer than 2 links an image")
        if any(part.nlist < 1 for part in parts if hasattr(part, "nlist")):
            raise RuntimeError("no lists")
    except RuntimeError as error:
        raise _refused(factory, "", error) from None
    if isinstance(index, (faiss.IndexIDMap, faiss.IndexIDMap2)):
        raise ConfigError(f"--index {factory}: images are numbered without IDMap; leave it out")
    if effort is not None and not _setting(factory, index):
        raise ConfigError(f"--effort {effort}: the index {factory} has no nprobe and no efSearch; leave out --effort")


def check_effort(effort: int | None) -> None:
    """Refuse an effort below 1 with a ConfigError."""
    if effort is not None and effort < 1:
        raise ConfigError(f"--effort {effort}: wanted 1 or more")


def _refused(factory: str, what: str, error: RuntimeError) -> ConfigError:
    return ConfigError(f"--index {factory}: faiss refuses it{what} ({_reason(error)})")


def _reason(error: RuntimeError) -> str:
    return str(error).strip().splitlines()[-1].rpartition(": ")[2]


def _setting(factory: str, index: Any) -> str:
    space = _faiss(factory).ParameterSpace()
    space.initialize(index)
    ranges = space.parameter_ranges
    names = {ranges.at(number).name for number in range(ranges.size())}
    return next((name for name in _FIRST if name in names), "")


def _parts(faiss: Any, index: Any) -> Iterator[Any]:
    """Yield an index and those inside it; the caller keeps the outermost alive, which owns the others."""
    part = faiss.downcast_index(index)
    yield part
    for name in ("index", "base_index", "storage", "quantizer"):
        if getattr(part, name, None) is not None:
            yield from _parts(faiss, getattr(part, name))


def _rows(points: Tensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(points.detach().float().cpu().numpy())
