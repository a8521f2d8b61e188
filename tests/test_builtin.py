"""What the layer and training register: what it registers, and that every name leads to something."""

import inspect
import pkgutil
from pathlib import Path

import pytest

import pml_ext_train
from pml_ext import builtin, registry

COMMANDS = pml_ext_train.pml_ext_commands()


@pytest.mark.parametrize("component", builtin.components(), ids=lambda component: component.name)
def test_a_component_is_registered_with_a_summary(component):
    found = registry.get(component.name, component.kind)
    assert (found.plugin, found.summary) == ("pml", component.summary)
    assert f"{component.cls.__module__}.{component.class_name}".startswith("pml_ext.")
    assert component.cls.__doc__


@pytest.mark.parametrize("name", COMMANDS)
def test_command_is_a_function_with_a_summary(name):
    command = COMMANDS[name]
    function = pkgutil.resolve_name(command.function)
    assert inspect.isfunction(function)
    assert function.__doc__
    assert command.summary.endswith(".")
    assert len(command.summary) < 60


def test_recipes_are_the_files_of_the_package():
    folder = Path(pml_ext_train.__file__).parent / "recipes"
    files = {f"pml/{file.relative_to(folder).with_suffix('').as_posix()}" for file in folder.rglob("*.toml")}
    assert "pml/contrastive/digits" in files
    assert {name for name in registry.recipes() if name.startswith("pml/")} == files


FACTORIES = {
    "data set": pml_ext_train.pml_ext_datasets(),
    "trunk": pml_ext_train.pml_ext_trunks(),
    "transform": pml_ext_train.pml_ext_transforms(),
    "tracker": pml_ext_train.pml_ext_trackers(),
}


def parts_of(factory):
    """Function and arguments of a partial function, which another call makes anew."""
    return getattr(factory, "func", factory), getattr(factory, "args", ())


@pytest.mark.parametrize("kind", FACTORIES)
def test_data_sets_trunks_and_trackers_are_factories(kind):
    table = FACTORIES[kind]
    found = {name: parts_of(registry.factory(kind, name)) for name in table}
    assert found == {name: parts_of(factory) for name, factory in table.items()} != {}
