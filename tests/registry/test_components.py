"""Kinds, capabilities and settings of classes; PML's own classes."""

import sys

import pytest
import torch
from pytorch_metric_learning import distances, losses
from torch.utils.data import Sampler

from pml_ext import registry
from pml_ext.errors import PluginError
from pml_ext.registry import Component
from pml_ext.registry.components import import_name, kind_of


class Sub(losses.NTXentLoss):
    """A loss of somebody else."""


@pytest.mark.parametrize(
    ("component", "wanted"),
    [
        (losses.MultiSimilarityLoss(), {"labels", "indices_tuple", "references"}),
        (Sub, {"labels", "indices_tuple", "references"}),
        (losses.ProxyAnchorLoss, {"labels", "indices_tuple"}),
        (losses.RankedListLoss, {"labels"}),
        (torch.nn.Linear(1, 1), {"labels", "indices_tuple"}),
    ],
)
def test_capabilities_come_from_the_nearest_base(component, wanted):
    assert registry.capabilities(component) == wanted


def test_kinds_follow_from_base_classes():
    assert {kind_of(component.cls) for component in registry.components()} == set(registry.KINDS)
    assert kind_of(type("MySampler", (Sampler,), {})) == "sampler"
    with pytest.raises(TypeError, match="has no base class of a component .a loss: pytorch_metric_"):
        kind_of(torch.nn.Linear)


def test_pmls_classes_and_their_names():
    assert registry.get("pml/ntxent").cls is losses.NTXentLoss
    assert registry.get("pml/lp", kind="distance").cls is distances.LpDistance
    assert registry.get("pml/m-per-class").kind == "sampler"
    names = {component.cls.__name__ for component in registry.components("loss") if component.name.startswith("pml/")}
    wanted = {name for name in dir(losses) if name.endswith("Loss")}
    assert wanted - {"GenericPairLoss"} <= names


# NCALoss takes references, but compares an embedding with its own copy among them.
OTHERS = ("CrossBatchMemory", "MultipleLosses", "NCALoss")
OF_PML = [c for c in registry.components("loss") if c.name.startswith("pml/") and c.class_name not in OTHERS]


@pytest.mark.parametrize("component", OF_PML, ids=lambda component: component.name)
def test_the_table_of_pmls_references_is_right(component):
    """A loss that the table credits with references takes them; one that refuses them is not in it."""
    wanted = {"num_classes": 3, "embedding_size": 4, "descriptors_dim": 4, "loss": losses.NTXentLoss(), "l": 4, "K": 1}
    wanted |= {"margin": 0.4, "Tn": 10}
    required = {n: wanted[n] for n, p in component.settings.items() if p.default is p.empty and n in wanted}
    loss = component.cls(**required)
    capabilities = registry.capabilities(component.cls)
    generator = torch.Generator().manual_seed(0)
    count = 9 if "labels" in capabilities else 6
    embeddings, references = (torch.randn(size, 4, generator=generator) for size in (6, count))
    labels = (torch.arange(6) % 3, torch.arange(9) % 3) if "labels" in capabilities else (None, None)
    try:
        if component.class_name == "SelfSupervisedLoss":
            loss(embeddings, references)
        else:
            loss(embeddings, labels[0], ref_emb=references, ref_labels=labels[1])
        takes = True
    except Exception:
        takes = False
    assert takes is ("references" in capabilities)


def test_ours_are_listed_without_importing_them():
    ours = [each for each in registry.components() if not each.name.startswith("pml/")]
    assert len(ours) > 25
    for component in ours:
        assert 20 < len(component.summary) < 110, component
        assert component.one_line == component.summary


def test_summary_defaults_to_the_docstrings_first_line():
    class MineLoss(losses.BaseMetricLossFunction):
        """A loss of mine.

        More.
        """

    assert Component(MineLoss, "mine").one_line == "A loss of mine."


def test_class_without_a_pml_base_is_named():
    component = Component("collections:Counter", "count", plugin="mine", named_kind="loss")
    with pytest.raises(PluginError, match="^the component 'count' of the plugin 'mine': .*Counter has no base class"):
        _ = component.cls


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A function that writes a module ``theirs``, which is forgotten after the test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    yield (tmp_path / "theirs.py").write_text
    sys.modules.pop("theirs", None)


@pytest.mark.parametrize(
    ("line", "error"), [("raise SystemExit(3)", "SystemExit: 3"), ("1 / 0", "ZeroDivisionError: .*")]
)
def test_failing_import_names_plugin_hook_and_line(tmp_path, module, line, error):
    module(f"\n{line}\n")
    text = (
        rf"the loss 'x' of the plugin 'mine' cannot be imported: {error}, in {tmp_path.name}/theirs.py:2; "
        r"correct 'theirs:X' in a_hook, or leave the plugin out with PML_EXT_BLOCK=mine"
    )
    with pytest.raises(PluginError, match=text):
        import_name("theirs:X", "the loss 'x' of the plugin 'mine'", "mine", "a_hook", "class")
