"""Whole runs on digits: what is written, resuming, several seeds, stages, components that take part, and failures."""

import json
import math
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from pytorch_metric_learning import losses
from pytorch_metric_learning.distances import LpDistance

import pml_ext
from pml_ext import registry
from pml_ext.errors import ConfigError, TrainingError
from pml_ext.experiment import plan, summarize, train

QUICK = ("schedule.epochs=3", "schedule.milestones=[2]", "sampler.iterations=4", "model.trunk.width=16")
METRICS = {
    "recall_at_1", "recall_at_2", "recall_at_4", "recall_at_8", "precision_at_1", "r_precision", "map_at_r", "nmi",
    "f1", "purity",
}  # fmt: skip


def quick(out: Path, *overrides: str, recipe: str = "cbml/digits", **settings):
    return train(recipe, out=out, overrides=(*QUICK, *overrides), device="cpu", **settings)[0]


def same(one: dict, other: dict) -> bool:
    return all(one[phase] == other[phase] for phase in ("raw", "before", "after"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "digits"
    return out, quick(out)


def test_what_a_run_leaves(finished):
    out, metrics = finished
    written = json.loads((out / "metrics.json").read_text())
    assert {k: v for k, v in metrics.items() if k != "folder"} == written
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
    assert recipe["run"] == {"recipe": "cbml/digits", "seed": 0}
    assert recipe["schedule"]["epochs"] == 3
    assert (out / "checkpoints" / "last.pt").exists()
    assert list((out / "tensorboard").iterdir())
    assert (out / "records" / "logs.db").exists()
    assert not list(out.rglob("*.tmp"))


def test_the_terms_of_the_loss_are_recorded(finished):
    from pml_ext.experiment.records import loss_series

    series = loss_series(finished[0], ["positive_loss", "negative_loss", "variance_loss"])
    assert list(series) == ["loss", "positive", "negative", "variance"]
    for iterations, values in series.values():
        assert iterations == list(range(1, 13))
        assert all(math.isfinite(value) for value in values)
    total = [sum(series[name][1][i] for name in ("positive", "negative", "variance")) for i in range(12)]
    assert total == pytest.approx(series["loss"][1], rel=1e-4)


@pytest.mark.usefixtures("without_report")
def test_the_same_seed_gives_the_same_run_and_another_seed_another(finished, tmp_path):
    assert same(quick(tmp_path / "again"), finished[1])
    assert not same(quick(tmp_path / "other", seed=1), finished[1])


@pytest.mark.usefixtures("without_report")
def test_a_written_recipe_gives_the_run_again(finished, tmp_path):
    again = train(str(finished[0] / "recipe.toml"), out=tmp_path / "out", device="cpu")[0]
    assert same(again, finished[1])
    assert (tmp_path / "out" / "checkpoints" / "model.pt").exists()


def test_an_existing_folder_is_refused_and_left_alone(finished):
    out, _ = finished
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    with pytest.raises(ConfigError, match="exists; add --resume"):
        quick(out)
    with pytest.raises(ConfigError, match=r"loss.mvc_weight is 1.0 in the run to resume, but 0.5 now"):
        quick(out, "loss.mvc_weight=0.5", resume=True)
    with pytest.raises(ConfigError, match="seed 0, not 1; type --seed 0"):
        quick(out, seed=1, resume=True)
    quick(out, resume=True)  # finished: only read
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}


@pytest.mark.parametrize("recipe", ["cbml/digits", "pml/proxy-anchor/digits"])
@pytest.mark.usefixtures("without_report")
def test_a_run_killed_between_epochs_ends_as_if_it_had_not_been(tmp_path, recipe):
    overrides = ["schedule.epochs=8", "schedule.milestones=[6]", "sampler.iterations=6", "model.trunk.width=16"]
    command = [sys.executable, "-m", "pml_ext", "train", recipe, "--device", "cpu", "--json"]
    for override in overrides:
        command += ["--set", override]
    killed = tmp_path / "killed"
    process = subprocess.Popen([*command, "--out", str(killed)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    checkpoint = killed / "checkpoints" / "last.pt"
    deadline = time.monotonic() + 120
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (killed / "metrics.json").exists()
    assert 1 <= torch.load(checkpoint, weights_only=False)["epoch"] < 8
    subprocess.run([*command, "--out", str(killed), "--resume"], check=True, stdout=subprocess.DEVNULL)
    whole = train(recipe, out=tmp_path / "whole", overrides=overrides, device="cpu")[0]
    resumed = json.loads((killed / "metrics.json").read_text())
    assert same(resumed, whole)
    from pml_ext.experiment.records import loss_series

    assert loss_series(killed, []) == loss_series(tmp_path / "whole", [])


@pytest.mark.usefixtures("without_report")
def test_several_seeds_and_variants(tmp_path):
    out = tmp_path / "seeds"
    results = train("cbml/digits", out=out, seeds=2, overrides=QUICK, device="cpu")
    assert [result["seed"] for result in results] == [0, 1]
    assert {path.name for path in out.iterdir()} == {"seed-0", "seed-1", "summary.json"}
    summary = json.loads((out / "summary.json").read_text())
    assert summary == summarize(results)
    values = [result["after"]["map_at_r"] for result in results]
    entry = summary["cbml/digits"]["after"]["map_at_r"]
    assert entry["mean"] == pytest.approx(sum(values) / 2)
    assert entry["std"] == pytest.approx(abs(values[0] - values[1]) / math.sqrt(2))
    names = [each.folder.name for each in plan("cbml/omniglot-small-mvc-weight", out=tmp_path / "x", seeds=2)]
    assert names[:3] == ["0.0-seed-0", "0.0-seed-1", "0.1-seed-0"]


@pytest.mark.usefixtures("without_report")
def test_the_epoch_is_chosen_on_held_out_training_classes(tmp_path):
    metrics = quick(
        tmp_path / "out", "evaluation.validation=0.3", "evaluation.select=map_at_r", "sampler.batch_size=56"
    )
    assert 1 <= metrics["best_epoch"] <= 3
    state = torch.load(tmp_path / "out" / "checkpoints" / "best.pt", weights_only=True)
    assert state["epoch"] == metrics["best_epoch"]


@pytest.mark.usefixtures("without_report")
def test_stages_frozen_batch_norm_and_a_faster_head(tmp_path):
    metrics = quick(
        tmp_path / "out", "stages=[{epochs = 1, loss = {name = 'pml/triplet-margin', margin = 0.2}, "
        "sampler = {name = 'shuffle', batch_size = 64}}]",
        "model.freeze_batch_norm=true", "optimizer.head_lr_factor=10", "loss.miner=pml/batch-hard",
    )  # fmt: skip
    assert metrics["after"]["recall_at_1"] > 0.5
    from pml_ext.experiment.records import loss_series

    assert loss_series(tmp_path / "out", [])["loss"][0] == list(range(1, 14 + 4 + 4 + 1))


@pytest.mark.usefixtures("without_report")
def test_regularizers_in_a_run(tmp_path):
    metrics = quick(tmp_path / "out", "loss.regularizer={name='metric-variance', weight=0.5}", "loss.mvc_weight=0.0")
    assert metrics["after"]["map_at_r"] > 0


class Watcher(losses.ContrastiveLoss):
    """A loss that takes part in its run."""

    seen: list = []  # noqa: RUF012

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.metric = LpDistance(power=2)

    def prepare(self, run):
        features, labels = run.embeddings("train", layer="trunk"), run.labels("train")
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


def test_a_component_takes_part_in_its_run(tmp_path):
    pml_ext.register(Watcher, name="watcher")
    Watcher.seen.clear()
    try:
        metrics = quick(tmp_path / "out", "loss.name=watcher")
    finally:
        registry.unregister_local()
    assert Watcher.seen == [("prepare", 0), ("start", 1), ("start", 2), ("start", 3)]
    report = (tmp_path / "out" / "report.html").read_text()
    assert "The watcher&#39;s own figure" in report or "The watcher's own figure" in report
    # squared Euclidean distance of normalised embeddings ranks as the cosine does
    assert metrics["learned_metric"]["recall_at_1"] == pytest.approx(metrics["after"]["recall_at_1"], abs=0.01)


class Exploding(losses.ContrastiveLoss):
    """Becomes NaN in its sixth call."""

    def forward(self, *arguments):
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(*arguments) * (math.nan if self.calls == 6 else 1)


def test_nan_stops_the_run_and_keeps_the_checkpoint(tmp_path):
    pml_ext.register(Exploding, name="exploding")
    try:
        with pytest.raises(TrainingError, match=r"nan in iteration 6 \(epoch 2\); the checkpoint of epoch 1 is kept"):
            quick(tmp_path / "out", "loss.name=exploding")
    finally:
        registry.unregister_local()
    state = torch.load(tmp_path / "out" / "checkpoints" / "last.pt", weights_only=False)
    assert state["epoch"] == 1
    assert all(value.isfinite().all() for value in state["networks"]["embedder"].values())


class Collapsing(losses.BaseMetricLossFunction):
    """Pulls everything together."""

    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        points = torch.nn.functional.normalize(embeddings)
        loss = (points - points[:1].detach()).square().sum(1)
        return {"loss": {"losses": loss, "indices": torch.arange(len(loss)), "reduction_type": "element"}}


def test_collapse_is_noticed_while_it_happens_and_in_the_report(tmp_path):
    heard = []

    class Listener:
        def step(self, text): ...
        def epoch(self, epoch, epochs, iterations): ...
        def iteration(self, loss): ...
        def warn(self, text):
            heard.append(text)

    pml_ext.register(Collapsing, name="collapsing")
    try:
        metrics = quick(tmp_path / "out", "loss.name=collapsing", "optimizer.lr=0.01", "sampler.iterations=20",
                        listener=Listener())  # fmt: skip
    finally:
        registry.unregister_local()
    assert any("epoch 2" in text and "collapse to one point" in text for text in heard), heard
    assert metrics["warnings"] == heard
    assert "collapse" in (tmp_path / "out" / "report.html").read_text()


def test_batches_that_the_data_cannot_give(tmp_path):
    with pytest.raises(ConfigError, match=r"refuses batches of 75 from \d+ images of 10 classes: .*m_per_class"):
        quick(tmp_path / "a", "sampler.batch_size=75")
    with pytest.raises(ConfigError, match=r"1 batches of 5000 need more than the \d+ training images"):
        quick(tmp_path / "b", "sampler={name='shuffle', batch_size=5000}", "sampler.iterations=1")
    assert not (tmp_path / "a").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_run_on_the_gpu(tmp_path):
    metrics = train("cbml/digits", out=tmp_path / "out", overrides=QUICK, device="cuda")[0]
    assert metrics["device"].startswith("cuda (")
    assert metrics["after"]["map_at_r"] > metrics["before"]["map_at_r"]
