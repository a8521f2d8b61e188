"""Embedders, the layers from features to embeddings, and whitened PCA."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from pml_ext.errors import ConfigError

_LEAST_VARIANCE = 1e-7  # relative to the first component; smaller ones are rounding error
NORMS: dict[str, Callable[[int], nn.Module]] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


def embedder(
    in_features: int, embedding_size: int, hidden_sizes: Sequence[int] = (), norm: str = "none", dropout: float = 0.0
) -> nn.Module:
    """Linear layers from features to unnormalized embeddings, with ReLU between them.

    Before each linear layer: a ``norm`` (``"batch"``, ``"layer"``), the ReLU of a hidden layer, and ``dropout``.
    """
    layers: list[nn.Module] = []
    sizes = [in_features, *hidden_sizes, embedding_size]
    for number, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        if norm != "none":
            layers.append(NORMS[norm](inputs))
        if number > 0:
            layers.append(nn.ReLU())
        if dropout:
            layers.append(nn.Dropout(dropout))
        layers.append(nn.Linear(inputs, outputs))
    return layers[0] if len(layers) == 1 else nn.Sequential(*layers)


def fit_whitened_pca(features: Tensor, layer: nn.Linear) -> None:
    """Initialize a linear layer with whitened PCA of features ``[N, F]``.

    Outputs along which the features hardly vary are 0. ConfigError if the layer has more outputs than there are
    components; N features have at most N - 1.
    """
    from sklearn.decomposition import PCA

    components = _components_of(features)
    if layer.out_features > components:
        raise ConfigError(
            f"model.embedding_size: {layer.out_features} is too large, because {features.shape[0]:,} features of "
            f"length {features.shape[1]} have only {components} components"
        )
    fitted = PCA(layer.out_features, whiten=True, svd_solver="full").fit(features.cpu().double().numpy())
    variances = fitted.explained_variance_
    varies = variances > _LEAST_VARIANCE * variances.max()
    scales = np.zeros_like(variances)
    scales[varies] = 1 / np.sqrt(variances[varies])
    weight = fitted.components_ * scales[:, None]
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight).float())
        layer.bias.copy_(torch.from_numpy(-weight @ fitted.mean_).float())


def _components_of(features: Tensor) -> int:
    return min(len(features) - 1, features.shape[1])


def whitened_components(features: Tensor, size: int) -> nn.Linear:
    """A frozen layer of at most ``size`` whitened principal components of features ``[N, F]``."""
    size = max(1, min(size, _components_of(features)))
    layer: nn.Linear = nn.Linear(features.shape[1], size, device="meta").to_empty(device=features.device)
    fit_whitened_pca(features, layer)
    return layer.requires_grad_(False)
