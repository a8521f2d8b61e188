"""Whole runs on digits: what is written, repeated, and called, and what ends them."""

import json
import math
from collections import Counter
from unittest.mock import patch

import pytest
import torch
from matplotlib.figure import Figure
from pytorch_metric_learning import losses

import pml_ext
from pml_ext.errors import TrainingError
from pml_ext_train.data import LabeledImages
from pml_ext_train.launch.launch import train
from pml_ext_train.records import read_metrics
from pml_ext_train.training import Run, Silence, checkpoint

from ....overrides import typed
from .whole_runs import QUICK, quick

METRICS = {*(f"recall_at_{k}" for k in (1, 2, 4, 8)), "precision_at_1", "r_precision", "map_at_r"}
METRICS |= {"nmi", "nmi_majority", "f1", "purity"}


def test_a_run_leaves_known_files(finished):
    out, metrics = finished
    written = json.loads((out / "metrics.json").read_text())
    assert {k: v for k, v in metrics.items() if k not in ("folder", "verdict")} == read_metrics(out / "metrics.json")
    assert written["recipe"] == "cbml/digits"
    assert (written["seed"], written["device"], written["best_epoch"]) == (0, "cpu", 3)
    assert {"torch", "pytorch-metric-learning", "pml-ext", "python"} <= set(written["versions"])
    assert written["seconds"]["train"] > 0 < written["seconds"]["test"]
    for phase in ("raw", "before", "after"):
        assert set(written[phase]) == METRICS
        assert all(isinstance(value, float) and 0 <= value <= 1 for value in written[phase].values())
    assert written["after"] != written["before"]
    report = (out / "report.html").read_text()
    assert report.count("data:image/png;base64,") >= 5
    assert "http://" not in report.replace("http://www.w3.org", "")
    assert list((out / "tensorboard").iterdir())
    states = {path.name for path in (out / "checkpoints").iterdir()}
    assert states == {"before.pt", "last.pt", "model.pt", "previous.pt"}
    assert list(out.rglob(".*")) == [out / ".lock"]


@pytest.mark.usefixtures("without_report")
def test_a_written_recipe_gives_the_run_again(finished, tmp_path):
    """Without the tests that may be left out, which change no number."""
    bare = ("evaluation.baselines=false", "evaluation.training_images=0")
    again, other = (
        train(str(finished[0] / "recipe.toml"), tmp_path / f"{seed}", seed, overrides=typed(bare), device="cpu")[0]
        for seed in (0, 1)
    )
    assert again["after"] == finished[1]["after"] != other["after"]


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize(("trains", "classes"), [("true", 10), ("false", 6)])
def test_the_epoch_is_chosen_on_held_out_classes(tmp_path, trains, classes):
    chosen = ("evaluation.validation=0.4", "evaluation.held_out=last", "evaluation.select=purity")
    trains = f"evaluation.validation_trains={trains}"
    metrics = quick(tmp_path / "out", *chosen, trains, "sampler.batch_size=48", "evaluation.baselines=false")
    assert (metrics["images"]["train"]["classes"], metrics["images"]["validation"]["classes"]) == (classes, 4)
    assert 1 <= metrics["best_epoch"] <= 3
    state = torch.load(tmp_path / "out" / "checkpoints" / "best.pt", weights_only=True)
    assert state["epoch"] == metrics["best_epoch"]


class Watcher(losses.ContrastiveLoss):
    """A loss that takes part in its run."""

    seen: list = []  # noqa: RUF012

    def prepare(self, run):
        self.register_buffer("base", run.embeddings("train", layer="trunk").mean(0))
        self.seen.append(("prepare", run.epoch))

    def start_epoch(self, run):
        self.seen.append(("start", run.epoch))

    def figures(self, run):
        figure = Figure()
        figure.subplots().plot(self.base.numpy())
        return {"The watcher's own figure": figure}


