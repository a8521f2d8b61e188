"""Whole runs on digits: what is written, resuming, several seeds, stages, components that take part, and failures."""

import base64
import json
import math
import re
import shutil
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from pytorch_metric_learning import losses
from pytorch_metric_learning.distances import LpDistance

import pml_ext
from pml_ext import registry
from pml_ext.data import LabeledImages
from pml_ext.errors import ConfigError, DataError, PmlExtError, TrainingError
from pml_ext.files import read_json
from pml_ext.files.checksums import changed_files, missing_files, read_sums
from pml_ext.recipe import load_recipes
from pml_ext.training import checkpoint
from pml_ext.training.evaluation import evaluate_split
from pml_ext.training.launch import FailedRunsError, draw_report, plan, read_metrics, summarize, train
from pml_ext.training.records import loss_series
from pml_ext.training.run import Run

QUICK = ("schedule.epochs=3", "schedule.milestones=[2]", "sampler.iterations=4", "model.trunk.width=16")
METRICS = {*(f"recall_at_{k}" for k in (1, 2, 4, 8)), "precision_at_1", "r_precision", "map_at_r"}
METRICS |= {"nmi", "nmi_majority", "f1", "purity"}


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
    assert {k: v for k, v in metrics.items() if k not in ("folder", "setback")} == read_metrics(out / "metrics.json")
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
def test_a_written_recipe_gives_the_run_again_and_another_seed_another(finished, tmp_path):
    """Without the tests that may be left out, which change no number."""
    bare = ("evaluation.baselines=false", "evaluation.training_images=0")
    again, other = (
        train(str(finished[0] / "recipe.toml"), tmp_path / f"{seed}", seed, overrides=bare, device="cpu")[0]
        for seed in (0, 1)
    )
    assert again["after"] == finished[1]["after"] != other["after"]


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


@pytest.mark.usefixtures("without_report")
def test_several_seeds_and_variants(tmp_path):
    out = tmp_path / "seeds"
    out.mkdir()
    (out / ".summary.json.4194305.tmp").write_text("half")  # of a process that was killed
    results = train("cbml/digits", out=out, seeds=2, overrides=QUICK, device="cpu", resume=True)
    assert [result["seed"] for result in results] == [0, 1]
    assert {path.name for path in out.iterdir()} == {"seed-0", "seed-1", "summary.json"}
    summary = read_json(out / "summary.json")
    assert summary == summarize(results)
    values = [result["after"]["map_at_r"] for result in results]
    entry = summary["cbml/digits"]["after"]["map_at_r"]
    assert entry["mean"] == pytest.approx(sum(values) / 2)
    assert entry["std"] == pytest.approx(abs(values[0] - values[1]) / math.sqrt(2))
    names = [each.folder.name for each in plan("cbml/omniglot-small-mvc-weight", out=tmp_path / "x", seeds=2)]
    assert names[:3] == ["0.0-seed-0", "0.0-seed-1", "0.1-seed-0"]
    labels = tmp_path / "labels.toml"
    labels.write_text('extends = "cbml/digits"\n[sweep.any.".."]\n[sweep.any."a/b"]\n')
    assert [each.folder for each in plan(str(labels), out=out / "x")] == [out / "x" / "-", out / "x" / "a-b"]


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize(("trains", "classes"), [("true", 10), ("false", 6)])
def test_the_epoch_is_chosen_on_training_classes_held_out_or_not(tmp_path, trains, classes):
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


def test_embeddings_that_are_not_finite_are_not_ranked(tmp_path):
    run = Run(next(iter(load_recipes("cbml/digits", ["model.trunk.width=8"]).values())), "cbml/digits", tmp_path)
    torch.nn.init.constant_(run.embedder.bias, math.nan)
    with pytest.raises(TrainingError, match="the network gives nan for images to test"):
        evaluate_split(run, "test")


def test_each_image_is_read_and_embedded_once_for_each_state_of_the_network(tmp_path, monkeypatch):
    """In a run of E epochs: training images E + 1 times, test images twice, held-out ones once per test on them.

    The report shows 24 training images, which are read for it.
    """
    reads, passed = Counter(), Counter()
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
    monkeypatch.setattr("pml_ext.training.launch.Run", Counted)
    epochs = 3
    overrides = [o for o in QUICK if "sampler" not in o] + ["sampler={name = 'shuffle', batch_size = 64}"]
    overrides += ["evaluation.validation=0.2", "evaluation.select=map_at_r"]
    train("cbml/digits", tmp_path / "out", overrides=overrides, device="cpu")
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


