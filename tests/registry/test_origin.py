"""Errors that come from the code of a plugin are traced back to it."""

import pytest
import torch

from pml_ext import registry

PLUGIN = """
from pytorch_metric_learning.losses import ContrastiveLoss
from pml_ext.plugin import Component, hookimpl

class RaisingLoss(ContrastiveLoss):
    def compute_loss(self, *arguments):
        return 1 / 0

class NothingLoss(ContrastiveLoss):
    def compute_loss(self, *arguments):
        return None

@hookimpl
def pml_ext_components():
    return [Component(RaisingLoss, "raising"), Component(NothingLoss, "nothing")]
"""


@pytest.mark.usefixtures("isolated_registry")
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("raising", "RaisingLoss.compute_loss of the plugin 'careless', careless/__init__.py:7"),
        ("nothing", "NothingLoss of the plugin 'careless'"),  # PML's code fails, in a method that the class inherits
    ],
)
def test_the_code_that_an_error_comes_from(install_plugin, name, place):
    install_plugin("careless", PLUGIN)
    loss = registry.build(name, "loss")
    with pytest.raises((ZeroDivisionError, TypeError)) as raised:
        loss(torch.eye(2), torch.arange(2))
    assert registry.origin_of(raised.value) == ("careless", place)


def test_what_no_plugin_raised_has_no_origin():
    with pytest.raises(ZeroDivisionError) as raised:
        divmod(1, 0)
    assert registry.origin_of(raised.value) is None
