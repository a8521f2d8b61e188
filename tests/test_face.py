"""The names of pml_ext, pml_ext.plugin and the registry, at run time and to type checkers; typed_face.py has types."""

import ast
import importlib
import inspect
import pkgutil
import re
import sys
from pathlib import Path

import pytest
import torch

import pml_ext
import pml_ext_train
from pml_ext import builtin, lazy, plugin, registry
from pml_ext.errors import MissingExtraError
from pml_ext.plugin import RunView
from pml_ext_train.cli.scaffold import new_plugin
from pml_ext_train.recipe import load_recipes
from pml_ext_train.training.run import Run

STUB = ast.parse(Path(pml_ext.__file__).with_suffix(".pyi").read_text())
IMPORTED = [(node, alias) for node in STUB.body if isinstance(node, ast.ImportFrom) for alias in node.names]
ROOT = Path(__file__).parents[1]
BASES_OF_ERRORS = {"PmlExtError", "ConfigError", "MissingExtraError"}  # to be caught by who calls, without an example
OURS = {"pml", "angular", "cbml", "density", "pddm", "triplets"}


def test_the_stub_lists_every_public_name():
    for node, alias in IMPORTED:
        assert alias.name == alias.asname, "a stub exports what it imports as itself"
        module = f"pml_ext.{node.module}" if node.level and node.module else node.module or "pml_ext"
        assert getattr(pml_ext, alias.name) is getattr(importlib.import_module(module), alias.name), alias.name
    names = {alias.name for _, alias in IMPORTED}
    assert names == {*pml_ext._NAMES, *pml_ext._OF_PLUGINS}
    classes = {name for name, owners in registry.registered("class").items() if owners.keys() & OURS}
    assert not classes - names, "add these to pml_ext/__init__.pyi"
    assert names | {"__version__"} == set(dir(pml_ext)) - (set(registry.registered("class")) - classes)
    assert not [node for node in STUB.body if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"]


@pytest.mark.usefixtures("isolated_registry")
def test_a_star_has_what_can_be_imported(install_plugin, monkeypatch):
    hooks = """
    from pml_ext.plugin import Component, hookimpl

    @hookimpl
    def pml_ext_components():
        return [Component("collections:CounterLoss", "absent", summary="None such")]
    """
    install_plugin("mine", hooks)
    monkeypatch.setenv("PML_EXT_BLOCK", "cbml")
    names = {}
    exec("from pml_ext import *", names)
    assert {"PDDMLoss", "Relation", "RetrievalAccuracyCalculator", "load_run", "register"} <= names.keys()
    assert names["PDDMLoss"] is pml_ext.PDDMLoss
    assert not {"CBMLLoss", "CounterLoss", "cli", "data", "testing", "samplers"} & names.keys()
    assert "CBMLLoss" not in dir(pml_ext)


def test_every_name_is_in_some_example():
    words = set()
    for pattern in ("examples/**/*.py", "examples/**/*.ipynb", "docs/**/*.md", "plugins/**/*.md", "README.md"):
        for file in ROOT.glob(pattern):
            words.update(re.findall(r"\w+", file.read_text("utf-8")))
    assert {alias.name for _, alias in IMPORTED} - words <= BASES_OF_ERRORS


SOURCE = """
from pml_ext.lazy import lazily

__getattr__, __dir__ = lazily(__name__, "train", "the names of lazy_door")
"""
LAZY_STUB = "from .inner import VALUE\nfrom . import inner\nfrom .broken import Late\n"


@pytest.fixture(params=["lazy_door", "lazy_door.door"])
def door(install_plugin, request):
    """A package, or a module in it, whose names are imported on first use."""
    package = install_plugin("lazy_door", "")
    file = package / ("__init__.py" if request.param == "lazy_door" else "door.py")
    file.write_text(SOURCE)
    file.with_suffix(".pyi").write_text(LAZY_STUB)
    (package / "inner.py").write_text("VALUE = object()\n")
    (package / "broken.py").write_text("import no_such_package\n")
    __import__(request.param)
    yield sys.modules[request.param]
    for name in ("lazy_door.door", "lazy_door.inner", "lazy_door.broken"):
        sys.modules.pop(name, None)


def test_a_name_is_imported_on_first_use(door):
    assert "lazy_door.inner" not in sys.modules
    value = door.VALUE
    assert value is sys.modules["lazy_door.inner"].VALUE
    assert vars(door)["VALUE"] is value
    assert door.inner is sys.modules["lazy_door.inner"]
    assert door is sys.modules["lazy_door"] or "VALUE" not in vars(sys.modules["lazy_door"])


def test_an_unknown_name_has_the_nearest(door):
    with pytest.raises(AttributeError, match=f"module '{door.__name__}': no name 'VALEU'; nearest: VALUE"):
        door.VALEU  # noqa: B018


def test_a_missing_package_is_named_with_its_extra(door):
    text = "the names of lazy_door needs the package 'no_such_package', .* \"pml-ext.train.\""
    with pytest.raises(MissingExtraError, match=text):
        door.Late  # noqa: B018
    with pytest.raises(MissingExtraError, match="a page needs the package 'no_such_package'"):
        lazy.require_packages(["json", "no_such_package"], "browse", "a page")
    lazy.require_packages(["json"], "browse", "a page")


def test_every_listed_name_of_plugin_exists():
    assert {"RunView", "figures", "kmeans", "pair_masks"} <= set(dir(plugin))
    assert all(getattr(plugin, name) is not None for name in dir(plugin))
    with pytest.raises(AttributeError, match="no name 'pair_mask'; nearest: pair_masks"):
        plugin.pair_mask  # noqa: B018


def imports(file: Path) -> set[str]:
    """The modules of pml_ext and PML that a file imports, strings of ``import_module`` left out."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module or "")
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return {name for name in found if name.partition(".")[0] in ("pml_ext", "pml_ext_train", "pytorch_metric_learning")}


def test_the_scaffold_and_the_example_import_nothing_else(tmp_path):
    new_plugin("my-loss", tmp_path / "new")
    assert set.union(*map(imports, list((tmp_path / "new" / "src").rglob("*.py")))) == {"pml_ext.plugin"}
    for file in (ROOT / "examples" / "third_party_plugin" / "src").rglob("*.py"):
        allowed = {"pml_ext", "pml_ext_train.cli"} if file.name == "commands.py" else {"pml_ext.plugin"}
        assert imports(file) <= allowed, file


def test_a_run_is_what_components_are_promised(tmp_path):
    recipe = load_recipes("cbml/digits")["cbml/digits"]
    run: RunView = Run(recipe, "cbml/digits", tmp_path, seed=3)
    assert isinstance(run, RunView)
    assert (run.folder, run.seed, run.device, run.epoch) == (tmp_path, 3, torch.device("cpu"), 0)
    assert (run.rank, run.processes) == (0, 1)
    embeddings = run.embeddings("test")
    labels = run.labels("test")
    assert embeddings.shape == (len(run.splits["test"]), recipe.model.embedding_size)
    assert labels.tolist() == run.splits["test"].labels.tolist()
    x, y = next(iter(run.batches("test", layer="trunk")))
    assert x.dtype == embeddings.dtype == torch.float32
    assert torch.equal(y, labels[: len(y)])


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
