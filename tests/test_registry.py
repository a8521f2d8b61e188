"""Discovery, names, clashes, broken plugins, and what the registry says of classes."""

import re
import subprocess
import sys
import warnings

import pytest
import torch
from pytorch_metric_learning import distances, losses, miners

import pml_ext
from pml_ext import registry
from pml_ext.errors import ConfigError, PluginError, UnknownNameError
from pml_ext.registry import Component, Paper, PluginWarning, Registry

GOOD = """
    from pytorch_metric_learning.losses import ContrastiveLoss
    from pytorch_metric_learning.miners import BatchHardMiner
    from pml_ext import Component, Paper, hookimpl

    class {name}Loss(ContrastiveLoss):
        '''A loss of somebody else.'''
        capabilities = frozenset({{"labels", "indices_tuple"}})

    @hookimpl
    def pml_ext_components():
        return [Component({name}Loss, name="{kebab}", paper=Paper("T", "A", 2020, "https://example.org"))]
"""


def source(name: str = "Foreign", kebab: str = "foreign") -> str:
    return GOOD.format(name=name, kebab=kebab)


def test_importing_the_package_imports_no_torch():
    code = "import sys, pml_ext; sys.exit(any(name in sys.modules for name in ('torch', 'pytorch_metric_learning')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def star() -> set[str]:
    names: dict[str, object] = {}
    exec("from pml_ext import *", names)
    return names.keys() - {"__builtins__"}


def test_star_import_gives_the_losses_and_all_public_names():
    assert star() == {*pml_ext._PUBLIC, *registry.class_names()}
    assert {"CBMLLoss", "HardPairMiner", "SelfSupervisedLoss", "load_run"} <= star()


def test_star_import_leaves_out_what_cannot_be_had(monkeypatch):
    monkeypatch.setitem(sys.modules, "pml_ext.retrieval", None)  # as where its extra is not installed
    try:
        registry.register(type("CBMLLoss", (losses.ContrastiveLoss,), {}), name="of-somebody-else")
        assert star() == {*pml_ext._PUBLIC, *registry.class_names()} - {"load_run", "CBMLLoss"}
    finally:
        registry.unregister_local()


def test_a_third_party_plugin_is_found_like_ours(install_plugin):
    install_plugin("foreign", source())
    found = Registry()
    component = found.get("foreign")
    assert (component.kind, component.plugin, component.summary) == ("loss", "foreign", "A loss of somebody else.")
    assert component.paper == Paper("T", "A", 2020, "https://example.org")
    assert found.get("foreign:foreign") == component
    assert found.build("foreign", neg_margin=0.5).neg_margin == 0.5
    assert found.class_by_name("ForeignLoss") is component.cls
    record = next(record for record in found.plugins() if record.name == "foreign")
    assert (record.status, record.version) == ("ok", "1.0")


def test_two_plugins_that_claim_one_name_stay_reachable_by_their_own(install_plugin):
    install_plugin("first", source("One", "same"))
    install_plugin("second", source("Two", "same"))
    found = Registry()
    with pytest.raises(PluginError, match=r"'first:same' \(first 1.0\) and 'second:same' \(second 1.0\)"):
        found.get("same")
    assert found.get("first:same").cls.__name__ == "OneLoss"
    assert found.get("second:same").cls.__name__ == "TwoLoss"


def test_two_classes_of_one_name_are_refused_by_that_name(install_plugin):
    install_plugin("first", source("Same", "one"))
    install_plugin("second", source("Same", "two"))
    with pytest.raises(PluginError, match="first:one.*second:two"):
        Registry().class_by_name("SameLoss")


