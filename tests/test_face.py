"""What ``import pml_ext`` gives, at run time and to type checkers."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

from pytorch_metric_learning import losses

import pml_ext
from pml_ext import registry, stub

STUB = ast.parse(Path(pml_ext.__file__).with_suffix(".pyi").read_text())


def test_importing_the_package_imports_no_torch():
    code = "import sys, pml_ext; sys.exit(any(name in sys.modules for name in ('torch', 'pytorch_metric_learning')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_stub_is_what_its_command_writes():
    assert stub.PATH.read_text("utf-8") == stub.text(), "type: python -m pml_ext.stub"


def test_the_stub_names_what_there_is():
    imported = [
        (node, name)
        for node in STUB.body
        if isinstance(node, ast.ImportFrom) and node.module != "typing"
        for name in node.names
    ]
    for node, name in imported:
        assert name.name == name.asname, "a stub exports what it imports as itself"
        module = f"pml_ext.{node.module}" if node.level and node.module else node.module or "pml_ext"
        assert getattr(importlib.import_module(module), name.name) is getattr(pml_ext, name.name), name.name
    ours = {record.name for record in registry.plugins() if record.distribution == "pml-ext"}
    assert len(ours) == 5, "the tests want the plugins of this distribution"
    classes = {name for name, owners in registry.class_names().items() if {c.plugin for c in owners} & {*ours, "pml"}}
    assert classes < {name.name for _, name in imported}
    assert {name.name for _, name in imported} | {"__version__"} == set(dir(pml_ext)) - (
        set(registry.class_names()) - classes
    )


def test_a_name_that_has_moved_is_found_where_it_was():
    for name in (
        "Component",
        "Paper",
        "PluginRecord",
        "PluginWarning",
        "KINDS",
        "CAPABILITIES",
        "capabilities",
        "kind_of",
        "settings_of",
        "required",
        "unknown",
        "build",
        "get",
    ):
        assert hasattr(registry, name), name
    assert registry.Component is pml_ext.Component is pml_ext.components.Component


def star() -> set[str]:
    names: dict[str, object] = {}
    exec("from pml_ext import *", names)
    return names.keys() - {"__builtins__"}


def test_star_import_gives_the_losses_and_all_public_names():
    assert star() == {*pml_ext._PUBLIC, *registry.class_names()}
    assert {"CBMLLoss", "HardPairMiner", "SelfSupervisedLoss", "load_run"} <= star()


def test_star_import_leaves_out_what_cannot_be_had(monkeypatch):
    monkeypatch.setitem(sys.modules, "pml_ext.retrieval", None)  # as where its extra is not installed
    try:
        for name in ("mine", "of-somebody-else"):
            registry.register(type("TwiceLoss", (losses.ContrastiveLoss,), {}), name=name)
        assert star() == {*pml_ext._PUBLIC, *registry.class_names()} - {"load_run", "TwiceLoss"}
    finally:
        registry.unregister_local()
