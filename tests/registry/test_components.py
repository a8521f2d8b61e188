"""Components: kinds, capabilities and settings of classes; their construction; the hooks."""

import importlib
import inspect
import sys

import pluggy
import pytest
import torch
from pytorch_metric_learning import distances, losses
from torch.utils.data import Sampler

import pml_ext
from pml_ext import registry
from pml_ext.errors import ConfigError, PluginError
from pml_ext.registry import BuildContext, Component, fill_settings, hooks
from pml_ext.registry.components import import_name, kind_of
from pml_ext.registry.hooks import packaged


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
    assert {name for name in dir(losses) if name.endswith("Loss")} - {"GenericPairLoss"} <= names


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


@pytest.mark.parametrize(
    ("name", "context", "settings", "text"),
    [
        ("pml/triplet-margin", {}, {"margn": 0.1}, "no setting of pml/triplet-margin 'margn'; nearest: margin"),
        ("pml/proxy-anchor", {"num_classes": 2, "embeding_size": 4}, {}, "'embeding_size'; nearest: embedding_size"),
    ],
)
def test_unknown_settings_and_context_names_are_refused(name, context, settings, text):
    with pytest.raises(ConfigError, match=text):
        registry.build(name, "loss", context, **settings)


def test_settings_that_are_components_are_built():
    more = {"distance": {"name": "pml/lp", "power": 2}, "embedding_regularizer": {"name": "pml/lp"}}
    loss = registry.build("pml/contrastive", "loss", **more)
    assert isinstance(loss.distance, distances.LpDistance)
    assert loss.distance.power == 2
    assert type(loss.embedding_regularizer).__name__ == "LpRegularizer"


def wanting(embedding_size, words, metric: pml_ext.PDDMDistance, base: distances.BaseDistance, num_classes=7, seed=3):
    """Something with every kind of setting."""


def test_context_fills_the_missing_settings():
    context: BuildContext = {"embedding_size": 8, "num_classes": 2, "seed": 9}
    values, missing = fill_settings(wanting, context)
    assert values.keys() == {"embedding_size", "metric", "seed"}
    assert values["metric"].embedding_size == 8
    assert missing == ["words", "base"]  # of a base class any component will do: somebody has to say which
    assert fill_settings(wanting, context, given=["metric", "seed"])[0] == {"embedding_size": 8}


def test_a_context_reaches_the_components_in_settings():
    context: BuildContext = {"num_classes": 2, "class_labels": [30, 40], "collect_stats": True}
    parts = {"loss": {"name": "pml/contrastive"}, "regularizer": {"name": "density"}}
    loss = registry.build("regularized", "loss", context, **parts)
    assert loss.regularizer.classes.ordered.tolist() == [30, 40]
    assert (loss.collect_stats, loss.loss.collect_stats) == (True, losses.ContrastiveLoss().collect_stats)


def test_class_weights_follow_the_order_of_labels():
    reducer = registry.build("pml/class-weighted", "reducer", {"class_labels": [1, 3]}, weights=[0.5, 2])
    torch.testing.assert_close(reducer.weights, torch.tensor([0, 0.5, 0, 2], dtype=torch.float64))
    with pytest.raises(ConfigError, match="weights of pml/class-weighted must be numbers, .* got \\['a'\\]"):
        registry.build("pml/class-weighted", "reducer", weights=["a"])


def test_subclass_of_a_pml_reducer_is_converted(isolated_registry):
    """No class is known by its name."""
    from pytorch_metric_learning.reducers import ClassWeightedReducer

    class MineReducer(ClassWeightedReducer):
        """A reducer with weights of classes."""

    pml_ext.register(MineReducer)
    assert registry.build("mine", "reducer", {"class_labels": [1]}, weights=[0.5]).weights.tolist() == [0, 0.5]


SPECS = {name: value for name, value in vars(hooks).items() if name.startswith("pml_ext_")}


def test_every_hook_is_specified_and_described():
    manager = pluggy.PluginManager("pml_ext")
    manager.add_hookspecs(hooks)
    assert {name for name in vars(manager.hook) if name.startswith("pml_ext_")} == set(SPECS)
    assert set(hooks.HOOK_OF.values()) == set(SPECS)
    for name, function in SPECS.items():
        assert function.__doc__.startswith("Return "), name
        assert not inspect.signature(function).parameters  # so that a plugin cannot ask for any
        assert function() is None


def test_a_package_has_its_recipes_and_papers(install_plugin):
    package = install_plugin("packed", "")
    (package / "papers").mkdir()
    for name in ("mine.toml", "other.toml", "other.toml~"):
        (package / "papers" / name).touch()
    importlib.import_module("packed")
    recipes, papers = packaged("packed")
    assert recipes() == [package / "recipes"]
    assert papers() == {name: package / "papers" / f"{name}.toml" for name in ("mine", "other")}
    assert [hasattr(hook, "pml_ext_impl") for hook in (recipes, papers)] == [True, True]  # marked as hooks


@pytest.mark.parametrize("answer", [None, "text", b"bytes", {"a": 1}, 5])
@pytest.mark.parametrize("hook", ["pml_ext_components", "pml_ext_recipes"])
def test_an_answer_that_is_no_list_is_refused(hook, answer):
    with pytest.raises(PluginError, match=f"{hook} returned .*; it must return a list of "):
        hooks.entries(hook, "mine", answer)