@pytest.mark.usefixtures("isolated_registry")
def test_a_component_takes_part_in_its_run(tmp_path):
    pml_ext.register(Watcher, name="watcher")
    Watcher.seen.clear()
    quick(tmp_path / "out", "loss.name=watcher")
    assert Watcher.seen == [("prepare", 0), ("start", 1), ("start", 2), ("start", 3)]
    report = (tmp_path / "out" / "report.html").read_text()
    assert "The watcher&#39;s own figure" in report or "The watcher's own figure" in report


@pytest.mark.usefixtures("without_report")
def test_operators_are_deterministic_where_a_run_says_so(tmp_path):
    seen = []
    listener = Silence()
    listener.iteration = lambda *_: seen.append(torch.are_deterministic_algorithms_enabled())
    quick(tmp_path / "run", "engine.deterministic=true", listener=listener)
    assert set(seen) == {True}
    assert not torch.are_deterministic_algorithms_enabled()


def test_each_image_is_embedded_once_for_each_network(tmp_path, monkeypatch):
    """In a run of E epochs: training images E + 1 times, test images twice, held-out ones once per test on them.

    The report shows 24 training images, which are read for it.
    """
    passed = Counter()
    runs = []

    class Counted(Run):
        def __init__(self, *arguments, **settings):
            super().__init__(*arguments, **settings)
            runs.append(self)
            self.embedder.register_forward_hook(
                lambda module, _, output: passed.update({"training" if module.training else "testing": len(output)})
            )

    monkeypatch.setattr("pml_ext_train.launch.launch.Run", Counted)
    overrides = [o for o in QUICK if "sampler" not in o] + ["sampler={name = 'shuffle', batch_size = 64}"]
    overrides += ["evaluation.validation=0.2", "evaluation.select=map_at_r"]
    with patch.object(LabeledImages, "__getitem__", autospec=True, side_effect=LabeledImages.__getitem__) as read:
        train("cbml/digits", tmp_path / "out", overrides=typed(overrides), device="cpu")
    (run,) = runs
    sizes = {name: len(split) for name, split in run.splits.items()}
    assert passed["training"] == 3 * run.stages[0].iterations * run.stages[0].batch_size
    assert passed["testing"] == sizes["train"] + 2 * sizes["test"] + 3 * sizes["validation"]
    assert read.call_count == passed["training"] + passed["testing"] + 24


class Exploding(losses.ContrastiveLoss):
    """Becomes NaN in its sixth call, or a batch norm's statistics do."""

    what = "loss"

    def start_epoch(self, run):
        if self.what == "statistics" and run.epoch == 2:
            run.trunk[1].running_mean.fill_(math.inf)

    def forward(self, *arguments):
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(*arguments) * (math.nan if self.calls == 6 and self.what == "loss" else 1)


@pytest.mark.usefixtures("isolated_registry")
@pytest.mark.parametrize(
    ("what", "wanted"),
    [
        ("loss", r"the loss became nan in iteration 6 \(epoch 2\)"),
        ("statistics", r"the trunk\.1\.running_mean became inf in epoch 2"),
    ],
)
def test_nan_stops_the_run_and_keeps_the_checkpoint(tmp_path, monkeypatch, what, wanted):
    monkeypatch.setattr(Exploding, "what", what)
    pml_ext.register(Exploding, name="exploding")
    with pytest.raises(TrainingError, match=f"{wanted}; the checkpoint of epoch 1 is kept"):
        quick(tmp_path / "out", "loss.name=exploding", "evaluation.baselines=false")
    state = checkpoint.load(tmp_path / "out" / "checkpoints" / "last.pt")
    assert state["epoch"] == 1
    assert all(value.isfinite().all() for value in state["parts"]["embedder"].values())


def test_weights_that_are_not_finite_are_no_checkpoint(tmp_path):
    overrides = ("optimizer={name='sgd', lr=3e38, weight_decay=1e3}", "sampler.iterations=1")
    with pytest.raises(TrainingError, match=r"the weight trunk\.0\.weight became inf in epoch 1; there is no"):
        quick(tmp_path / "out", *overrides, recipe="triplets/digits")
    assert [path.name for path in (tmp_path / "out" / "checkpoints").iterdir()] == ["before.pt"]
