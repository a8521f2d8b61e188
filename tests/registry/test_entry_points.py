"""Entry points: allowed and denied, and without a module."""

import pytest

from pml_ext import registry
from pml_ext.cli.diagnosis import diagnosis
from pml_ext.errors import PluginError, PluginWarning, UnknownNameError

pytestmark = pytest.mark.usefixtures("isolated_registry")


def record(name):
    return next(record for record in diagnosis() if record.name == name)


def names(kind=None):
    return {c.name for c in registry.components(kind) if not c.name.startswith("pml/")}


def test_allow_list_and_deny_list(install_loss, monkeypatch):
    install_loss("foreign")
    monkeypatch.setenv("PML_EXT_PLUGINS", "foreign")
    assert {c.plugin for c in registry.components() if not c.name.startswith("pml/")} == {"pml", "foreign"}
    assert record("cbml").status == "not allowed"
    monkeypatch.setenv("PML_EXT_PLUGINS", "")
    with registry.isolated():
        assert {c.plugin for c in registry.components() if not c.name.startswith("pml/")} == {"pml"}
    monkeypatch.delenv("PML_EXT_PLUGINS")
    monkeypatch.setenv("PML_EXT_BLOCK", "foreign, pddm")
    with registry.isolated():
        assert (record("foreign").status, record("pddm").status, record("cbml").status) == ("blocked", "blocked", "ok")
        with pytest.raises(UnknownNameError):
            registry.get("foreign")


@pytest.mark.parametrize("variable", ["PML_EXT_PLUGINS", "PML_EXT_BLOCK"])
def test_a_typing_error_in_either_list_is_an_error_each_time(monkeypatch, variable):
    monkeypatch.setenv(variable, "cbml,angullar")
    for _ in range(2):
        text = f"{variable}: no installed plugin 'angullar'; nearest: angular; installed: .*pddm"
        with pytest.raises(PluginError, match=text):
            registry.get("cbml")
    monkeypatch.setenv(variable, "cbml,angular")
    assert ("cbml" in names("loss")) == (variable == "PML_EXT_PLUGINS")
    assert len({r.name for r in diagnosis()}) == len(diagnosis())


@pytest.mark.parametrize("value", ["my package!", ""])
def test_an_entry_point_that_names_no_module_harms_no_other(install_plugin, install_loss, value):
    package = install_plugin("wrong", "")
    points = package.parent / "wrong-1.0.dist-info" / "entry_points.txt"
    points.write_text(f"[pml_ext]\nwrong = {value}\n")
    install_loss("foreign")
    with pytest.warns(PluginWarning, match="its entry point is .*; wanted a module, such as 'my_package'"):
        assert registry.get("foreign").kind == "loss"
    assert record("wrong").status == "broken"
    assert (record("foreign").status, record("cbml").status) == ("ok", "ok")
