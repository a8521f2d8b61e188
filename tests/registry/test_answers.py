"""What a plugin's hooks may return: refused values, and the files of recipes."""

import types
from pathlib import Path

import pytest
from pytorch_metric_learning.losses import NCALoss

from pml_ext.errors import PluginError
from pml_ext.registry import Component, answers
from pml_ext.registry.hooks import hookimpl


@pytest.mark.parametrize("answer", [None, "text", b"bytes", {"a": 1}, 5])
def test_an_answer_that_is_no_list_is_refused(answer):
    with pytest.raises(PluginError, match="a_hook returned .*; it must return a list of things"):
        answers.items_of({"a_hook": lambda: answer}, "a_hook", "things")


def test_any_iterable_is_a_list():
    hooks = {"a_hook": lambda: iter("ab")}
    assert answers.items_of(hooks, "a_hook", "things") == ["a", "b"]
    assert answers.items_of(hooks, "another", "things") == []


def test_a_component_gets_its_plugin():
    component = answers.validated(Component(NCALoss, "mine"), "theirs")
    assert (component.plugin, component.kind) == ("theirs", "loss")
    with pytest.raises(PluginError, match="kebab-case"):
        answers.validated(Component(NCALoss, "Mine"), "theirs")
    with pytest.raises(TypeError, match="extends none of the base classes of components"):
        answers.validated(Component(int, "mine"), "theirs")


def test_recipes_are_named_by_their_place(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "b.toml").touch()
    (tmp_path / "a.toml").touch()
    (tmp_path / "notes.txt").touch()
    assert [name for name, _ in answers.recipe_files("mine", tmp_path)] == ["mine/a", "mine/inner/b"]
    with pytest.raises(PluginError, match="which is no folder of a package"):
        answers.recipe_files("mine", Path("recipes"))


def test_hooks_are_marked_functions_of_known_names():
    module = types.ModuleType("theirs")
    module.helper = len
    assert answers.hooks_of(module) == {}

    @hookimpl
    def pml_ext_trunks():
        return {}

    module.pml_ext_trunks = pml_ext_trunks
    assert answers.hooks_of(module) == {"pml_ext_trunks": pml_ext_trunks}

    def pml_ext_recipes():
        return []

    module.pml_ext_recipes = pml_ext_recipes
    with pytest.raises(PluginError, match="pml_ext_recipes is not marked as a hook"):
        answers.hooks_of(module)
