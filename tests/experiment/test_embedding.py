"""The embeddings of a split: one pass, in order, and nothing else is changed by it."""

import pytest
import torch
from torch import nn

from pml_ext.data import LabeledImages
from pml_ext.experiment.batches import embed_batches

CPU = torch.device("cpu")


class Counted(LabeledImages):
    """Counts how often each image is read."""

    def __getitem__(self, index):
        self.reads = [*getattr(self, "reads", []), index]
        return super().__getitem__(index)


@pytest.fixture
def images():
    pixels = torch.randint(256, (23, 1, 6, 6), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return Counted(pixels, torch.arange(23) % 5, list("abcde"), lambda image: image.float() / 255, channels=1)


@pytest.fixture
def network():
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten())
    trunk[1].running_mean.uniform_()
    return trunk, nn.Linear(64, 3)


@pytest.mark.parametrize("workers", [0, 2])
def test_one_pass_in_order_that_leaves_modes_and_random_numbers_alone(images, network, workers):
    trunk, embedder = network
    trunk.train()
    trunk[1].eval()  # frozen within a network that trains
    passed = []
    trunk.register_forward_pre_hook(lambda _, inputs: passed.append(len(inputs[0])))
    before = torch.get_rng_state()
    batches = list(embed_batches(trunk, embedder, images, CPU, batch_size=8, workers=workers))
    embeddings, labels = (torch.cat([batch[place] for batch in batches]) for place in (2, 3))
    assert torch.equal(torch.get_rng_state(), before)
    assert [module.training for module in trunk] == [True, False, True, True, True]
    assert trunk.training
    assert passed == [8, 8, 7]
    if workers == 0:
        assert images.reads == list(range(23))
    trunk.eval()
    with torch.no_grad():
        features = trunk(torch.stack([images[index][0] for index in range(23)]))
        assert torch.allclose(embeddings, embedder(features), atol=1e-6)
    assert labels.tolist() == images.labels.tolist()
    assert not embeddings.requires_grad