@pytest.mark.parametrize(
    ("broken", "cause"),
    [
        ("raise RuntimeError('no luck')", "RuntimeError: no luck"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import a_package_that_is_not_there", "ModuleNotFoundError"),
        ("from pml_ext import hookimpl\n@hookimpl\ndef pml_ext_component(): return []", "unknown hook"),
        ("from pml_ext import hookimpl\n@hookimpl\ndef pml_ext_components(): return [int]",
         r"Component\(...\) entries"),
        ("from pml_ext import hookimpl, Component\n@hookimpl\ndef pml_ext_components(): return [Component(int, 'x')]",
         "extends none of the base classes"),
        ("from pml_ext import hookimpl, Component\nfrom pytorch_metric_learning.losses import NCALoss\n"
         "@hookimpl\ndef pml_ext_components(): return [Component(NCALoss, 'Not_Kebab')]", "kebab-case"),
        ("from pml_ext import hookimpl\n@hookimpl\ndef pml_ext_recipes(): return 'recipes'", "must return a list"),
        ("from pml_ext import hookimpl\n@hookimpl\ndef pml_ext_recipes(extra): return []", "extra"),
    ],
)  # fmt: skip
def test_a_broken_plugin_is_reported_once_and_harms_nobody(install_plugin, broken, cause):
    package = install_plugin("broken", "")
    (package / "__init__.py").write_text(broken + "\n")
    install_plugin("foreign", source())
    found = Registry()
    with pytest.warns(PluginWarning, match=r"'broken' of broken 1.0 is broken") as caught:
        assert found.get("foreign").kind == "loss"
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record = next(record for record in found.plugins() if record.name == "broken")
    assert record.status == "broken"
    assert re.search(cause, record.error), record.error
    assert not any(component.plugin == "broken" for component in found.components())


def test_a_hook_that_fails_when_asked_later_drops_the_whole_plugin(install_plugin):
    install_plugin("late", source("Late", "late") + """
    @hookimpl
    def pml_ext_datasets():
        raise OSError("no disk")
    """)  # fmt: skip
    found = Registry()
    assert found.get("late")
    with pytest.warns(PluginWarning, match="no disk"):
        assert "digits" in found.datasets()
    with pytest.raises(UnknownNameError):
        found.get("late")


def test_two_distributions_with_one_entry_point_name(install_plugin):
    install_plugin("first", source("One", "one"), entry_point="shared", distribution="dist-a")
    install_plugin("second", source("Two", "two"), entry_point="shared", distribution="dist-b")
    found = Registry()
    with pytest.warns(PluginWarning, match="already claims the entry-point name 'shared'"):
        found.load()
    assert sorted(record.status for record in found.plugins() if record.name == "shared") == ["broken", "ok"]
    assert len({"one", "two"} & {component.name for component in found.components()}) == 1


def test_the_name_of_the_core_is_not_open(install_plugin):
    install_plugin("impostor", source(), entry_point="pml")
    with pytest.warns(PluginWarning, match="not 'local' or 'pml'"):
        assert Registry().get("pml/contrastive").cls is losses.ContrastiveLoss


def test_allow_list_and_deny_list(install_plugin, monkeypatch):
    install_plugin("foreign", source())
    monkeypatch.setenv("PML_EXT_PLUGINS", "foreign")
    found = Registry()
    assert {c.plugin for c in found.components() if not c.name.startswith("pml/")} == {"pml", "foreign"}
    assert next(r for r in found.plugins() if r.name == "cbml").status == "not allowed"
    monkeypatch.setenv("PML_EXT_PLUGINS", "")
    assert {c.plugin for c in Registry().components() if not c.name.startswith("pml/")} == {"pml"}
    monkeypatch.delenv("PML_EXT_PLUGINS")
    monkeypatch.setenv("PML_EXT_BLOCK", "foreign, other")
    found = Registry()
    assert next(r for r in found.plugins() if r.name == "foreign").status == "blocked"
    with pytest.raises(UnknownNameError):
        found.get("foreign")
    monkeypatch.setenv("PML_EXT_PLUGINS", "absent")
    with pytest.warns(PluginWarning, match="'absent', which is not installed"):
        Registry().load()


def test_unknown_names_say_the_nearest():
    with pytest.raises(UnknownNameError, match="no loss 'cbmll'; nearest: cbml"):
        registry.get("cbmll", kind="loss")
    with pytest.raises(UnknownNameError, match="pml/multi-similarity"):
        registry.get("multi-similarity")
    with pytest.raises(UnknownNameError, match="kinds are loss, miner"):
        registry.components("losses")
    with pytest.raises(UnknownNameError, match="no data set 'digit'; nearest: digits"):
        registry.dataset("digit")
    with pytest.raises(AttributeError, match="CBMLLoss"):
        pml_ext.CBMLoss  # noqa: B018
    assert not hasattr(pml_ext, "NoSuchThing")


def test_a_name_that_two_kinds_share_needs_the_kind():
    with pytest.raises(UnknownNameError, match="a loss and a miner"):
        registry.get("pml/angular")
    assert registry.get("pml/angular", kind="miner").cls is miners.AngularMiner


def test_pmls_classes_and_their_names():
    assert registry.get("pml/ntxent").cls is losses.NTXentLoss
    assert registry.get("pml/lp", kind="distance").cls is distances.LpDistance
    assert registry.get("pml/m-per-class").kind == "sampler"
    names = {component.cls.__name__ for component in registry.components("loss") if component.name.startswith("pml/")}
    wanted = {name for name in dir(losses) if name.endswith("Loss")}
    assert wanted - {"GenericPairLoss"} <= names


def test_unknown_settings_are_refused_before_the_class_sees_them():
    with pytest.raises(ConfigError, match="no setting of pml/triplet-margin 'margn'; nearest: margin"):
        registry.build("pml/triplet-margin", "loss", margn=0.1)
    assert {"margin", "reducer", "distance", "collect_stats"} <= set(
        registry.get("pml/triplet-margin", "loss").settings
    )


def test_settings_that_are_components_are_built():
    loss = registry.build("pml/contrastive", "loss", distance={"name": "pml/lp", "power": 2},
                          embedding_regularizer={"name": "pml/lp"})  # fmt: skip
    assert isinstance(loss.distance, distances.LpDistance)
    assert loss.distance.power == 2
    assert type(loss.embedding_regularizer).__name__ == "LpRegularizer"


def test_register_in_the_running_process_and_again():
    try:
        for margin in (1, 2):

            @pml_ext.register(name="scratch")
            class ScratchLoss(losses.ContrastiveLoss):
                """From a notebook."""

                version = margin

        assert registry.get("scratch").cls.version == 2
        assert pml_ext.ScratchLoss is ScratchLoss
        assert "ScratchLoss" in dir(pml_ext)

        @pml_ext.register
        class HomeMadeMiner(miners.BatchHardMiner):
            pass

        assert registry.get("home-made").kind == "miner"
        with pytest.raises(TypeError, match="extends none"):
            pml_ext.register(int, name="number")
    finally:
        registry.unregister_local()


def test_capabilities():
    assert registry.capabilities(losses.MultiSimilarityLoss()) == {"labels", "indices_tuple", "references"}
    assert registry.capabilities(losses.ProxyAnchorLoss) == {"labels", "indices_tuple"}
    assert registry.capabilities(losses.RankedListLoss) == {"labels"}

    class Sub(losses.NTXentLoss):
        pass

    assert "references" in registry.capabilities(Sub)
    assert registry.capabilities(torch.nn.Linear(1, 1)) == {"labels", "indices_tuple"}
    assert Component(Sub, "sub").capabilities == registry.capabilities(Sub)


@pytest.mark.parametrize("component", registry.components("loss"), ids=lambda component: component.name)
def test_the_table_of_pmls_references_is_right(component):
    """A loss that the table credits with references takes them; one that refuses them is not in it."""
    if not component.name.startswith("pml/") or component.cls.__name__ in ("CrossBatchMemory", "MultipleLosses"):
        pytest.skip("a wrapper, or ours")
    if component.cls.__name__ == "NCALoss":
        pytest.skip("takes them, but compares an embedding with its own copy among them")
    wanted = {"num_classes": 3, "embedding_size": 4, "loss": losses.NTXentLoss(), "l": 4, "K": 1, "margin": 0.4,
              "Tn": 10,
              "descriptors_dim": 4}  # fmt: skip
    required = {n: wanted[n] for n, p in component.settings.items() if p.default is p.empty and n in wanted}
    loss = component.cls(**required)
    generator = torch.Generator().manual_seed(0)
    embeddings, references = (torch.randn(count, 4, generator=generator) for count in (6, 9))
    labels = torch.arange(6) % 3
    try:
        if "labels" not in component.capabilities:
            references, reference_labels, labels = torch.randn(6, 4, generator=generator), None, None
        else:
            reference_labels = torch.arange(9) % 3
        if component.cls.__name__ == "SelfSupervisedLoss":
            loss(embeddings, references)
        else:
            loss(embeddings, labels, ref_emb=references, ref_labels=reference_labels)
        takes = True
    except Exception:
        takes = False
    if "references" in component.capabilities:
        assert takes
    elif takes:  # it does not complain, so it must be one that is known to ignore them
        assert component.cls.__name__ in IGNORE_REFERENCES, "takes references, or ignores them without a word"


IGNORE_REFERENCES = {"ThresholdConsistentMarginLoss"}
