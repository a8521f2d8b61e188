"""Plugins by entry points: found, guarded against, allowed and denied."""

import importlib
import re
import warnings

import pytest
from pytorch_metric_learning import losses

import pml_ext
from pml_ext import registry
from pml_ext.errors import PluginError, PluginWarning, UnknownNameError
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
        (
            "from pml_ext import hookimpl\n@hookimpl\ndef pml_ext_components(): return [int]",
            r"Component\(...\) entries",
        ),
        (
            "from pml_ext import hookimpl, Component\n"
            "@hookimpl\ndef pml_ext_components(): return [Component(int, 'x')]",
            "extends none of the base classes",
        ),
        (
            "from pml_ext import hookimpl, Component\nfrom pytorch_metric_learning.losses import NCALoss\n"
            "@hookimpl\ndef pml_ext_components(): return [Component(NCALoss, 'Not_Kebab')]",
            "kebab-case",
        ),
        ("from pml_ext import hookimpl\n@hookimpl\ndef pml_ext_recipes(): return 'recipes'", "must return a list"),
        ("from pml_ext import hookimpl\n@hookimpl\ndef pml_ext_recipes(extra): return []", "extra"),
        (
            "from pml_ext import hookimpl\n@hookimpl\ndef pml_ext_recipes(): return ['recipes']",
            r"'recipes', which is no folder of a package; write importlib.resources.files\(__name__\)",
        ),
        ("def pml_ext_components(): return []", "not marked as a hook.*'@hookimpl' above 'def pml_ext_components'"),
        ("def pml_ext_componets(): return []", "for pml_ext_components write 'from pml_ext.plugin import hookimpl'"),
        (
            "from pml_ext import hookimpl\n@hookimpl\ndef pml_ext_components(): pass",
            "pml_ext_components returned None; it must return a list",
        ),
        (
            "from pml_ext import hookimpl\n@hookimpl\ndef pml_ext_trunks(): pass",
            "pml_ext_trunks returned None; it must return a mapping",
        ),
        (
            "from pml_ext import hookimpl\n@hookimpl\ndef pml_ext_trunks(): return {'t': 5}",
            "'t' is 5, wanted a function",
        ),
        (
            "from pml_ext import hookimpl\n@hookimpl\ndef pml_ext_datasets(): return {'a b': int}",
            "no space.* not 'a b'",
        ),
        (
            "from pml_ext import hookimpl\n@hookimpl\ndef pml_ext_benchmark_peers(): return {'typo': {}}",
            "'typo' is no component of this plugin; it has none",
        ),
        (
            "from pml_ext import hookimpl, Component\nfrom pytorch_metric_learning.losses import NCALoss, AngularLoss\n"
            "@hookimpl\ndef pml_ext_components(): return [Component(NCALoss, 'a'), Component(AngularLoss, 'a')]",
            r"names the loss 'a' twice \(NCALoss and AngularLoss\)",
        ),
        ("import pytest\npytest.skip('not here', allow_module_level=True)", "Skipped: not here"),
    ],
)
def test_a_broken_plugin_is_reported_once_and_harms_nobody(install_plugin, install_loss, broken, cause):
    package = install_plugin("broken", "")
    (package / "__init__.py").write_text(broken + "\n")
    install_loss("foreign")
    found = Registry()
    with pytest.warns(PluginWarning, match=r"'broken' of broken 1.0 is broken") as caught:
        assert {record.name for record in found.plugins()} >= {"foreign", "broken"}
    assert len(caught) == 1
    assert found.get("foreign").kind == "loss"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert {"convnet", "mlp"} <= found.trunks().keys()
        record = next(record for record in found.plugins() if record.name == "broken")
    assert record.status == "broken"
    assert re.search(cause, record.error), record.error
    assert not any(component.plugin == "broken" for component in found.components())


def test_a_hook_that_fails_when_asked_later_drops_the_whole_plugin(install_loss):
    install_loss(
        "late",
        "Late",
        "late",
        more="""
    @hookimpl
    def pml_ext_datasets():
        raise OSError("no disk")
    """,
    )
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