class Ear:
    """A listener that keeps what it hears."""

    def __init__(self):
        self.warnings, self.epochs = [], []

    def iteration(self, *_): ...
    def step(self, text):
        if found := re.fullmatch(r"epoch (\d+) of (\d+): loss ([\d.]+), (\d+) images/s, (\d:\d\d:\d\d) left", text):
            self.epochs.append(found.groups())

    def warn(self, text):
        self.warnings.append(text)


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["sampler.m=1", "sampler.batch_size=10"], "no batch has a positive pair, which takes two images of one class"),
        (["loss.name=pml/triplet-margin", "sampler.m=8", "sampler.batch_size=8"], "no batch has a negative pair"),
        (['loss={name="pml/triplet-margin", margin=-9}'], "but none adds to the loss, as when all satisfy its margin"),
        (["loss.memory.size=500", "sampler.m=1", "sampler.batch_size=2", "sampler.iterations=1"], "positive pair"),
    ],
)
def test_a_loss_that_is_always_0_is_a_warning(tmp_path, overrides, reason):
    settings = ["sampler.iterations=12", "schedule.epochs=2", "schedule.milestones=[1]", *overrides]
    (warning,) = quick(tmp_path / "run", *settings)["warnings"]
    first = 1 if "sampler.iterations=1" in overrides else 10
    assert warning.startswith(f"the loss is 0 in all of the first {first} iterations, so nothing is learned: ")
    assert reason in warning
    assert warning in read_json(tmp_path / "run" / "metrics.json")["warnings"]


def test_a_setback_is_printed_and_in_the_report(tmp_path, pml_ext_command):
    settings = [*QUICK, "optimizer.lr=3", "evaluation.figures=few", "evaluation.training_images=0"]
    options = [word for setting in settings for word in ("--set", setting)]
    printed = pml_ext_command("train", "cbml/digits", "--out", tmp_path / "run", "--device", "cpu", *options).stdout
    text = "The trained network is behind the untrained network: Recall@1 is "
    assert text in printed
    assert text in (tmp_path / "run" / "report.html").read_text()
    assert "recall_at_1" not in printed


def test_a_collapsed_run_ends_with_metrics_a_report_and_warnings(tmp_path):
    ear = Ear()
    metrics = quick(tmp_path / "out", "optimizer.lr=1e8", listener=ear)
    assert sum("embeddings collapse to one point" in text for text in ear.warnings) == 1, ear.warnings  # not each epoch
    assert metrics["warnings"] == ear.warnings
    assert metrics["after"]["nmi"] < 0.01
    report = (tmp_path / "out" / "report.html").read_text()
    assert "collapse" in report
    assert "could not be drawn" not in report
    assert [epoch[:2] for epoch in ear.epochs] == [("1", "3"), ("2", "3"), ("3", "3")]
    assert ear.epochs[-1][-1] == "0:00:00"


@pytest.mark.usefixtures("without_report")
def test_a_finished_run_whose_model_is_gone_makes_it_again_or_says_why_not(finished, tmp_path):
    out, ear = shutil.copytree(finished[0], tmp_path / "out"), Ear()
    model = out / "checkpoints" / "model.pt"
    model.unlink()
    again = quick(out, resume=True, listener=ear)
    assert same(again, finished[1])
    assert ear.warnings == [f"{model} is gone or damaged; it is made again from {model.with_name('last.pt')}"]
    states = [torch.load(run / "checkpoints" / "model.pt")["trunk"] for run in (out, finished[0])]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[1])
    for name in ("model.pt", "last.pt"):
        model.with_name(name).unlink()
    with pytest.raises(DataError, match=r"model.pt is gone or damaged, and .*last.pt.*; delete .*metrics.json"):
        quick(out, resume=True)


