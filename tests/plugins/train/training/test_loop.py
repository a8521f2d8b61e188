"""Whole runs on digits: what is written, repeated and called; and what ends them: values, signals."""

import functools
import json
import math
import os
import pkgutil
import signal
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest
import torch
from matplotlib.figure import Figure
from pytorch_metric_learning import losses

import pml_ext
from pml_ext.errors import StoppedError, TrainingError
from pml_ext_train.data import LabeledImages
from pml_ext_train.launch import launch
from pml_ext_train.launch.launch import train
from pml_ext_train.records import read_metrics
from pml_ext_train.training import Run, Silence, checkpoint, signals

from ....overrides import typed
from .whole_runs import QUICK, quick

METRICS = {
    *(f"recall_at_{k}" for k in (1, 2, 4, 8)),
    "precision_at_1",
    "r_precision",
    "map_at_r",
    "nmi",
    "nmi_majority",
    "f1",
    "purity",
}


@pytest.mark.slow
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
    assert {path.name for path in (out / "checkpoints").iterdir()} == {
        "before.pt",
        "last.pt",
        "model.pt",
        "previous.pt",
    }
    assert list(out.rglob(".*")) == [out / ".lock"]


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
def test_a_written_recipe_gives_the_run_again(finished, tmp_path):
    """Without the tests that may be left out, which change no number."""
    bare = ("evaluation.baselines=false", "evaluation.training_images=0")
    again, other = (
        train(str(finished[0] / "recipe.toml"), tmp_path / f"{seed}", seed, overrides=typed(bare), device="cpu")[0]
        for seed in (0, 1)
    )
    assert again["after"] == finished[1]["after"] != other["after"]


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize(("trains", "classes"), [("true", 10), ("false", 6)])
def test_the_epoch_is_chosen_on_held_out_classes(tmp_path, trains, classes):
    trains = f"evaluation.validation_trains={trains}"
    metrics = quick(
        tmp_path / "out",
        "evaluation.validation=0.4",
        "evaluation.held_out=last",
        "evaluation.select=purity",
        trains,
        "sampler.batch_size=48",
        "evaluation.baselines=false",
    )
    assert (metrics["images"]["train"]["classes"], metrics["images"]["validation"]["classes"]) == (classes, 4)
    assert 1 <= metrics["best_epoch"] <= 3
    assert torch.load(tmp_path / "out" / "checkpoints" / "best.pt", weights_only=True)["epoch"] == metrics["best_epoch"]


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


@pytest.mark.nightly
@pytest.mark.usefixtures("isolated_registry")
def test_a_component_takes_part_in_its_run(tmp_path):
    pml_ext.register(Watcher, name="watcher")
    Watcher.seen.clear()
    quick(tmp_path / "out", "loss.name=watcher")
    assert Watcher.seen == [("prepare", 0), ("start", 1), ("start", 2), ("start", 3)]
    report = (tmp_path / "out" / "report.html").read_text()
    assert "The watcher&#39;s own figure" in report or "The watcher's own figure" in report


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
def test_operators_are_deterministic_where_a_run_says_so(tmp_path):
    seen = []
    listener = Silence()
    listener.iteration = lambda *_: seen.append(torch.are_deterministic_algorithms_enabled())
    quick(tmp_path / "run", "engine.deterministic=true", listener=listener)
    assert set(seen) == {True}
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.nightly
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


# Values that are not finite


class Exploding(losses.ContrastiveLoss):
    """Becomes NaN in its sixth call, or a batch norm's statistics do."""

    what = "loss"

    def start_epoch(self, run):
        if self.what == "statistics" and run.epoch == 2:
            run.trunk[1].running_mean.fill_(math.inf)

    def forward(self, *arguments):
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(*arguments) * (math.nan if self.calls == 6 and self.what == "loss" else 1)


@pytest.mark.slow
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


@pytest.mark.slow
def test_weights_that_are_not_finite_are_no_checkpoint(tmp_path):
    with pytest.raises(TrainingError, match=r"the weight trunk\.0\.weight became inf in epoch 1; there is no"):
        quick(
            tmp_path / "out",
            "optimizer={name='sgd', lr=3e38, weight_decay=1e3}",
            "sampler.iterations=1",
            recipe="triplets/digits",
        )
    assert [path.name for path in (tmp_path / "out" / "checkpoints").iterdir()] == ["before.pt"]


# Signals


