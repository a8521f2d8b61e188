"""Plugins by entry points: found, left out if broken, and loaded again after an interruption."""

import importlib
import re
import sys
import textwrap
import warnings
from unittest import mock

import pytest

from pml_ext import builtin, registry
from pml_ext.errors import MissingExtraError, PluginError, PluginWarning, StoppedError, UnknownNameError
from pml_ext.registry import Paper
from pml_ext_train.cli.diagnosis import diagnosis

pytestmark = pytest.mark.usefixtures("isolated_registry")


def record(name):
    return next(record for record in diagnosis() if record.name == name)


def names(kind=None):
    return {c.name for c in registry.components(kind) if not c.name.startswith("pml/")}


def test_a_third_party_plugin_is_found_like_ours(install_loss):
    install_loss("foreign")
    component = registry.get("foreign")
    assert (component.kind, component.plugin) == ("loss", "foreign")
    assert component.paper == Paper("T", "A", 2020, "https://example.org")
    assert registry.get("foreign:foreign") == component
    assert registry.build("foreign", neg_margin=0.5).neg_margin == 0.5
    assert registry.find("class", "ForeignLoss") == ("foreign", component)
    assert (record("foreign").status, record("foreign").version) == ("ok", "1.0")


MARKED = """from pml_ext.plugin import hookimpl, Component
from pytorch_metric_learning.losses import *
@hookimpl
def pml_ext_"""
BROKEN = {
    "raise RuntimeError('no luck')": "RuntimeError: no luck",
    "import sys; sys.exit(3)": "SystemExit: 3",
    "import pytest\npytest.skip('not here', allow_module_level=True)": "Skipped: not here",
    "def pml_ext_components(): return []": "not marked as a hook.*hookimpl' above 'def pml_ext_components'",
    MARKED + "component(): return []": "no hook 'pml_ext_component'; nearest: pml_ext_components",
    MARKED + "recipes(extra): return []": "extra",
    MARKED + "components(): return [int]": r"Component\(...\) entries",
    MARKED + "components(): return [Component(NCALoss, 'Not_Kebab')]": "kebab-case",
    MARKED + "components(): return [Component(NCALoss, 'a'), Component(AngularLoss, 'a')]": (
        r"names the loss 'a' twice \(NCALoss and AngularLoss\)"
    ),
    MARKED + "recipes(): return ['recipes']": r"'recipes', which is not a package's folder; write importlib.resources",
    MARKED + "trunks(): pass": "pml_ext_trunks returned None; it must return a mapping",
    MARKED + "trunks(): return {'t': 5}": "'t' is 5; expected a function",
    MARKED + "datasets(): return {'a b': int}": "'a b' is .*expected a function .and a name without space",
    MARKED + "papers(): return {'my-paper': 'tables.toml'}": "expected a file: importlib.resources",
}


@pytest.mark.parametrize(("broken", "cause"), BROKEN.items(), ids=range(len(BROKEN)))
def test_broken_plugin_is_reported_once_without_harm(install_plugin, install_loss, broken, cause):
    (install_plugin("broken", "") / "__init__.py").write_text(broken + "\n")
    install_loss("foreign")
    with pytest.warns(PluginWarning, match=r"'broken' of broken 1.0 is broken") as caught:
        assert {record.name for record in diagnosis()} >= {"foreign", "broken"}
    assert len(caught) == 1
    assert registry.get("foreign").kind == "loss"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert {"convnet", "mlp"} <= registry.values("trunk").keys()
        assert record("broken").status == "broken"
        assert re.search(cause, record("broken").error), record("broken").error
    assert not any(component.plugin == "broken" for component in registry.components())


def test_failing_hook_loses_only_its_own_names(install_loss):
    failing = "\n    @hookimpl\n    def pml_ext_datasets():\n        raise OSError('no disk')\n"
    works = "\n    @hookimpl\n    def pml_ext_trunks():\n        return {'late-trunk': int}\n"
    install_loss("late", "Late", "late", more=failing + works)
    before = registry.get("late")
    with pytest.warns(
        PluginWarning, match="pml_ext_datasets of the plugin 'late' of late 1.0 is broken and was left out: .*no disk"
    ):
        assert "digits" in registry.values("data set")
    assert registry.get("late") == before
    assert registry.factory("trunk", "late-trunk") is int
    assert record("late").status == "broken"
    assert re.fullmatch(r"pml_ext_datasets: OSError: no disk, in late/__init__.py:\d+", record("late").error)


