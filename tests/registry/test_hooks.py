"""The hooks: their specifications, and those of a package with folders of recipes and papers."""

import importlib
import inspect

import pluggy
import pytest

from pml_ext.errors import PluginError
from pml_ext.registry import hooks
from pml_ext.registry.hooks import packaged

SPECS = {name: value for name, value in vars(hooks).items() if name.startswith("pml_ext_")}


def test_every_hook_is_specified_and_described():
    manager = pluggy.PluginManager("pml_ext")
    manager.add_hookspecs(hooks)
    assert {name for name in vars(manager.hook) if name.startswith("pml_ext_")} == set(SPECS)
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


def test_each_kind_has_a_hook():
    assert set(hooks.HOOK_OF.values()) == {name for name in vars(hooks) if name.startswith("pml_ext_")}
