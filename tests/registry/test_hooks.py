"""The hooks: their specifications, and those of a package with folders of recipes and papers."""

import importlib
import inspect
import types
from pathlib import Path

import pluggy
import pytest
from pytorch_metric_learning.losses import NCALoss

from pml_ext.errors import PluginError
from pml_ext.registry import Component, hooks
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
    for name in (
        "recipes/one.toml",
        "recipes/sub/two.toml",
        "papers/mine.toml",
        "papers/other.toml",
        "papers/other.toml~",
    ):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("")
    importlib.import_module("packed")
    recipes, papers = packaged("packed")
    (folder,) = recipes()
    assert sorted(each.name for each in folder.iterdir()) == ["one.toml", "sub"]
    found = papers()
    assert {name: file.name for name, file in found.items()} == {"mine": "mine.toml", "other": "other.toml"}
    assert all(file.is_file() for file in found.values())
    for hook in (recipes, papers):
        assert getattr(hook, "pml_ext_impl", None), "marked as a hook"


@pytest.mark.parametrize("answer", [None, "text", b"bytes", {"a": 1}, 5])
def test_an_answer_that_is_no_list_is_refused(answer):
    for hook in ("pml_ext_components", "pml_ext_recipes"):
        with pytest.raises(PluginError, match=f"{hook} returned .*; it must return a list of "):
            hooks.entries(hook, "mine", answer)


@pytest.mark.parametrize("answer", [None, "text", ["a"], 5])
def test_an_answer_that_is_no_mapping_is_refused(answer):
    with pytest.raises(PluginError, match="pml_ext_trunks returned .*; it must return a mapping with names as keys"):
        hooks.entries("pml_ext_trunks", "mine", answer)


def test_one_wrong_value_refuses_all():
    with pytest.raises(PluginError, match="pml_ext_trunks: 'second' is 5, wanted a function"):
        hooks.entries("pml_ext_trunks", "mine", {"first": len, "second": 5})
    assert hooks.entries("pml_ext_trunks", "mine", {"first": len}) == [("trunk", "first", len)]


def test_each_kind_has_a_hook():
    assert set(hooks.HOOK_OF.values()) == {name for name in vars(hooks) if name.startswith("pml_ext_")}


def test_components_have_the_names_of_their_classes_too():
    answer = iter([Component(NCALoss, "mine")])  # any iterable is a list
    (_, _, component), *_ = found = hooks.entries("pml_ext_components", "theirs", answer)
    assert found == [("loss", "mine", component), ("class", "NCALoss", component)]
    assert (component.plugin, component.kind) == ("theirs", "loss")


def test_a_component_gets_its_plugin():
    component = hooks.validated(Component(NCALoss, "mine"), "theirs")
    assert (component.plugin, component.kind) == ("theirs", "loss")
    with pytest.raises(PluginError, match="kebab-case"):
        hooks.validated(Component(NCALoss, "Mine"), "theirs")
    with pytest.raises(TypeError, match="extends none of the base classes of components"):
        hooks.validated(Component(int, "mine"), "theirs")


def test_recipes_are_named_by_their_place(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "b.toml").touch()
    (tmp_path / "a.toml").touch()
    (tmp_path / "notes.txt").touch()
    found = hooks.entries("pml_ext_recipes", "mine", [tmp_path])
    assert [(kind, name) for kind, name, _ in found] == [("recipe", "mine/a"), ("recipe", "mine/inner/b")]
    with pytest.raises(PluginError, match="which is no folder of a package"):
        hooks.entries("pml_ext_recipes", "mine", [tmp_path, Path("recipes")])


def test_hooks_are_marked_functions():
    module = types.ModuleType("theirs")
    module.helper = len

    @hooks.hookimpl
    def pml_ext_trunks():
        return {}

    module.pml_ext_trunks = pml_ext_trunks
    hooks.check_marks(module)

    def pml_ext_recipes():
        return []

    module.pml_ext_recipes = pml_ext_recipes
    with pytest.raises(PluginError, match="pml_ext_recipes is not marked as a hook"):
        hooks.check_marks(module)
    with pytest.raises(PluginError, match="its entry point names 5; wanted a module with hooks"):
        hooks.check_marks(5)