def send(number=signal.SIGTERM):
    os.kill(os.getpid(), number)
    for _ in range(1000):  # a signal is handled between two lines
        pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_deferred_or_end_at_once(number, capfd):
    before = signal.getsignal(number)
    with signals.listening():
        with signals.deferred():
            assert signals.received() is None
            send(number)
            assert signals.received() == number
            with pytest.raises(StoppedError, match=f"^stopped by {number.name} after epoch 3$") as caught:
                signals.check("after epoch 3")
            assert caught.value.exit_code == 128 + number
            with pytest.raises(StoppedError), signals.at_once():
                pytest.fail("a noted signal ends what may end at once")
        assert (
            "stopping after this iteration, with a checkpoint; send it again to stop at once" in capfd.readouterr().err
        )
    assert signal.getsignal(number) is before
    with signals.listening(), pytest.raises(StoppedError, match=f"^stopped by {number.name}$"):
        send(number)
    assert signals.received() is None


def test_a_second_signal_ends_at_once():
    with signals.listening(), signals.deferred():
        send()
        with pytest.raises(StoppedError, match="at once; everything since the last checkpoint is lost"):
            send(signal.SIGINT)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("name", ["TORCHELASTIC_RUN_ID", signals.PASSED_ON])
def test_a_repeated_signal_counts_only_once(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    with signals.listening(), signals.deferred():
        send()
        send()
        assert signals.received() == signal.SIGTERM
        monkeypatch.setattr(signals, "_TWICE", 0)
        with pytest.raises(StoppedError, match="at once"):
            send()


class Dropping:
    """An object in whose deletion a signal arrives: Python drops errors there."""

    def __del__(self):
        send()


def test_signals_inside_callbacks_are_not_lost(capfd):
    def work():
        Dropping()
        time.sleep(10)  # the signal ends it

    before = sys.unraisablehook
    with signals.listening(), pytest.raises(StoppedError, match=r"^stopped by SIGTERM$"):
        work()
    assert sys.unraisablehook is before
    assert "Exception ignored" not in capfd.readouterr().err


def test_what_nohup_ignores_stays_ignored(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.listening():
            send(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_thread_changes_no_handlers():
    def handler_inside():
        with signals.listening():
            return signal.getsignal(signal.SIGTERM)

    with ThreadPoolExecutor() as threads:
        assert threads.submit(handler_inside).result() == signal.getsignal(signal.SIGTERM)


def interrupting(function):
    """The function, before which this process gets a SIGTERM, once."""

    send_once = functools.cache(send)

    def interrupted(*arguments, **settings):
        send_once()
        return function(*arguments, **settings)

    return interrupted


TINY = ("schedule.epochs=1", "schedule.milestones=[1]", "sampler.iterations=2", "model.trunk.width=8")
PHASES = {
    "the check of the recipe": "pml_ext_train.recipe.check._check_optimizer",
    "reading last.pt": "torch.load",
    "drawing a figure": "pml_ext_train.report.figures.similarity_distributions",
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_ends_a_run_in_every_phase(tmp_path, monkeypatch, pml_ext_command, phase):
    out = tmp_path / "out"
    line = ["train", "cbml/digits", "--out", str(out), "--device", "cpu", *(f"--set={each}" for each in TINY)]
    if phase == "reading last.pt":
        monkeypatch.setattr("pml_ext_train.results.finish.metrics_after", interrupting(lambda *_: {}))
        assert pml_ext_command(*line).returncode == 128 + signal.SIGTERM
        line.append("--resume")
    monkeypatch.setattr(PHASES[phase], interrupting(pkgutil.resolve_name(PHASES[phase])))
    done = pml_ext_command(*line)
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stderr.splitlines()[-1].startswith("pml-ext: stopped by SIGTERM; ")
    assert (f"resume with the same command and --out {out} --resume" in done.stderr) == (
        phase != "the check of the recipe"
    )
    assert not (out / "report.html").exists()


def test_no_seed_begins_after_a_signal(tmp_path, monkeypatch):
    begun = []
    execute = launch.execute
    monkeypatch.setattr("pml_ext_train.report.figures.similarity_distributions", interrupting(lambda *_: None))
    monkeypatch.setattr(launch, "execute", lambda plan, *more: begun.append(plan.seed) or execute(plan, *more))
    with pytest.raises(StoppedError, match="/out --resume"):
        launch.train("cbml/digits", tmp_path / "out", seeds=3, device="cpu", overrides=typed(TINY))
    assert begun == [0]