def test_metrics_are_there_before_the_report_which_a_resumed_run_draws(tmp_path, monkeypatch):
    drawn = []

    def fails(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("pml_ext.training.results.write_run_report", fails)
    with pytest.raises(OSError, match="no space left"):
        quick(tmp_path / "out", "schedule.epochs=1", "schedule.milestones=[1]")
    written = read_metrics(tmp_path / "out" / "metrics.json")
    left = [tmp_path / "out" / name for name in (".SHA256SUMS.1-1.tmp", "records/.loss_histories.csv.1-1.tmp")]
    for path in left:  # as a process leaves them that is killed while it writes the report
        path.write_text("half of it")
    monkeypatch.setattr("pml_ext.training.results.write_run_report", lambda *given: drawn.append(given[2]))
    resumed = quick(tmp_path / "out", "schedule.epochs=1", "schedule.milestones=[1]", resume=True)
    assert drawn == [written]
    assert {key: value for key, value in resumed.items() if key != "folder"} == written
    assert not any(path.exists() for path in left)


def test_what_is_gone_is_made_again_and_a_figure_that_fails_is_left_out_with_its_reason(
    finished, tmp_path, monkeypatch
):
    def fails(*_, **__):
        raise ValueError("bins must increase\nmonotonically")

    out, ear = shutil.copytree(finished[0], tmp_path / "out"), Ear()
    (out / "report.html").unlink()
    gone = [out / "network.json", next((out / "records").glob("*.csv"))]
    whole = [path.read_bytes() for path in gone]
    for path in gone:
        path.unlink()
    (out / "checkpoints" / "previous.pt").unlink()  # which may be deleted, and says nothing
    (out / "checkpoints" / "last.pt").write_bytes(b"")
    before = {path.name: path.read_bytes() for path in (out / "figures").iterdir()}
    (out / "figures" / "notes.txt").write_text("mine")
    monkeypatch.setattr("pml_ext.evaluation.figures.similarity_distributions", fails)
    drawn_with = registry.get("cbml", "loss").cls  # a plugin that was loaded again has another class
    monkeypatch.setattr(drawn_with, "figures", lambda *_: sys.exit("no more"), raising=False)
    assert draw_report(out, "cpu", listener=ear) == out / "report.html"
    after = {path.name: path.read_bytes() for path in (out / "figures").glob("*.png")}
    assert set(before) - set(after) == {"similarities-of-positive-and-negative-pairs.png"}  # no stale picture is left
    assert after == {name: before[name] for name in after}  # and the others are as they were
    report = (out / "report.html").read_text()
    shown = [base64.b64encode(after[name]).decode() for name in after]  # that of CBML is of the earlier report
    assert sum(f"data:image/png;base64,{picture}" in report for picture in shown) == len(after) - 1
    assert report.count("This figure could not be drawn: ") == 2
    assert "This figure could not be drawn: ValueError: bins must increase</div>" in report
    assert [text.partition("; ")[0] for text in ear.warnings] == [
        f"{out}: not what SHA256SUMS says: checkpoints/last.pt, network.json, records/{gone[1].name}",
        "the figure 'Similarities of positive and negative pairs' is left out of the report: "
        "ValueError: bins must increase",
        "the figure 'Figures of CBMLLoss' is left out of the report: SystemExit: no more",
    ]
    assert [path.read_bytes() for path in gone] == whole
    assert (changed_files(out), missing_files(out)) == (["checkpoints/last.pt"], [])
    assert "notes.txt" not in (out / "SHA256SUMS").read_text()
    with pytest.raises(DataError, match=r"no finished run \(no recipe.toml in it\); type: pml-ext train RECIPE --out"):
        draw_report(tmp_path)


@pytest.mark.usefixtures("without_report")
def test_a_run_that_fails_does_not_end_the_others(tmp_path, pml_ext_command):
    recipe, out = tmp_path / "mine.toml", tmp_path / "out"
    recipe.write_text('extends = "cbml/digits"\n[sweep]\n"sampler.batch_size" = [75, 80]\n')
    line = ["train", str(recipe), "--out", str(out), "--device", "cpu"]
    for override in (*QUICK, "schedule.epochs=1", "schedule.milestones=[1]"):
        line += ["--set", override]
    done = pml_ext_command(*line)
    assert done.returncode == 1
    summary = read_json(out / "summary.json")
    (failure,) = summary.pop("failures")
    assert (failure["recipe"], failure["seed"], failure["folder"]) == (f"{recipe}@75", 0, str(out / "75"))
    assert failure["error"].startswith("sampler: found batch_size = 75; 10 classes x m = 8")
    assert list(summary) == [f"{recipe}@80"]
    assert (out / "80" / "metrics.json").exists()
    assert not (out / "75").exists()
    assert "trained network" in done.stdout
    assert f"warning: {recipe}@75, seed 0, in {out / '75'} failed: sampler: found batch_size = 75" in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"pml-ext: 1 of 2 runs failed: {recipe}@75, seed 0")
    assert "Traceback" not in done.stderr
    with pytest.raises(FailedRunsError, match="2 of 2 runs failed") as caught:
        train("cbml/digits", tmp_path / "none", seeds=2, overrides=[*QUICK, "sampler.batch_size=75"], device="cpu")
    assert len(caught.value.failures) == 2
    assert not (tmp_path / "none").exists()


def test_a_damaged_checkpoint_is_one_line(finished, tmp_path, pml_ext_command):
    out = shutil.copytree(finished[0], tmp_path / "out")
    (out / "metrics.json").unlink()
    (out / "checkpoints" / "last.pt").write_bytes(b"")
    (out / "checkpoints" / "previous.pt").unlink()
    (out / "checkpoints" / "model.pt").write_bytes(b"")
    resume = ["train", str(out / "recipe.toml"), "--out", str(out), "--device", "cpu", "--resume"]
    for line, name in ((resume, "last"), (["export", str(out), "--out", str(tmp_path / "x")], "model")):
        done = pml_ext_command(*line)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].startswith(f"pml-ext: {out}/checkpoints/{name}.pt: the file is damaged")


