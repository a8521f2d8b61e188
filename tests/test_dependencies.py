"""Every import is declared, and a missing extra is named."""

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
OURS = {"pml_ext", *PROJECT["entry-points"]["pml_ext"].values()}
FILES = sorted(file for folder in (ROOT / "pml_ext", ROOT / "plugins") for file in folder.rglob("*.py"))


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def names(requirements):
    return {normal(Requirement(text).name) for text in requirements}


CORE = names(PROJECT["dependencies"])
EXTRAS = names(text for extra in PROJECT["optional-dependencies"].values() for text in extra)
REQUIRED = {normal(each.name): each.requires or [] for each in importlib.metadata.distributions()}
DISTRIBUTIONS = {top: set(map(normal, found)) for top, found in importlib.metadata.packages_distributions().items()}


def foreign(file):
    """The packages that a file imports anywhere, ours and Python's own left out."""
    nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
    modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 0]
    return {name.partition(".")[0] for name in modules} - OURS - sys.stdlib_module_names


def test_every_imported_package_is_declared_somewhere():
    found = {top: str(file) for file in FILES for top in foreign(file)}
    assert {"torch", "numpy", "sklearn", "PIL", "faiss"} <= set(found)
    by = {top: {normal(top), f"{normal(top)}-skinny"} for top in found} | DISTRIBUTIONS  # the former: not installed
    assert {top: file for top, file in found.items() if not by[top] & (CORE | EXTRAS)} == {}


BARE = """
import json, pkgutil, sys

sys.modules.update(dict.fromkeys(json.loads(sys.argv[1])))  # importing one raises ModuleNotFoundError
import pml_ext

def text(statement):
    try:
        exec(statement, {})
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""

import pml_ext_train

modules = []
for package in (pml_ext, pml_ext_train):
    found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.", onerror=lambda name: None)
    modules += [module.name for module in found]
modules = [name for name in modules if not name.startswith("pml_ext_train.cli.") and name != "pml_ext.__main__"]
answers = {name: text(f"from pml_ext import {name}") for name in dir(pml_ext)}
print(json.dumps({**answers, **{name: text(f"import {name}") for name in modules}}))
"""


@pytest.fixture(scope="module")
def bare():
    """``{name or module: the error}`` of a process that cannot import what the core does not bring with it."""
    brought = set()
    new = CORE
    while new:
        brought |= new
        lines = (line for name in new for line in REQUIRED.get(name, []))  # [] for a package of another platform
        new = names(line for line in lines if "extra ==" not in line) - brought
    ours = {normal(PROJECT["name"])}  # a distribution where it is a wheel; some extras name it
    blocked = [top for top, found in DISTRIBUTIONS.items() if found & EXTRAS and not found & (brought | ours)]
    assert {"torchvision", "matplotlib", "pydantic", "typer", "PIL"} <= set(blocked)
    arguments = [sys.executable, "-c", BARE, json.dumps(blocked)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert "is broken" not in done.stderr  # a plugin of ours
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.nightly
def test_losses_and_wrappers_need_no_extra(bare):
    needed = {
        *("CBMLLoss", "PDDMLoss", "BatchAllTripletLoss", "DensityRegularizer", "HardNegativePoolSampler"),
        *("CrossBatchMemory", "DistributedLoss", "RegularizedLoss", "registry", "plugin", "testing"),
    }
    assert {name: bare[name] for name in needed} == dict.fromkeys(needed, "")


def test_a_missing_extra_is_named(bare):
    text = r"MissingExtraError: .* needs the package '[\w.]+', which is not installed\. Run: pip install "
    for name in ("load_run", "pml_ext_train.training", "pml_ext_train.report"):
        assert re.fullmatch(text + r'"pml-ext\[train\]"', bare[name]), f"{name}: {bare[name]}"
    assert {name: text for name, text in bare.items() if text and not text.startswith("MissingExtraError: ")} == {}
