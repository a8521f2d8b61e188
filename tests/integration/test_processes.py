"""Whole runs by torchrun with two processes, next to one process."""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys

import pytest
import torch

from pml_ext import load_run
from pml_ext.errors import ConfigError
from pml_ext_train.launch.launch import train
from pml_ext_train.records.series import loss_series
from pml_ext_train.training import checkpoint

from ..digit_files import write_digits
from ..overrides import typed

pytestmark = pytest.mark.timeout(3600)  # against processes that wait for each other for ever, on any machine
QUICK = ("schedule.epochs=2", "schedule.milestones=[1]", "sampler.iterations=5", "model.trunk.width=16")
QUICK += ("evaluation.figures=few", "evaluation.training_images=0")
RECIPE = """
extends = "cbml/digits"
[sweep.rows.memory]
loss.memory = { size = 200, start_epoch = 2 }
[sweep.rows.proxies]
extends = "pml/proxy-anchor/digits"
sampler = { name = "shuffle", batch_size = 75 }
[sweep.rows.instances]
data = { labels = "instance", views = 3, augment = { transforms = [{ name = "RandomRotation", degrees = 15 }] } }
loss = { name = "pml/ntxent" }
sampler = { name = "shuffle", batch_size = 24 }
schedule.warmup = 1.5
[sweep.rows.features]
model = { freeze = "trunk", trunk = { weights = "random" } }
[sweep.rows.stages]
stages = [{ epochs = 1, freeze = ["0"], loss = { name = "cbml" } }]
"""


FORKED = """
import gc, sys
import torchvision.transforms.v2
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
import pml_ext_train.results.run_report, pml_ext_train.training.run
from pml_ext_train.cli import main

def work(*arguments):
    sys.argv = ["pml-ext", *arguments]
    main()

gc.freeze()  # the processes' collectors would copy the memory of all that was imported
where = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": "test"}
elastic_launch(LaunchConfig(1, 1, 2, max_restarts=int(sys.argv[1]), start_method="fork", **where), work)(*sys.argv[2:])
"""  # torchrun's agent, whose processes are forked after the imports, which take most of their time otherwise


def torchrun(*arguments, settings=(), restarts=None, path=""):
    """Run ``pml-ext ARGUMENTS`` by two processes; with a number of ``restarts`` by forked ones."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    launcher += ["--rdzv-endpoint", "localhost:0", "-m", "pml_ext"]
    launcher = launcher if restarts is None else ["-c", FORKED, str(restarts)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(path)}
    more = "--device", "cpu", *(f"--set={each}" for each in settings)
    command = [sys.executable, *launcher, *map(str, arguments), *more]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    file = tmp_path_factory.mktemp("recipe") / "rows.toml"
    file.write_text(RECIPE)
    return file


@pytest.fixture(scope="module")
def two(tmp_path_factory, recipe):
    """The folder of runs by two processes, and what they printed."""
    out = tmp_path_factory.mktemp("processes") / "two"
    done = torchrun("train", recipe, "--out", out, "--json", settings=QUICK)
    assert done.returncode == 0, done.stderr
    return out, json.loads(done.stdout)  # written once


@pytest.mark.usefixtures("without_report")
def test_two_processes_train_like_one(tmp_path, two, recipe):
    results = train(str(recipe), out=tmp_path / "one", overrides=typed(QUICK), device="cpu")
    variants = ("memory", "proxies", "instances", "features", "stages")
    for variant, one, other in zip(variants, results, two[1]["runs"], strict=True):
        folders = tmp_path / "one" / variant, two[0] / variant
        losses = [loss_series(folder, [])["loss"] for folder in folders]
        assert losses[0][0] == losses[1][0] == list(range(1, 11))
        torch.testing.assert_close(*(torch.tensor(values) for _, values in losses), rtol=1e-3, atol=1e-3)
        assert other["raw"] == one["raw"]
        assert other["before"] == pytest.approx(one["before"], abs=1e-3)
        assert other["after"]["map_at_r"] == pytest.approx(one["after"]["map_at_r"], abs=0.03)
        assert (one["processes"], other["processes"]) == (1, 2)
        names = [{path.name for path in folder.iterdir()} for folder in folders]
        assert names[0] | {"figures", "report.html"} == names[1]
        states = [torch.load(folder / "checkpoints" / "model.pt") for folder in folders]
        for part in ("trunk", "embedder", "loss"):
            assert states[0][part].keys() == states[1][part].keys()
        if variant == "memory":
            memories = [[state["loss"][key] for key in ("cursor", "filled", "label_memory")] for state in states]
            torch.testing.assert_close(*memories, rtol=0, atol=0)
            assert states[0]["loss"]["filled"] == 200


def test_two_processes_write_the_same_index(two, tmp_path):
    images = write_digits(tmp_path / "images", 60, classes=7)
    trained = two[0] / "memory"
    done = torchrun("index", trained, images, "--store", tmp_path / "store", "--json", restarts=0)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)  # written once
    assert (told["new"], told["images"]) == (60, 60)
    with contextlib.closing(sqlite3.connect(tmp_path / "store" / "images.sqlite")) as rows:
        assert rows.execute("SELECT count(*), count(DISTINCT vector) FROM embedded").fetchone() == (60, 60)
    alone = load_run(trained, "cpu", store=tmp_path / "other").embed_folder(images)
    both = load_run(trained, "cpu", store=tmp_path / "store").gallery().embedded
    assert sorted(both.paths) == sorted(alone.paths)
    rows = [both.paths.index(path) for path in alone.paths]
    torch.testing.assert_close(both.embeddings[rows], alone.embeddings, rtol=0, atol=1e-5)


DIES = """
    import os, pathlib, signal, threading, time

    def die():
        while not (pathlib.Path(os.environ["DIES_IN"]) / "checkpoints" / "last.pt").exists():
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGKILL)

    if os.environ.get("RANK") == "1" and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
        threading.Thread(target=die, daemon=True).start()
