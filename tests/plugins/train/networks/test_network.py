"""A network: its preprocessing, trunk and embedder."""

import pytest
import torch

from pml_ext.errors import ConfigError
from pml_ext_train.networks import Network, Normalization, Preprocessing, trunks as models


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
