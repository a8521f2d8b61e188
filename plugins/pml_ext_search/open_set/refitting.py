"""Heads in closed form, fitted again to a part of the indexed images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pml_ext.whitening import WithinClassWhitening

from ..embedding.batch_embedder import NetworkEmbedder

if TYPE_CHECKING:
    from pml_ext_train.recipe import Recipe

    from ..query.search_index import SearchIndex

SHRINKAGE = 0.6  # of a recipe that has none


class WithinClasses:
    """The within-class whitening of a run's recipe, fitted to its indexed images."""

    def __init__(self, search_index: SearchIndex, recipe: Recipe) -> None:
        self._index = search_index
        self._model = recipe.model

    def features(self) -> Tensor:
        """The trunk's features of all images of the index, or its vectors, ``[N, F]``."""
        embedded = self._index.indexed_images()
        if not self._index.takes_vectors:
            network = self._index.images.computed
            assert isinstance(network, NetworkEmbedder)
            return network.features_of([embedded.folder / path for path in embedded.paths])
        file = self._index.vectors.read(embedded.folder)
        row_of_id = {id: row for row, id in enumerate(file.ids.tolist())}
        rows = [row_of_id[id] for id in embedded.paths]
        return torch.from_numpy(np.asarray(file.embeddings[rows], dtype=np.float32)).to(self._index.device)

    def fit(self, features: Tensor, labels: NDArray[np.int64]) -> nn.Module:
        """The layer for features ``[M, F]`` with labels ``[M]``."""
        shrinkage = SHRINKAGE if self._model.shrinkage is None else self._model.shrinkage
        return WithinClassWhitening(shrinkage, self._index.collection.size).fit(features, torch.from_numpy(labels))


def refit_of(search_index: SearchIndex, recipe: Recipe) -> WithinClasses | None:
    """What fits a run's head to a part of its images, or None if the head has no closed form."""
    model = recipe.model
    in_closed_form = (
        model.embedder == "within-class" and model.freeze == "trunk" and search_index.collection.by == "embeddings"
    )
    if not in_closed_form or recipe.data.relation is not None or recipe.data.listed is not None:
        return None
    return WithinClasses(search_index, recipe)
