"""Nearest vectors by Euclidean distance: exactly, or approximately with faiss.

Up to 200,000 images are compared with every query; more are searched by faiss's ``IVFn,Flat``, n the square root of
their number. Without faiss, all are compared.

The *effort* of a search is the number of lists that a query is compared with (``nprobe`` of ``IVF...``), or of
candidates (``efSearch`` of ``HNSW...``). It is doubled when the index is built, from 1 or from 64, until recall@10
reaches 0.95 on a sample of at most 200 images; where no effort does, the smallest within 0.01 of the best is taken.
With less than 64 candidates, a graph finds more neighbors of an image that is in it than of a new one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .errors import ConfigError, needs_extra, shortened
from .evaluation import has_faiss, nearest_of

EXACT, MOST_EXACT = "exact", 200_000  # what is typed for exact search, and the images up to which it is the default
TARGET = 0.95  # recall@10 that the effort is chosen for
_SAMPLE, _NEIGHBORS = 200, 10  # queries and their exact answers, for measured recall
_MOST_CANDIDATES = 1024  # the greatest efSearch that is tried for recall


def chosen_factory(factory: str, images: int) -> str:
    """Return the factory string of an index, "" for exact search."""
    if factory:
        return "" if factory == EXACT else factory
    return f"IVF{math.isqrt(images)},Flat" if images > MOST_EXACT and has_faiss() else ""


def new_index(factory: str, size: int) -> Any:
    """Return an empty index of faiss, or a ConfigError for a factory string that faiss refuses."""
    with needs_extra("cpu", f"the index {factory!r}"):
        import faiss
    try:
        return faiss.index_factory(size, factory)
    except RuntimeError as error:
        raise _refused(factory, error) from None


class FaissIndex:
    """A faiss index of normalized embeddings, with the effort of a search and the recall@10 that it was measured at."""

    def __init__(self, factory: str, index: Any, effort: int = 0, recall: float | None = None) -> None:
        self.factory, self.index, self.effort, self.recall = factory, index, effort, recall
        self.setting = "nprobe" if "IVF" in factory else "efSearch" if "HNSW" in factory else ""
        self._effort_set = 0

    @classmethod
    def build(cls, factory: str, points: Tensor) -> FaissIndex:
        """Index points, choose the effort by the rule of this module, and measure recall@10."""
        rows = _rows(points)
        built = cls(factory, new_index(factory, rows.shape[1]))
        try:
            built.index.train(rows)
            built.index.add(rows)
        except RuntimeError as error:
            raise _refused(factory, error) from None
        efforts = {"nprobe": (1, built.most), "efSearch": (64, _MOST_CANDIDATES), "": (0, 0)}
        built.effort, most = efforts[built.setting]
        if len(points) < 2:  # an image alone has no other to find
            return built
        recall_of, tried = sampled_recall(points), dict[int, float]()
        while True:
            tried[built.effort] = recall_of(lambda queries, k: built.search(queries, k)[1])
            if tried[built.effort] >= TARGET or built.effort >= most:
                break
            built.effort = min(2 * built.effort, most)
        best = max(tried.values())
        enough = TARGET if best >= TARGET else best - 0.01
        built.effort, built.recall = next((each, value) for each, value in tried.items() if value >= enough)
        return built

    @classmethod
    def read(cls, path: Path, factory: str, effort: int, recall: float | None) -> FaissIndex:
        """Open an index that :meth:`write` wrote; a damaged file raises RuntimeError.

        Lists, and with faiss of 1.11 or later graphs and codes too, are mapped into memory.
        """
        with needs_extra("cpu", f"the index {factory!r}"):
            import faiss
        if "IVF" not in factory:
            index = faiss.read_index(str(path), getattr(faiss, "IO_FLAG_MMAP_IFC", 0))
        else:
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP)
            lists: Any = faiss.downcast_InvertedLists(faiss.extract_index_ivf(index).invlists)  # type: ignore[arg-type]
            lists.prefetch_nthread = 0  # threads that fetch a query's lists take longer than the search
        return cls(factory, index, effort, recall)

    def write(self, path: Path) -> None:
        """Write the index, but for effort and recall."""
        import faiss

        try:
            faiss.write_index(self.index, str(path))
        except RuntimeError as error:  # faiss has no error of its own for a full disk
            raise OSError(shortened(error, 200)) from error

    @property
    def most(self) -> int:
        """The greatest effort that changes anything: all lists, or all images."""
        import faiss

        return int(faiss.extract_index_ivf(self.index).nlist if self.setting == "nprobe" else self.index.ntotal)

    def search(self, points: Tensor, k: int, _: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return distances and numbers of the nearest points, ``[Q, k]`` on the CPU; -1 where there are no more."""
        rows, effort = _rows(points), self.effort
        if self.setting == "efSearch":
            effort = max(effort, k)  # fewer candidates than answers would leave some out
        self._set(effort)
        distances, numbers = self.index.search(rows, k)
        while self.setting and effort < self.most and (short := (numbers < 0).any(1)).any():
            effort = min(2 * effort, self.most)
            self._set(effort)
            distances[short], numbers[short] = self.index.search(rows[short], k)
        return torch.from_numpy(distances).clamp(min=0).sqrt(), torch.from_numpy(numbers)

    def within(self, points: Tensor, squared: float) -> Tensor:
        """Return pairs ``[2, P]`` of points and indexed points within a squared distance, found with the effort."""
        self._set(self.effort)
        limits, _, numbers = self.index.range_search(_rows(points), squared)
        return torch.from_numpy(np.stack([np.arange(len(points)).repeat(np.diff(limits.astype(np.int64))), numbers]))

    def _set(self, effort: int) -> None:
        if self.setting and effort != self._effort_set:  # setting it takes as long as searching a list
            import faiss

            faiss.ParameterSpace().set_index_parameter(self.index, self.setting, effort)
            self._effort_set = effort


def sampled_recall(points: Tensor) -> Callable[[Callable[[Tensor, int], Tensor]], float]:
    """Return a function from a search to the share of exact answers that it finds, for at most 200 of the points.

    ``search(queries, k)`` returns numbers of points ``[Q, k]``, nearest first, and -1 where there are no more.
    """
    count, k = len(points), min(_NEIGHBORS, len(points) - 1)
    chosen = torch.linspace(0, count - 1, min(_SAMPLE, count)).round().long().to(points.device)

    def distances(numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return exact distances of answers, and which count: the first k that are neither missing nor the query."""
        apart = (points[numbers] - points[chosen][:, None]).norm(dim=2)
        others = (numbers >= 0) & (numbers != chosen[:, None])
        return apart, others & (others.cumsum(1) <= k)

    exact, counted = distances(nearest_of(points[chosen], k + 1, points)[1])
    # An answer as near as the farthest exact one is right: duplicates make several right answers.
    farthest = exact.where(counted, -torch.inf).amax(1, keepdim=True)

    def recall(search: Callable[[Tensor, int], Tensor]) -> float:
        found, counted = distances(search(points[chosen], k + 1).to(points.device))
        return int((counted & (found <= farthest + 1e-6)).sum()) / (len(chosen) * k)

    return recall


def _refused(factory: str, error: RuntimeError) -> ConfigError:
    reason = str(error).strip().splitlines()[-1].rpartition(": ")[2]
    return ConfigError(f"--index {factory}: faiss refuses it ({shortened(reason, 200)})")


def _rows(points: Tensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(points.detach().float().cpu().numpy())
