"""A network on a CPU computes in channels-last, if it can."""

import torch
from torch import nn

from pml_ext_train.networks.memory_format import use_channels_last
from pml_ext_train.networks.trunks import convnet, mlp


class Reshaped(nn.Module):
    """A convolution whose output is flattened by ``view``."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)

    def forward(self, images):
        return self.convolution(images).view(len(images), -1)


def test_convolutions_differ_by_rounding():
    torch.manual_seed(0)
    network = convnet(3, 32, width=16).double().eval()
    images = torch.randn(5, 3, 32, 32, dtype=torch.float64)
    before = network(images)
    network.float()
    assert use_channels_last(network, 3, 32) is torch.channels_last
    assert network[0].weight.is_contiguous(memory_format=torch.channels_last)
    after = network.double()(images)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-12)


def test_one_that_uses_view_stays_as_it_is():
    network = Reshaped()
    assert use_channels_last(network, 3, 8) is torch.contiguous_format
    assert network.convolution.weight.is_contiguous()
    assert network.training


def test_one_without_convolutions_stays_as_it_is():
    assert use_channels_last(mlp(1, 8), 1, 8) is torch.contiguous_format


def test_modes_and_random_numbers_are_preserved():
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.5))
    network[1].eval()
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    use_channels_last(network, 3, 8)
    assert torch.equal(torch.rand(3), expected)
    assert network.training
    assert not network[1].training
