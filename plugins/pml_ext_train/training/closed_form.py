"""Closed-form heads, fitted instead of, before or after training."""

from collections.abc import Mapping
from typing import Literal, cast

import torch
from torch import Tensor, nn

from pml_ext.errors import ConfigError
from pml_ext.whitening import TotalWhitening, WithinClassWhitening

from ..networks.embedders import fit_whitened_pca
from .view import View

SHRINKAGE = 0.6  # of whitening, unless the recipe says otherwise
Shrinkage = float | Literal["auto"]


def fit_embedder(view: View) -> None:
    """Fit the recipe's closed-form head to the trunk's training features."""
    model = view.recipe.model
    whitens = "within-class" in (model.embedder, model.start, model.refit) or bool(model.shrinkage)
    if whitens and model.embedding_size > view.network.features:
        raise ConfigError(
            f"model.embedding_size: found {model.embedding_size}, but whitening has at most as many outputs as the "
            f"trunk has features ({view.network.features})"
        )
    if model.refit == "within-class":  # an error comes before the training, not after it
        made_up = torch.randn(len(view.images("train")), 2, generator=torch.Generator().manual_seed(0))
        _whitened_within_classes(view, made_up.to(view.device), size=None)
    if model.embedder == "pca" and not model.shrinkage:
        fit_whitened_pca(view.untrained_features("train"), cast(nn.Linear, view.embedder))
    elif model.embedder == "pca":
        whitening = TotalWhitening(float(model.shrinkage or 0), model.embedding_size)
        _replace_embedder(view, whitening.fit(view.untrained_features("train")))
    elif "within-class" in (model.embedder, model.start):
        refit(view, view.untrained_features("train"))


def refit(view: View, features: Tensor) -> None:
    """Replace the embedder by within-class whitening of the training features."""
    _replace_embedder(view, _whitened_within_classes(view, features, view.recipe.model.embedding_size))


def _whitened_within_classes(view: View, features: Tensor, size: int | None) -> nn.Linear:
    shrinkage = view.recipe.model.shrinkage
    try:
        return fit_within_classes(view, features, SHRINKAGE if shrinkage is None else shrinkage, size)
    except ValueError as error:
        raise ConfigError(f"[model] within-class: {error}") from None


def fit_within_classes(view: View, features: Tensor, shrinkage: Shrinkage, size: int | None = None) -> nn.Linear:
    """Whiten within the classes, positive pairs or relation of the training images.

    Raises ValueError without any, and for clusters or instances as labels.
    """
    if view.recipe.data.labels != "given":
        found = view.recipe.data.labels
        raise ValueError(f"training images have no classes (data.labels = {found!r}); wanted labels, or embedder 'pca'")
    tuples = view.images("train").tuples
    if tuples is not None:
        rows = tuples.rows if tuples.same is None else tuples.rows[tuples.same]
        return WithinClassWhitening(shrinkage, size).fit(features, pairs=rows[:, :2])
    return WithinClassWhitening(shrinkage, size, view.relation).fit(features, view.true_labels("train"))


def whitened(view: View, features: Mapping[str, Tensor], training: Tensor) -> dict[str, Tensor] | None:
    """Whiten splits' features within the training classes, if there are any."""
    try:
        layer = fit_within_classes(view, training, SHRINKAGE)
    except ValueError:  # the baseline does not exist for these data
        return None
    with torch.no_grad():
        return {part: layer(rows) for part, rows in features.items()}


def _replace_embedder(view: View, layer: nn.Linear) -> None:
    view.embedder.load_state_dict(layer.state_dict())
    view.changed()
