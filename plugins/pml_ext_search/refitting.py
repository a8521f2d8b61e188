"""Heads in closed form, fitted again to a part of the indexed images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pml_ext.whitening import WithinClassWhitening

if TYPE_CHECKING:
    from .indexed_run import IndexedRun

SHRINKAGE = 0.6  # of a recipe that has none


class WithinClasses:
    """Whitening within classes as a run's recipe sets it, of the features of its indexed images."""

    def __init__(self, run: IndexedRun) -> None:
        self._run = run

    def features(self) -> Tensor:
        """Return the trunk's features of all images of the index, ``[N, F]``; of vectors, these."""
        embedded = self._run.indexed_images()
        if not self._run.takes_vectors:
            return self._run.images.features_of([embedded.folder / path for path in embedded.paths])
        file = self._run.vectors.read(embedded.folder)
        row_of_id = {id: row for row, id in enumerate(file.ids.tolist())}
        rows = [row_of_id[id] for id in embedded.paths]
        return torch.from_numpy(np.asarray(file.embeddings[rows], dtype=np.float32)).to(self._run.device)

    def fit(self, features: Tensor, labels: NDArray[np.int64]) -> nn.Module:
        """Return the layer for features ``[M, F]`` with labels ``[M]``."""
        model = self._run.recipe.model
        shrinkage = SHRINKAGE if model.shrinkage is None else model.shrinkage
        return WithinClassWhitening(shrinkage, model.embedding_size).fit(features, torch.from_numpy(labels))


def refit_of(run: IndexedRun) -> WithinClasses | None:
    """Return what fits the head of a run to a part of its indexed images; None unless it is in closed form."""
    model = run.recipe.model
    in_closed_form = model.embedder == "within-class" and model.freeze == "trunk" and run.by == "embeddings"
    if not in_closed_form or run.recipe.data.relation is not None or run.recipe.data.listed is not None:
        return None
    return WithinClasses(run)
