"""A network with its preprocessing: the same for training and for retrieval."""

import pytest
import torch
from torch import nn

from pml_ext import models
from pml_ext.errors import ConfigError
from pml_ext.network import Network, Normalization, Preprocessing


def test_it_is_its_parts_and_knows_what_its_images_want():
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


def test_a_known_number_of_features_asks_the_trunk_nothing():
    preprocessing = Preprocessing(image_size=8, channels=1, crop=False, normalize=None)
    assert Network(preprocessing, nn.Identity(), 4, [], features=9).embedder.in_features == 9
    with pytest.raises(ConfigError, match="must give vectors"):
        Network(preprocessing, nn.Identity(), 4, [])