def test_without_extras_other_plugins_still_work(install_loss, monkeypatch):
    install_loss("foreign", more="\n    @hookimpl\n    def pml_ext_datasets():\n        return {'theirs': int}\n")
    monkeypatch.setitem(sys.modules, "pml_ext_train.data", None)  # as where its extra is not installed
    monkeypatch.setitem(sys.modules, "pml_ext_train.networks.trunks", None)
    assert registry.factory("data set", "theirs") is int
    assert set(registry.values("data set")).difference(["unlabeled"]) == {"theirs"}  # of the plugin of search
    assert record("foreign").status == "ok"
    for look_up in (lambda: registry.factory("data set", "digits"), lambda: registry.factory("trunk", "convnet")):
        with pytest.raises(MissingExtraError, match="pml-ext\\[train\\]"):
            look_up()


def test_two_distributions_with_one_entry_point_name(install_loss):
    install_loss("first", "One", "one", entry_point="shared", distribution="dist-a")
    install_loss("second", "Two", "two", entry_point="shared", distribution="dist-b")
    with pytest.warns(PluginWarning, match="already has an entry point named 'shared'"):
        diagnosis()
    assert sorted(record.status for record in diagnosis() if record.name == "shared") == ["broken", "ok"]
    assert len({"one", "two"} & names()) == 1


def test_two_entry_points_of_one_module(install_loss):
    install_loss("foreign", points="foreign = foreign\nsame = foreign")
    with pytest.warns(PluginWarning, match="the entry point 'foreign' already names its module; remove one"):
        assert registry.get("foreign").plugin == "foreign"
    assert (record("foreign").status, record("same").status) == ("ok", "broken")


def test_a_plugin_that_is_refused_leaves_no_hook(install_plugin):
    """A misspelled hook refuses the others of its module too."""
    trunks = "@hookimpl\ndef pml_ext_trunks():\n    return {'their-trunk': int}\n"
    misspelled = "@hookimpl\ndef pml_ext_trunk():\n    return {}\n"
    install_plugin("theirs", f"from pml_ext.plugin import hookimpl\n{trunks}{misspelled}")
    with pytest.warns(PluginWarning, match="no hook 'pml_ext_trunk'; nearest"):
        assert "their-trunk" not in registry.values("trunk")


def test_the_output_of_an_import_goes_to_stderr(install_loss, capsys):
    package = install_loss("chatty", name="chatty")
    source = (package / "__init__.py").read_text()
    (package / "__init__.py").write_text("print('hello')\n" + source)
    assert registry.get("chatty").plugin == "chatty"
    assert capsys.readouterr() == ("", "hello\n")


