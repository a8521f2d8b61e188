"""Entry points: allowed and denied, damaged, and without metadata."""

import pytest

from pml_ext import registry
from pml_ext.errors import PluginError, PluginWarning, UnknownNameError

pytestmark = pytest.mark.usefixtures("isolated_registry")


def record(name):
    return next(record for record in registry.diagnosis() if record.name == name)


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
    assert len({r.name for r in registry.diagnosis()}) == len(registry.diagnosis())


DAMAGED = {
    "no value": ("entry_points.txt", b"[pml_ext]\nno-value damaged\n"),
    "no module": ("entry_points.txt", b"[pml_ext]\ndamaged = my package!\n"),
    "empty": ("entry_points.txt", b"[pml_ext]\ndamaged =\n"),
    "not UTF-8": ("entry_points.txt", b"[pml_ext]\ndamaged = damaged\n# caf\xe9\n"),
}


@pytest.mark.parametrize(("file", "content"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_entry_points_harm_no_other(install_plugin, install_loss, file, content):
    package = install_plugin("damaged", "")
    (package.parent / "damaged-1.0.dist-info" / file).write_bytes(content)
    install_loss("foreign")
    with pytest.warns(PluginWarning, match="damaged"):
        assert registry.get("foreign").kind == "loss"
    assert record("damaged").status == "broken"
    assert (record("foreign").status, record("cbml").status) == ("ok", "ok")


def test_unreadable_entry_points_are_named(install_plugin):
    package = install_plugin("damaged", "")
    (package.parent / "damaged-1.0.dist-info" / "entry_points.txt").write_bytes(b"\xff\xfe")
    text = "entry points of the distribution 'damaged' cannot be read: Unicode.*pip install --force-reinstall damaged"
    with pytest.warns(PluginWarning, match=text):
        registry.diagnosis()
    assert "UnicodeDecodeError" in record("damaged").error


@pytest.mark.parametrize("content", [None, b"", b"Metadata-Version: 2.1\n"])
def test_a_plugin_without_metadata_is_loaded(install_loss, content):
    metadata = install_loss("foreign").parent / "foreign-1.0.dist-info" / "METADATA"
    metadata.unlink()
    if content is not None:
        metadata.write_bytes(content)
    assert registry.get("foreign").plugin == "foreign"
    assert (record("foreign").distribution, record("foreign").version) == ("unknown", "")
