"""What works if a package of the wheel is missing: the layer without training, and each tool without the others."""

import subprocess
import sys

import pytest

TOOLS = ("browse", "compare", "fit", "parts", "search", "stores")
START = """
import sys
import warnings
sys.modules["pml_ext_{missing}"] = None
from pml_ext import registry
from pml_ext.errors import MissingExtraError, PluginWarning
warnings.simplefilter("error", PluginWarning)
"""
SCRIPT = """
import torch
from pytorch_metric_learning import trainers
import pml_ext

labels = torch.arange(8) // 2
inputs = torch.randn(8, 4)
context = {"embedding_size": 4, "num_classes": 4, "class_labels": [0, 1, 2, 3]}
tried = set()
for component in registry.components("loss"):
    if component.plugin not in ("angular", "cbml", "density", "pddm", "triplets"):
        continue
    loss = registry.build(component.qualified_name, "loss", context)
    embeddings = inputs.clone().requires_grad_()
    loss(embeddings, labels).backward()
    assert embeddings.grad.isfinite().all(), component
    trainers.MetricLossOnly(
        models={"trunk": torch.nn.Linear(4, 4)},
        optimizers={},
        batch_size=8,
        loss_funcs={"metric_loss": loss},
        dataset=torch.utils.data.TensorDataset(inputs, labels),
        dataloader_num_workers=0,
        iterations_per_epoch=1,
    ).train(num_epochs=1)
    tried.add(component.plugin)
assert len(tried) == 5
accuracy = pml_ext.RetrievalAccuracyCalculator(include=("recall_at_1",)).get_accuracy(inputs, labels)
assert 0 <= accuracy["recall_at_1"] <= 1

names = {}
exec("from pml_ext import *", names)
assert {"CBMLLoss", "DensityRegularizer", "WithinClassWhitening"} <= names.keys()
assert "train" not in names
for name in ("train", "load_run"):
    try:
        getattr(pml_ext, name)
    except MissingExtraError as error:
        assert f'pml_ext.{name} needs the package' in str(error)
    else:
        raise AssertionError(name)
assert [record.name for record in registry.plugins() if record.status != "ok"] == ["pml"]
"""
LISTING = """
from pml_ext.__main__ import main

left_out = [record for record in registry.plugins() if record.status != "ok"]
assert [(record.name, record.status) for record in left_out] == [("{missing}", "not installed")], left_out
sys.argv = ["pml-ext", "list"]
try:
    main()
except SystemExit as ended:
    assert not ended.code
assert "torch" not in sys.modules
for name, (plugin, command) in registry.commands().items():
    command.load(name, plugin)
"""


def run(program: str, missing: str) -> subprocess.CompletedProcess[str]:
    """A program in a process in which a plugin's package cannot be imported."""
    text = START + program
    for_this = text.replace("{missing}", missing)
    return subprocess.run([sys.executable, "-c", for_this], capture_output=True, text=True, check=False)


def test_scripts_with_pml_need_no_training():
    done = run(SCRIPT, "train")
    assert done.returncode == 0, done.stderr


def test_the_command_says_what_to_install():
    done = run("from pml_ext.__main__ import main\nmain()", "train")
    assert done.returncode == 2
    assert done.stderr.endswith("Run: pip install --force-reinstall 'pml-ext[train]'\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("tool", TOOLS)
def test_tools_work_without_any_other(tool):
    done = run(LISTING, tool)
    assert done.returncode == 0, done.stderr
    assert "cbml" in done.stdout