def test_a_typing_error_in_the_allow_list_is_an_error_each_time(monkeypatch):
    monkeypatch.setenv("PML_EXT_PLUGINS", "cbml,angullar")
    fresh = Registry()
    for _ in range(2):
        with pytest.raises(PluginError, match="no installed plugin 'angullar'; nearest: angular; installed: .*cbml"):
            fresh.get("cbml")
    monkeypatch.setenv("PML_EXT_PLUGINS", "cbml,angular")
    assert fresh.get("cbml").plugin == "cbml"
    assert [c.name for c in fresh.components("regularizer") if not c.name.startswith("pml/")] == ["metric-variance"]


def test_what_a_plugin_prints_while_it_is_imported_goes_to_stderr(install_loss, capsys):
    package = install_loss("chatty", name="chatty")
    source = (package / "__init__.py").read_text()
    (package / "__init__.py").write_text("print('hello')\n" + source)
    assert Registry().get("chatty").plugin == "chatty"
    assert capsys.readouterr() == ("", "hello\n")


def test_warnings_that_are_errors_leave_nothing_half_done(install_plugin):
    install_plugin("broken", "1 / 0")
    fresh = Registry()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PluginWarning, match="ZeroDivisionError"):
            fresh.load()
        assert fresh.get("cbml").plugin == "cbml"
    assert len({record.name for record in fresh.plugins()}) == len(fresh.plugins())


def test_what_is_known_of_plugins(install_loss, install_plugin):
    install_loss(
        "foreign",
        class_name="CBML",
        name="cbml",
        more="""
    @hookimpl
    def pml_ext_trunks():
        return {"convnet": lambda channels, size: None}
    """,
    )
    install_plugin("broken", "def inner():\n    return 1 / 0\n\ninner()")
    with pytest.warns(PluginWarning, match="ZeroDivisionError: division by zero .pml-ext plugins -v shows where"):
        records = {record.name: record for record in Registry().plugins()}
    foreign, broken = records["foreign"], records["broken"]
    assert (foreign.hooks, foreign.components) == (["pml_ext_components", "pml_ext_trunks"], 1)
    assert foreign.clashes == [
        "loss 'cbml': also of 'cbml'; the bare name means that of 'cbml'",
        "trunk 'convnet': also of 'pml'; the bare name means that of 'pml'",
        "class 'CBMLLoss': also of 'cbml'; the bare name means that of 'cbml'",
    ]
    assert "loss 'cbml': also of 'foreign'; the bare name means that of 'cbml'" in records["cbml"].clashes
    assert 0 < foreign.seconds < 60
    assert "in inner" in broken.traceback
    assert not records["angular"].clashes


# Names of ours at load time


IMPORTS_OURS = """
    from pml_ext import CBMLLoss
    from pml_ext.plugin import Component, hookimpl

    class {name}Loss(CBMLLoss):
        pass

    @hookimpl
    def pml_ext_components():
        return [Component({name}Loss, name="{name}".lower())]
"""


def test_a_plugin_may_import_our_classes_while_it_is_loaded(install_plugin):
    install_plugin("aardvark", IMPORTS_OURS.format(name="Aardvark"))
    with registry.isolated():
        assert pml_ext.AardvarkLoss.__mro__[1] is pml_ext.CBMLLoss
        assert registry.get("aardvark").plugin == "aardvark"


def test_a_plugin_that_is_imported_before_the_registry_is_read(install_plugin):
    """Its own import of our class reads the entry points, when its hooks are not there yet."""
    install_plugin("aardvark", IMPORTS_OURS.format(name="Aardvark"))
    with registry.isolated():
        module = importlib.import_module("aardvark")
        assert registry.get("aardvark").cls is module.AardvarkLoss
        record = next(record for record in registry.plugins() if record.name == "aardvark")
        assert (record.status, record.components) == ("ok", 1)


def test_a_class_that_is_not_there_yet_says_what_to_write(install_plugin, install_loss):
    install_plugin("early", "from pml_ext import LateLoss")
    install_loss("late", "Late", "late")
    with registry.isolated(), pytest.warns(PluginWarning, match="no LateLoss yet.* from the package that defines it"):
        assert registry.get("late").plugin == "late"
