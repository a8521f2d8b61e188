"""Plugins by entry points: found, guarded against, allowed and denied."""

import re
import warnings

import pytest
from pytorch_metric_learning import losses

from pml_ext.errors import PluginWarning, UnknownNameError
from pml_ext.registry import Paper, Registry


def test_a_third_party_plugin_is_found_like_ours(install_loss):
    install_loss("foreign")
    found = Registry()
    component = found.get("foreign")
    assert (component.kind, component.plugin, component.summary) == ("loss", "foreign", "A loss of somebody else.")
    assert component.paper == Paper("T", "A", 2020, "https://example.org")
    assert found.get("foreign:foreign") == component
    assert found.build("foreign", neg_margin=0.5).neg_margin == 0.5
    assert found.class_by_name("ForeignLoss") is component.cls
    record = next(record for record in found.plugins() if record.name == "foreign")
    assert (record.status, record.version) == ("ok", "1.0")


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
def test_a_broken_plugin_is_reported_once_and_harms_nobody(install_plugin, install_loss, broken, cause):
    package = install_plugin("broken", "")
    (package / "__init__.py").write_text(broken + "\n")
    install_loss("foreign")
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


def test_a_hook_that_fails_when_asked_later_drops_the_whole_plugin(install_loss):
    install_loss("late", "Late", "late", more="""
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


def test_two_distributions_with_one_entry_point_name(install_loss):
    install_loss("first", "One", "one", entry_point="shared", distribution="dist-a")
    install_loss("second", "Two", "two", entry_point="shared", distribution="dist-b")
    found = Registry()
    with pytest.warns(PluginWarning, match="already claims the entry-point name 'shared'"):
        found.load()
    assert sorted(record.status for record in found.plugins() if record.name == "shared") == ["broken", "ok"]
    assert len({"one", "two"} & {component.name for component in found.components()}) == 1


def test_the_name_of_the_core_is_not_open(install_loss):
    install_loss("impostor", entry_point="pml")
    with pytest.warns(PluginWarning, match="not 'local' or 'pml'"):
        assert Registry().get("pml/contrastive").cls is losses.ContrastiveLoss


def test_allow_list_and_deny_list(install_loss, monkeypatch):
    install_loss("foreign")
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
