"""A network: its preprocessing, trunk and embedder."""

import pytest
import torch
from torch import nn

from pml_ext.errors import ConfigError
from pml_ext_train.networks import Network, Normalization, Preprocessing, trunks as models
from pml_ext_train.networks.embedders import embedder, fit_whitened_pca, whitened_components


def test_a_network_consists_of_its_parts():
    values = Normalization(mean=[0.5, 0.4, 0.3], std=[0.2, 0.2, 0.1])
    preprocessing = Preprocessing(image_size=8, channels=3, crop=True, normalize=values)
    trunk = models.convnet(3, 8, blocks=2, width=5)
    network = Network(preprocessing, trunk, embedding_size=6, hidden_sizes=[7]).eval()
    image = torch.randint(256, (3, 8, 8), dtype=torch.uint8)
    _, plain = network.preprocessing.transforms()
    seen = plain(image)
    torch.testing.assert_close(
        seen, (image / 255 - torch.tensor(values.mean)[:, None, None]) / torch.tensor(values.std)[:, None, None]
    )
    assert network.features == 20
    assert torch.equal(network(seen[None]), network.embedder(trunk(seen[None])))
    assert Preprocessing.model_validate_json(preprocessing.model_dump_json()) == preprocessing


def test_without_embedder_features_are_the_embeddings():
    preprocessing = Preprocessing(image_size=8, channels=1, crop=False, normalize=None)
    trunk = models.convnet(1, 8, blocks=2, width=5)
    network = Network(preprocessing, trunk, 20, hidden_sizes=None).eval()
    images = torch.rand(3, 1, 8, 8)
    assert torch.equal(network(images), trunk(images))
    text = "leaves the trunk's 20 features unchanged; wanted embedding_size = 20, not 6"
    with pytest.raises(ConfigError, match=text):
        Network(preprocessing, trunk, 6, hidden_sizes=None)


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({"crop": True}, 256),
        ({"crop": False}, None),
        ({"crop": False, "resize": 230}, 230),
        ({"crop": True, "resize": 230, "squash": True}, [230, 230]),
        ({"crop": True, "squash": True}, [224, 224]),
    ],
)
def test_images_are_resized_before_the_crop(settings, size):
    assert Preprocessing(image_size=224, channels=3, normalize=None, **settings).resized_to == size


@pytest.mark.parametrize("wrong", [{"channels": 2}, {"image_size": 0}, {"crop": "yes"}, {"value_range": 128}])
def test_preprocessing_with_wrong_values_is_refused(wrong):
    given = {"image_size": 8, "channels": 3, "crop": True, "normalize": None}
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}\n"):
        Preprocessing(**given | wrong)


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
