"""Embedders: layers, and whitened principal components."""

import pytest
import torch
from torch import nn

from pml_ext.errors import ConfigError
from pml_ext_train.networks.embedders import embedder, fit_whitened_pca, whitened_components


def test_whitened_components_have_unit_covariance():
    features = torch.randn(500, 12, generator=torch.Generator().manual_seed(0)) @ torch.randn(12, 12)
    layer = nn.Linear(12, 5)
    fit_whitened_pca(features, layer)
    torch.testing.assert_close(torch.cov(layer(features).detach().T), torch.eye(5), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("count", "size", "most"), [(500, 13, 12), (6, 6, 5)])
def test_there_are_not_more_outputs_than_components(count, size, most):
    text = f"embedding_size: {size} is too large, because {count} features of length 12 have only {most} components"
    with pytest.raises(ConfigError, match=text):
        fit_whitened_pca(torch.randn(count, 12), nn.Linear(12, size))


def test_directions_without_variance_are_not_scaled():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(20, 64, generator=generator)
    layer = whitened_components(features, 128)
    assert layer.out_features == 19
    assert layer(features).abs().max() < 10
    flat = torch.cat([features[:10], features[:10]])  # 20 images that span nine directions
    whitened = whitened_components(flat, 128)(flat + 1e-4 * torch.randn(20, 64, generator=generator))
    assert whitened.abs().max() < 10
    assert int((whitened.std(dim=0) > 0.5).sum()) == 9


def test_norm_and_dropout_precede_each_linear_layer():
    kinds = [type(layer).__name__ for layer in embedder(6, 3, [4], "layer", 0.1)]
    assert kinds == ["LayerNorm", "Dropout", "Linear", "LayerNorm", "ReLU", "Dropout", "Linear"]
