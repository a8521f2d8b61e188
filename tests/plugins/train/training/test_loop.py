"""Whole runs on digits: what is written, repeated, and called."""

import json
import math
import tomllib
from collections import Counter

import pytest
import torch
from matplotlib.figure import Figure
from pytorch_metric_learning import losses
from pytorch_metric_learning.distances import LpDistance

import pml_ext
from pml_ext_train.data import LabeledImages
from pml_ext_train.launch.launch import train
from pml_ext_train.records.run_files import read_metrics
from pml_ext_train.records.series import loss_series
from pml_ext_train.training.listener import Silence
from pml_ext_train.training.run import Run

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
    for wanted in ("positive", "negative", "variance"):
        assert wanted in report
    recipe = tomllib.loads((out / "recipe.toml").read_text())
    assert recipe["run"].items() >= {"recipe": "cbml/digits", "seed": 0}.items()
    assert recipe["schedule"]["epochs"] == 3
    assert list((out / "tensorboard").iterdir())
    states = {path.name for path in (out / "checkpoints").iterdir()}
    assert states == {"before.pt", "last.pt", "model.pt", "previous.pt"}
    assert list(out.rglob(".*")) == [out / ".lock"]
    series = loss_series(out, ["positive_loss", "negative_loss", "variance_loss"])
    assert list(series) == ["loss", "positive", "negative", "variance"]
    for iterations, values in series.values():
        assert iterations == list(range(1, 13))
        assert all(math.isfinite(value) for value in values)
    total = [sum(series[name][1][i] for name in ("positive", "negative", "variance")) for i in range(12)]
    assert total == pytest.approx(series["loss"][1], rel=1e-4)


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

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.metric = LpDistance(power=2)

    def prepare(self, run):
        features = run.embeddings("train", layer="trunk")
        labels = run.labels("train")
        assert features.ndim == 2
        assert len(features) == len(labels)
        assert run.embeddings("test").shape[1] == 64
        self.register_buffer("base", features.mean(0))
        self.seen.append(("prepare", run.epoch))

    def start_epoch(self, run):
        assert run.folder.is_dir()
        assert run.device.type == "cpu"
        self.seen.append(("start", run.epoch))

    def figures(self, run):
        figure = Figure()
        figure.subplots().plot(self.base.numpy())
        return {"The watcher's own figure": figure}


@pytest.mark.usefixtures("isolated_registry")
def test_a_component_takes_part_in_its_run(tmp_path):
    pml_ext.register(Watcher, name="watcher")
    Watcher.seen.clear()
    metrics = quick(tmp_path / "out", "loss.name=watcher")
    assert Watcher.seen == [("prepare", 0), ("start", 1), ("start", 2), ("start", 3)]
    report = (tmp_path / "out" / "report.html").read_text()
    assert "The watcher&#39;s own figure" in report or "The watcher's own figure" in report
    # squared Euclidean distance of normalized embeddings ranks as the cosine does
    assert metrics["learned_metric"]["recall_at_1"] == pytest.approx(metrics["after"]["recall_at_1"], abs=0.01)


@pytest.mark.usefixtures("without_report")
def test_operators_are_deterministic_where_a_run_says_so(tmp_path):
    seen = set()

    class Looks(Silence):
        def iteration(self, *_):
            seen.add(torch.are_deterministic_algorithms_enabled())

    quick(tmp_path / "run", "engine.deterministic=true", listener=Looks())
    assert seen == {True}
    assert not torch.are_deterministic_algorithms_enabled()


def test_each_image_is_embedded_once_for_each_network(tmp_path, monkeypatch):
    """In a run of E epochs: training images E + 1 times, test images twice, held-out ones once per test on them.

    The report shows 24 training images, which are read for it.
    """
    reads = Counter()
    passed = Counter()
    read = LabeledImages.__getitem__

    def counted(images, index):
        reads[id(images.labels), images.transform is not None, int(index)] += 1
        return read(images, index)

    class Counted(Run):
        def __init__(self, *arguments, **settings):
            super().__init__(*arguments, **settings)
            mine["run"] = self
            self.embedder.register_forward_hook(
                lambda module, _, output: passed.update({"training" if module.training else "testing": len(output)})
            )

    mine = {}
    monkeypatch.setattr(LabeledImages, "__getitem__", counted)
    monkeypatch.setattr("pml_ext_train.launch.launch.Run", Counted)
    epochs = 3
    overrides = [o for o in QUICK if "sampler" not in o] + ["sampler={name = 'shuffle', batch_size = 64}"]
    overrides += ["evaluation.validation=0.2", "evaluation.select=map_at_r"]
    train("cbml/digits", tmp_path / "out", overrides=typed(overrides), device="cpu")
    run = mine["run"]
    sizes = {name: len(split) for name, split in run.splits.items()}
    trained = run.stages[0].iterations * run.stages[0].batch_size
    assert passed["training"] == epochs * trained
    assert passed["testing"] == sizes["train"] + 2 * sizes["test"] + epochs * sizes["validation"]
    for name, split in run.splits.items():
        counts = {count for (labels, _, _), count in reads.items() if labels == id(split.labels)}
        if name == "train":
            assert max(counts) == epochs + 2
        else:
            assert counts == {2 if name == "test" else epochs}
    assert sum(reads.values()) == passed["training"] + passed["testing"] + 24
