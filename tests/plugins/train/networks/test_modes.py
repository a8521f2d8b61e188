"""Modes of modules are restored."""

import pytest
from torch import nn

from pml_ext_train.networks.modes import preserved_modes


def change_and_fail(network):
    with preserved_modes(network):
        network[0].train()
        network[1].eval()
        raise ValueError("within")


def test_each_module_has_its_own_mode_again():
    network = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout())
    network[0].eval()
    with pytest.raises(ValueError, match="within"):
        change_and_fail(network)
    assert not network[0].training
    assert network[1].training
