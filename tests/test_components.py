"""What a class is asked: its kind, its capabilities, its settings."""

import pytest
import torch
from pytorch_metric_learning import losses
from torch.utils.data import Sampler

from pml_ext import components, registry
from pml_ext.components import Component, kind_of, settings_of


def test_capabilities():
    assert registry.capabilities(losses.MultiSimilarityLoss()) == {"labels", "indices_tuple", "references"}
    assert registry.capabilities(losses.ProxyAnchorLoss) == {"labels", "indices_tuple"}
    assert registry.capabilities(losses.RankedListLoss) == {"labels"}

    class Sub(losses.NTXentLoss):
        pass

    assert "references" in registry.capabilities(Sub)
    assert registry.capabilities(torch.nn.Linear(1, 1)) == {"labels", "indices_tuple"}
    assert Component(Sub, "sub").capabilities == registry.capabilities(Sub)


def test_kinds_follow_from_base_classes():
    assert {kind_of(component.cls) for component in registry.components()} == set(components.KINDS)
    assert kind_of(type("MySampler", (Sampler,), {})) == "sampler"
    with pytest.raises(TypeError, match="extends none of the base classes of components .a loss: pytorch_metric_"):
        kind_of(torch.nn.Linear)


def test_settings_are_those_handed_on_to_base_classes_too():
    class Handing(losses.TripletMarginLoss):
        def __init__(self, *, own=1, margin=0.3, **kwargs):
            super().__init__(margin=margin, **kwargs)

    class Closed(losses.TripletMarginLoss):
        def __init__(self, own=1):
            super().__init__()

    assert {"own", "margin", "swap", "distance", "reducer"} <= set(settings_of(Handing))
    assert settings_of(Handing)["margin"].default == 0.3
    assert list(settings_of(Closed)) == ["own"]
    assert list(settings_of(lambda root, size=3, *rest, **more: None)) == ["root", "size"]