def test_warnings_that_are_errors_leave_nothing_half_done(install_plugin):
    install_plugin("broken", "1 / 0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PluginWarning, match="ZeroDivisionError"):
            diagnosis()
        assert registry.get("cbml").plugin == "cbml"
    assert len({record.name for record in diagnosis()}) == len(diagnosis())


def test_the_record_of_a_plugin(install_loss, install_plugin, pml_ext_command):
    trunk = "\n    @hookimpl\n    def pml_ext_trunks():\n        return {'convnet': lambda channels, size: None}\n"
    install_loss("foreign", class_name="CBML", name="cbml", more=trunk)
    install_plugin("broken", "def inner():\n    return 1 / 0\n\ninner()")
    with pytest.warns(PluginWarning, match="division by zero, in broken/__init__.py:2; see 'pml-ext plugins -v'"):
        records = {record.name: record for record in diagnosis()}
    foreign = records["foreign"]
    assert (foreign.hooks, foreign.components) == (["pml_ext_components", "pml_ext_trunks"], 1)
    assert foreign.clashes == [
        "loss 'cbml': also in 'cbml'; the bare name refers to 'cbml'",
        "trunk 'convnet': also in 'pml'; the bare name refers to 'pml'",
        "class 'CBMLLoss': also in 'cbml'; the bare name refers to 'cbml'",
    ]
    assert "loss 'cbml': also in 'foreign'; the bare name refers to 'cbml'" in records["cbml"].clashes
    assert 0 < foreign.seconds < 60
    assert "in inner" in records["broken"].traceback
    assert not records["angular"].clashes
    done = pml_ext_command("plugins", "-v")
    assert done.returncode == 1  # one is broken
    assert f"  clash       {foreign.clashes[0]}\n" in done.stdout
    assert "in inner" in done.stdout


IMPORTS_OURS = """
    from pml_ext import CBMLLoss
    from pml_ext.plugin import Component, hookimpl

    class AardvarkLoss(CBMLLoss):
        pass

    @hookimpl
    def pml_ext_components():
        return [Component(AardvarkLoss, name="aardvark")]
"""


def test_plugin_imported_before_the_registry_is_found(install_plugin):
    """Its own import of our class reads the entry points, when its hooks are not there yet."""
    install_plugin("aardvark", IMPORTS_OURS)
    module = importlib.import_module("aardvark")
    assert registry.get("aardvark").cls is module.AardvarkLoss
    assert (record("aardvark").status, record("aardvark").components) == ("ok", 1)


def test_entry_point_without_a_module_is_named(install_plugin):
    install_plugin("text", "plugin = 'hello'\n", points="text = text:plugin")
    with pytest.warns(PluginWarning, match="its entry point names 'hello'; expected a module with hooks"):
        diagnosis()


INTERRUPTED = """
    from pathlib import Path
    from pml_ext.errors import StoppedError
    first = Path(__file__).with_name("first")
    if first.exists():
        first.unlink()
        raise {}
"""


@pytest.mark.parametrize("stop", ["KeyboardInterrupt", "StoppedError(2, 'stopped')"])
@pytest.mark.parametrize("before_hooks", [True, False])
def test_an_interrupted_import_is_made_again(install_plugin, stop, before_hooks):
    interrupted = textwrap.dedent(INTERRUPTED.format(stop))
    hooks = textwrap.dedent(IMPORTS_OURS)
    if before_hooks:
        text = interrupted + hooks
    else:
        text = hooks.replace("    return", textwrap.indent(interrupted, "    ") + "    return")
    (install_plugin("mine", text) / "first").touch()
    with pytest.raises((KeyboardInterrupt, StoppedError)):
        registry.get("aardvark")
    assert registry.get("aardvark").plugin == "mine"
    assert record("mine").status == "ok"


def test_an_interruption_before_our_own_names_loses_none():
    interrupted = mock.patch.object(builtin, "pml_components", side_effect=KeyboardInterrupt)
    with interrupted, pytest.raises(KeyboardInterrupt):
        registry.components()
    assert {"contrastive", "regularized"} <= {
        component.name.removeprefix("pml/") for component in registry.components()
    }


@pytest.mark.parametrize("error", [KeyboardInterrupt, ImportError])
def test_own_hook_that_raised_is_called_again(error):
    with mock.patch("pml_ext_train.data.builtin_datasets", side_effect=error), pytest.raises(error):
        registry.find("data set", "digits")
    assert registry.find("data set", "digits")[0] == "pml"


def test_plugin_in_an_attribute_may_import_first(install_plugin):
    """Its entry point names an object of the module that is being imported."""
    reads = "import sys\nfrom pml_ext import registry\nregistry.components()\n"
    hooks = reads + textwrap.dedent(IMPORTS_OURS) + "hooks = sys.modules[__name__]\n"
    install_plugin("aardvark", hooks, points="aardvark = aardvark:hooks")
    module = importlib.import_module("aardvark")
    assert registry.get("aardvark").cls is module.AardvarkLoss
    assert record("aardvark").status == "ok"


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
def test_misspelled_plugin_in_a_list_always_raises(monkeypatch, variable):
    monkeypatch.setenv(variable, "cbml,angullar")
    for _ in range(2):
        text = f"{variable}: no installed plugin 'angullar'; nearest: angular; installed: .*pddm"
        with pytest.raises(PluginError, match=text):
            registry.get("cbml")
    monkeypatch.setenv(variable, "cbml,angular")
    assert ("cbml" in names("loss")) == (variable == "PML_EXT_PLUGINS")
    assert len({r.name for r in diagnosis()}) == len(diagnosis())


@pytest.mark.parametrize("value", ["my package!", ""])
def test_invalid_entry_point_harms_no_other_plugin(install_plugin, install_loss, value):
    install_plugin("wrong", "", points=f"wrong = {value}")
    install_loss("foreign")
    with pytest.warns(PluginWarning, match="its entry point is .*; expected a module, such as 'my_package'"):
        assert registry.get("foreign").kind == "loss"
    assert record("wrong").status == "broken"
    assert (record("foreign").status, record("cbml").status) == ("ok", "ok")