"""


def test_torchrun_restarts_a_killed_process(tmp_path, two, recipe, install_plugin, monkeypatch):
    killed = tmp_path / "killed"
    whole = two[0] / "memory"
    name = f"{recipe}@memory"
    folder = install_plugin("dies", DIES).parent
    monkeypatch.setenv("DIES_IN", str(killed))
    done = torchrun("train", name, "--out", killed, settings=QUICK, path=folder, restarts=1)
    assert done.returncode == 0, done.stderr
    assert "epoch 1 of 2" in done.stderr
    assert done.stderr.count("testing raw pixels") == 1  # the second time it went on
    assert loss_series(killed, []) == loss_series(whole, [])
    results = [json.loads((folder / "metrics.json").read_text()) for folder in (killed, whole)]
    assert results[0]["after"] == results[1]["after"]
    (killed / "metrics.json").unlink()
    with pytest.raises(ConfigError, match=r"run of 2 processes, not 1; resume it with torchrun --nproc-per-node 2"):
        train(name, out=killed, overrides=typed(QUICK), device="cpu", resume=True)


LATE = """
    import os
    from pytorch_metric_learning.losses import ContrastiveLoss
    from pml_ext.plugin import Component, hookimpl

    class FailsLoss(ContrastiveLoss):
        def start_epoch(self, run):
            if run.rank == 1 and run.epoch == 2:
                raise RuntimeError("rank 1 ran out of luck")

    @hookimpl
    def pml_ext_components():
        return [Component(FailsLoss, "fails")]
"""


def test_a_failing_rank_ends_all_ranks(tmp_path, install_plugin):
    folder = install_plugin("fails_late", LATE, entry_point="fails-late").parent
    out = tmp_path / "out"
    settings = (*QUICK, "loss.name=fails")
    done = torchrun("train", "cbml/digits", "--out", out, "--quick", settings=settings, path=folder, restarts=0)
    assert done.returncode != 0
    assert "pml-ext (rank 1): RuntimeError: rank 1 ran out of luck" in done.stderr
    assert checkpoint.load(out / "checkpoints" / "last.pt")["epoch"] == 1
    assert not (out / "metrics.json").exists()