@pytest.mark.usefixtures("without_report")
def test_a_damaged_last_checkpoint_costs_an_epoch_and_a_damaged_recipe_nothing(finished, tmp_path):
    out, ear = shutil.copytree(finished[0], tmp_path / "out"), Ear()
    (out / "metrics.json").unlink()
    for name, place in (("checkpoints/last.pt", 5000), ("recipe.toml", 300)):
        content = bytearray((out / name).read_bytes())
        content[place] ^= 1
        (out / name).write_bytes(content)
    assert same(quick(out, resume=True, listener=ear), finished[1])
    damaged = r"last\.pt: the file is damaged \(its checksum is not that in SHA256SUMS\); the run goes on from"
    assert re.search(rf"{damaged}.*previous\.pt \(epoch 2\)", ear.warnings[0])
    assert (out / "recipe.toml").read_bytes() == (finished[0] / "recipe.toml").read_bytes()


def test_damaged_metrics_are_one_line(finished, tmp_path):
    out, name = shutil.copytree(finished[0], tmp_path / "out"), "metrics.json"
    shutil.rmtree(out / "checkpoints")
    whole = (out / name).read_bytes()
    for content in (b"", whole[:60], whole.replace(b"0.", b"1.", 1), b"\xff" + whole, b"[[[[" * 5000):
        (out / name).write_bytes(content)
        remedy = rf"{name}.*(; put it back, or delete|delete .*{name}|delete it and train with --resume)"
        with pytest.raises(PmlExtError, match=remedy) as caught:
            quick(out, resume=True)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 600


@pytest.mark.parametrize("content", [b"", b"no sums\n", b"\xff\n"])
@pytest.mark.parametrize("again", ["report", "resume"])
def test_damaged_checksums_are_written_again(finished, tmp_path, pml_ext_command, content, again):
    """Also beside files that are not of the run."""
    out = shutil.copytree(finished[0], tmp_path / "out")
    whole = read_sums(out)
    (out / "collection").mkdir()
    (out / "notes.txt").write_text("mine")
    (out / ".notes.5.tmp").write_text("mine")
    (out / "SHA256SUMS").write_bytes(content)
    refused = pml_ext_command("export", str(out), "--out", str(tmp_path / "x"))
    assert refused.returncode == 2
    assert refused.stderr == f"pml-ext: {out}/SHA256SUMS: damaged; type: pml-ext report {out}\n"
    if again == "report":
        assert draw_report(out, "cpu") == out / "report.html"
    else:
        assert same(quick(out, resume=True), finished[1])
    assert read_sums(out).keys() == whole.keys()
    assert changed_files(out) == missing_files(out) == []
    assert (out / ".notes.5.tmp").read_text() == "mine"


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("name", ["report.html", "network.json", "recipe.toml", "metrics.json", "SHA256SUMS"])
@pytest.mark.parametrize("damage", ["garbage", "empty"])
def test_a_damaged_file_is_named_with_what_to_type(finished, tmp_path, pml_ext_command, name, damage):
    """The text of every command has what to do; that is done here, and the file is as it was."""
    out = shutil.copytree(finished[0], tmp_path / "out")
    whole = (out / name).read_bytes()
    (out / name).write_bytes({"garbage": b"\x80garbage\xff" * 50, "empty": b""}[damage])
    said = []
    for line in (["report", out], ["export", out, "--out", tmp_path / "x"], ["compare", out]):
        done = pml_ext_command(*line)
        if done.returncode != 0:
            text = done.stderr.splitlines()[-1]
            assert str(out / name) in text
            assert "--debug" not in text  # an error that nobody foresaw
            assert re.search("pml-ext report|--resume", text)
            said.append(text)
    if any("delete it and repeat" in text for text in said):
        (out / name).unlink()
    if any("--resume" in text for text in said):
        quick(out, resume=True)
    elif said:
        draw_report(out, "cpu")
    if name in ("network.json", "recipe.toml"):
        assert (out / name).read_bytes() == whole
    assert name == "report.html" or changed_files(out) == []
    assert pml_ext_command("export", out, "--out", tmp_path / "y").returncode == 0


def test_resuming_what_is_not_there(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"mistyped: there is no run to resume; correct --out, or leave out --resume"):
        quick(tmp_path / "mistyped", resume=True)
    assert not (tmp_path / "mistyped").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear")
    with pytest.raises(ConfigError, match=r"mine holds no run \(no recipe.toml in it\); choose another --out"):
        quick(tmp_path / "mine", resume=True)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    with pytest.raises(ConfigError, match="torchrun --max-restarts need --out"):
        plan("cbml/digits")
