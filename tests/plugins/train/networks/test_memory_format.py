"""A network on a CPU computes in channels-last, if it can."""

import pytest
import torch
from torch import nn

from pml_ext_train.networks.memory_format import use_channels_last
from pml_ext_train.networks.trunks import convnet, mlp


class Reshaped(nn.Conv2d):
    """A convolution whose output is flattened by ``view``."""

    def forward(self, images):
        return super().forward(images).view(len(images), -1)


def test_convolutions_in_channels_last_differ_by_rounding():
    torch.manual_seed(0)
    network = convnet(3, 32, width=16).double().eval()
    images = torch.randn(5, 3, 32, 32, dtype=torch.float64)
    before = network(images)
    network.float()
    assert use_channels_last(network, 3, 32) is torch.channels_last
    assert network[0].weight.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(network.double()(images), before, rtol=0, atol=1e-12)


@pytest.mark.parametrize("network", [Reshaped(3, 4, 3), mlp(3, 8)], ids=["view", "no convolution"])
def test_other_networks_keep_their_memory_format(network):
    assert use_channels_last(network, 3, 8) is torch.contiguous_format
    assert all(parameter.is_contiguous() for parameter in network.parameters())
    assert network.training


def test_modes_and_random_numbers_are_preserved():
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8).eval(), nn.Dropout(0.5))
    state = torch.get_rng_state()
    use_channels_last(network, 3, 8)
    assert torch.equal(torch.get_rng_state(), state)
    assert (network.training, network[1].training) == (True, False)
