"""Nearest vectors by Euclidean distance: exact, or approximate with faiss.

The *effort* of a search is the number of lists (``nprobe`` of ``IVF...``) or candidates (``efSearch`` of ``HNSW...``)
that a query is compared with. It is doubled, from 1 or 64, until recall@10 on at most 200 images reaches 0.95;
otherwise the smallest effort within 0.01 of the best recall is used. With fewer than 64 candidates, a graph finds
indexed images better than new ones.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pml_ext.errors import ConfigError, needs_extra, shortened
from pml_ext.evaluation import has_faiss
from pml_ext_train.retrieval import RecallSample

EXACT = "exact"  # name of exact search
MOST_EXACT = 200_000  # number of images up to which exact search is the default
TARGET = 0.95  # recall@10 that the chosen effort must reach
_SETTINGS = {"IVF": "nprobe", "HNSW": "efSearch"}  # the parameter for the effort of a kind of index
_MOST_CANDIDATES = 1024  # the largest efSearch that is tried


def chosen_factory(factory: str, images: int) -> str:
    """The factory string of an index; an empty string for exact search.

    Without ``factory``, search is exact up to 200,000 images or without faiss.
    """
    if factory:
        return "" if factory == EXACT else factory
    if images > MOST_EXACT and has_faiss():
        return f"IVF{math.isqrt(images)},Flat"
    return ""


def new_index(factory: str, size: int) -> Any:
    """An empty faiss index; ConfigError for a factory string that faiss rejects."""
    with needs_extra("cpu", f"the index {factory!r}"):
        import faiss
    try:
        return faiss.index_factory(size, factory)
    except RuntimeError as error:
        raise _refused(factory, error) from None


class FaissIndex:
    """A faiss index of normalized embeddings, with the effort of a search and its recall@10."""

    def __init__(self, factory: str, index: Any, effort: int = 0, recall: float | None = None) -> None:
        self.factory = factory
        self.index = index
        self.effort = effort
        self.recall = recall
        self.setting = next((setting for kind, setting in _SETTINGS.items() if kind in factory), "")
        self._effort_set = 0

    @classmethod
    def build(cls, factory: str, points: Tensor) -> FaissIndex:
        """Index points, choose the effort, and measure recall@10."""
        rows = _rows(points)
        built = cls(factory, new_index(factory, rows.shape[1]))
        try:
            built.index.train(rows)
            built.index.add(rows)
        except RuntimeError as error:
            raise _refused(factory, error) from None
        least, most = built._range_of_effort()
        built.effort = least
        if len(points) < 2:  # a single image has no neighbors
            return built
        sample = RecallSample(points)
        tried = dict[int, float]()
        while True:
            tried[built.effort] = sample.recall_at_10(lambda queries, k: built.search(queries, k)[1])
            if tried[built.effort] >= TARGET or built.effort >= most:
                break
            built.effort = min(2 * built.effort, most)
        best = max(tried.values())
        enough = TARGET if best >= TARGET else best - 0.01
        efforts = (effort for effort, recall in tried.items() if recall >= enough)
        built.effort = next(efforts)  # the least one
        built.recall = tried[built.effort]
        return built

    def _range_of_effort(self) -> tuple[int, int]:
        if self.setting == "nprobe":
            return 1, self.most
        if self.setting == "efSearch":
            return 64, _MOST_CANDIDATES
        return 0, 0

    @classmethod
    def read(cls, path: Path, factory: str, effort: int, recall: float | None) -> FaissIndex:
        """Open a memory-mapped index that :meth:`write` wrote; RuntimeError for a damaged file."""
        with needs_extra("cpu", f"the index {factory!r}"):
            import faiss
        if "IVF" not in factory:
            index = faiss.read_index(str(path), getattr(faiss, "IO_FLAG_MMAP_IFC", 0))
        else:
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP)
            lists: Any = faiss.downcast_InvertedLists(faiss.extract_index_ivf(index).invlists)  # type: ignore[arg-type]
            lists.prefetch_nthread = 0  # prefetch threads take longer than the search itself
        return cls(factory, index, effort, recall)

    def write(self, path: Path) -> None:
        """Write the index, without effort and recall."""
        import faiss

        try:
            faiss.write_index(self.index, str(path))
        except RuntimeError as error:  # faiss raises RuntimeError, not OSError, for a full disk
            raise OSError(shortened(error, 200)) from error

    @property
    def most(self) -> int:
        """The maximum effort: the number of lists, or of images."""
        import faiss

        return int(faiss.extract_index_ivf(self.index).nlist if self.setting == "nprobe" else self.index.ntotal)

    def search(self, points: Tensor, k: int, _: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Distances and numbers of the nearest points, ``[Q, k]`` on the CPU; number -1 if missing."""
        rows = _rows(points)
        effort = self.effort
        if self.setting == "efSearch":
            effort = max(effort, k)  # k answers need at least k candidates
        self._set(effort)
        distances, numbers = self.index.search(rows, k)
        while self.setting and effort < self.most:
            has_too_few = (numbers < 0).any(1)
            if not has_too_few.any():
                break
            effort = min(2 * effort, self.most)
            self._set(effort)
            distances[has_too_few], numbers[has_too_few] = self.index.search(rows[has_too_few], k)
        return torch.from_numpy(distances).clamp(min=0).sqrt(), torch.from_numpy(numbers)

    def _set(self, effort: int) -> None:
        if self.setting and effort != self._effort_set:  # setting the effort takes as long as searching a list
            import faiss

            faiss.ParameterSpace().set_index_parameter(self.index, self.setting, effort)
            self._effort_set = effort


def _refused(factory: str, error: RuntimeError) -> ConfigError:
    reason = str(error).strip().splitlines()[-1].rpartition(": ")[2]
    return ConfigError(f"--index {factory}: faiss refuses it ({shortened(reason, 200)})")


def _rows(points: Tensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(points.detach().float().cpu().numpy())
