"""What features become without any training: they stay as they are, or are whitened, over all or within classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pml_ext.whitening import TotalWhitening, WithinClassWhitening

from .settings import Settings

SHRINKAGE = 0.6  # of both whitenings


@dataclass(frozen=True)
class ClosedForm:
    """An embedder that is not trained, as a recipe names it; ``title`` follows the name of the features."""

    title: str
    embedder: Literal["none", "pca", "within-class"]

    def settings(self, size: int) -> Settings:
        """Return the settings of the recipe, for features of ``size`` numbers."""
        settings: Settings = {"model.embedder": self.embedder, "model.embedding_size": size}
        if self.embedder != "none":
            settings["model.shrinkage"] = SHRINKAGE
        return settings

    def fit(self, features: Tensor, labels: Tensor, relation: Any = None, size: int | None = None) -> nn.Module:
        """Return the layer for features ``[N, F]`` with labels, or labels of a relation, ``[N]``.

        ``size`` is the number of features of which these are :func:`coordinates`. ValueError for features that do not
        vary, and for whitening within classes of one item each.
        """
        shrinkage = shrinkage_of_coordinates(features.shape[1], size or features.shape[1])
        if self.embedder == "pca":
            return TotalWhitening(shrinkage).fit(features)
        if self.embedder == "within-class":
            return WithinClassWhitening(shrinkage, relation=relation).fit(features, labels)
        return nn.Identity()


def coordinates(features: Tensor) -> Tensor:
    """Return features ``[N, F]`` in an orthonormal basis of the space that they span, ``[N, min(N, F)]``.

    Angles and distances stay; whitening of few items in many dimensions takes a fraction of the time.
    """
    if len(features) >= features.shape[1]:
        return features
    left, sizes, _ = torch.linalg.svd(features.double(), full_matrices=False)
    rows: Tensor = left * sizes
    return rows.to(features.dtype)


def shrinkage_of_coordinates(found: int, size: int) -> float:
    r"""Return the shrinkage of ``found`` coordinates that does what 0.6 does to all ``size`` features.

    .. math:: \frac{\lambda'}{1 - \lambda'} = \frac{F'}{F} \frac{\lambda}{1 - \lambda}

    since the mean eigenvalue is over all F directions, of which the coordinates have F'.
    """
    odds = SHRINKAGE / (1 - SHRINKAGE) * found / size
    return odds / (1 + odds)


AS_THEY_ARE = ClosedForm("", "none")
WHITENED = ClosedForm(", whitened", "pca")
WITHIN_CLASSES = ClosedForm(", whitened within classes", "within-class")
CLOSED_FORMS = (AS_THEY_ARE, WHITENED, WITHIN_CLASSES)  # the simplest first
