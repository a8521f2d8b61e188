"""The names of ``import pml_ext``, at run time and to type checkers; ``typed_face.py`` has their types."""

import ast
import importlib
import re
from pathlib import Path

import pytest

import pml_ext
from pml_ext import registry

STUB = ast.parse(Path(pml_ext.__file__).with_suffix(".pyi").read_text())
IMPORTED = [(node, alias) for node in STUB.body if isinstance(node, ast.ImportFrom) for alias in node.names]
ROOT = Path(__file__).parents[1]
BASES_OF_ERRORS = {"PmlExtError", "ConfigError", "MissingExtraError"}  # to be caught by who calls, without an example
OURS = {"pml", "angular", "cbml", "density", "pddm", "triplets"}


def test_the_stub_lists_every_public_name():
    for node, alias in IMPORTED:
        assert alias.name == alias.asname, "a stub exports what it imports as itself"
        module = f"pml_ext.{node.module}" if node.level and node.module else node.module or "pml_ext"
        defined = getattr(importlib.import_module(module), alias.name)
        assert getattr(pml_ext, alias.name) is defined, alias.name
    names = {alias.name for _, alias in IMPORTED}
    assert names == {*pml_ext._NAMES, *pml_ext._OF_PLUGINS}
    classes = {name for name, owners in registry.registered("class").items() if owners.keys() & OURS}
    assert not classes - names, "add these to pml_ext/__init__.pyi"
    assert names | {"__version__"} == set(dir(pml_ext)) - (set(registry.registered("class")) - classes)
    assert not [node for node in STUB.body if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"]


def test_a_star_imports_classes_and_functions():
    names = {}
    exec("from pml_ext import *", names)
    assert {"CBMLLoss", "Relation", "RetrievalAccuracyCalculator", "load_run", "register"} <= names.keys()
    assert names["CBMLLoss"] is pml_ext.CBMLLoss
    assert not {"cli", "data", "testing", "samplers"} & names.keys()


@pytest.mark.usefixtures("isolated_registry")
def test_a_star_leaves_out_what_cannot_be_imported(install_plugin, monkeypatch):
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
    assert {"PDDMLoss", "register"} <= names.keys()
    assert not {"CBMLLoss", "CounterLoss"} & names.keys()
    assert "CBMLLoss" not in dir(pml_ext)


def test_every_name_is_in_some_example():
    words = set()
    for pattern in ("examples/**/*.py", "examples/**/*.ipynb", "docs/**/*.md", "plugins/**/*.md", "README.md"):
        for file in ROOT.glob(pattern):
            words.update(re.findall(r"\w+", file.read_text("utf-8")))
    assert {alias.name for _, alias in IMPORTED} - words <= BASES_OF_ERRORS
