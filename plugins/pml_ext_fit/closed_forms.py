"""Embedders without training: features, whitened in total or within classes, or unwhitened."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pml_ext.whitening import TotalWhitening, WithinClassWhitening

from .settings import Settings

SHRINKAGE = 0.6  # of both whitenings


@dataclass(frozen=True)
class ClosedForm:
    """An embedder as a recipe names it; ``title`` follows the name of the features."""

    title: str
    embedder: Literal["none", "pca", "within-class"]

    def settings(self, size: int) -> Settings:
        """The settings of the recipe for features of ``size`` numbers."""
        settings: Settings = {"model.embedder": self.embedder, "model.embedding_size": size}
        if self.embedder != "none":
            settings["model.shrinkage"] = SHRINKAGE
        return settings

    def fit(self, features: Tensor, labels: Tensor, relation: Any = None, size: int | None = None) -> nn.Module:
        """Fit the layer to features ``[N, F]`` with labels ``[N]``.

        ``size`` is the number of features before :func:`coordinates`. ValueError for constant features, and for
        whitening within classes of one item each.
        """
        shrinkage = shrinkage_of_coordinates(features.shape[1], size or features.shape[1])
        if self.embedder == "pca":
            return TotalWhitening(shrinkage).fit(features)
        if self.embedder == "within-class":
            return WithinClassWhitening(shrinkage, relation=relation).fit(features, labels)
        return nn.Identity()


def coordinates(features: Tensor) -> Tensor:
    """Features ``[N, F]`` in an orthonormal basis of their span, ``[N, min(N, F)]``.

    Angles and distances stay the same, and whitening of few items is much faster.
    """
    if len(features) >= features.shape[1]:
        return features
    left, sizes, _ = torch.linalg.svd(features.double(), full_matrices=False)
    return (left * sizes).to(features.dtype)  # type: ignore[no-any-return]


def shrinkage_of_coordinates(found: int, size: int) -> float:
    r"""The shrinkage of F' ``found`` coordinates that equals 0.6 for all F features.

    .. math:: \frac{\lambda'}{1 - \lambda'} = \frac{F'}{F} \frac{\lambda}{1 - \lambda}
    """
    odds = SHRINKAGE / (1 - SHRINKAGE) * found / size
    return odds / (1 + odds)


AS_THEY_ARE = ClosedForm("", "none")
WHITENED = ClosedForm(", whitened", "pca")
WITHIN_CLASSES = ClosedForm(", whitened within classes", "within-class")
CLOSED_FORMS = (AS_THEY_ARE, WHITENED, WITHIN_CLASSES)  # the simplest first
