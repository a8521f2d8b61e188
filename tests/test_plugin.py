"""The module ``pml_ext.plugin``: its names, its page, and the view of a run."""

import ast
from pathlib import Path

import pytest
import torch

from pml_ext import plugin
from pml_ext.plugin import RunView
from pml_ext_train.cli.scaffold import new_plugin
from pml_ext_train.recipe import load_recipes
from pml_ext_train.training.run import Run

ROOT = Path(__file__).parents[1]


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
    scaffold = list((tmp_path / "new" / "src").rglob("*.py"))
    assert set.union(*map(imports, scaffold)) == {"pml_ext.plugin"}
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
