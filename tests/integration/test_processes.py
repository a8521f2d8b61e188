"""Whole runs by two processes, next to one process; and by one without what POSIX alone has."""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import textwrap

import pytest
import torch

from pml_ext import load_run
from pml_ext.errors import ConfigError
from pml_ext_train.files import read_json
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


def torchrun(*arguments, settings=(), restarts=None, path="", fails=False):
    """Run ``pml-ext ARGUMENTS`` by two processes; with a number of ``restarts`` by forked ones."""
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", *rendezvous, "-m", "pml_ext"]
    if restarts is not None:
        launcher = ["-c", FORKED, str(restarts)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(path)}
    more = "--device", "cpu", *(f"--set={each}" for each in settings)
    command = [sys.executable, *launcher, *map(str, arguments), *more]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode != 0) == fails, done.stderr
    return done


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
    return out, json.loads(done.stdout)  # written once


@pytest.mark.nightly
@pytest.mark.usefixtures("without_report")
def test_two_processes_train_like_one(tmp_path, two, recipe):
    results = train(str(recipe), out=tmp_path / "one", overrides=typed(QUICK), device="cpu")
    variants = ("memory", "proxies", "instances", "features", "stages")
    for variant, one, other in zip(variants, results, two[1]["runs"], strict=True):
        folders = tmp_path / "one" / variant, two[0] / variant
        losses = [torch.tensor(loss_series(folder, [])["loss"]) for folder in folders]
        assert losses[0][0].tolist() == list(range(1, 11))
        torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-3)
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


@pytest.mark.nightly
def test_two_processes_write_the_same_index(two, tmp_path):
    images = write_digits(tmp_path / "images", 60, classes=7)
    trained = two[0] / "memory"
    done = torchrun("index", trained, images, "--store", tmp_path / "store", "--json", restarts=0)
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


@pytest.mark.nightly
def test_torchrun_restarts_a_killed_process(tmp_path, two, recipe, install_plugin, monkeypatch):
    killed = tmp_path / "killed"
    whole = two[0] / "memory"
    name = f"{recipe}@memory"
    folder = install_plugin("dies", DIES).parent
    monkeypatch.setenv("DIES_IN", str(killed))
    done = torchrun("train", name, "--out", killed, settings=QUICK, path=folder, restarts=1)
    assert "epoch 1 of 2" in done.stderr
    assert done.stderr.count("testing raw pixels") == 1  # the second time it went on
    assert loss_series(killed, []) == loss_series(whole, [])
    assert read_json(killed / "metrics.json")["after"] == read_json(whole / "metrics.json")["after"]
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
    words = ("train", "cbml/digits", "--out", out, "--quick")
    done = torchrun(*words, settings=settings, path=folder, restarts=0, fails=True)
    assert "pml-ext (rank 1): RuntimeError: rank 1 ran out of luck" in done.stderr
    assert checkpoint.load(out / "checkpoints" / "last.pt")["epoch"] == 1
    assert not (out / "metrics.json").exists()


# Each command is a fork of one process that has imported what it needs, which takes most of its time otherwise.
ELSEWHERE = """
    import gc, json, multiprocessing.shared_memory, os, shutil, signal, socket, sqlite3, subprocess, sys, tempfile
    import filelock, matplotlib.pyplot, scipy.optimize, sklearn.cluster, sklearn.datasets, sklearn.manifold
    import tensorboard, torch, torchvision.transforms.v2, typer, rich.console, rich.progress
    import torch.utils.tensorboard, PIL.Image, pytorch_metric_learning.losses, pydantic

    fork = os.fork
    for name in ("SIGHUP", "SIGCHLD", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGALRM", "pthread_kill", "pthread_sigmask"):
        delattr(signal, name)
    for name in ("sched_getaffinity", "confstr", "fork", "killpg", "setsid", "getuid", "geteuid", "mkfifo", "symlink"):
        delattr(os, name)
    for name in ("fcntl", "resource", "pwd", "grp", "termios", "pty"):
        sys.modules[name] = None
    opened = os.open

    def open_no_folder(path, *more, **options):
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return opened(path, *more, **options)

    os.open = open_no_folder
    shutil._use_fd_functions = False  # as where folders cannot be opened
    sys.platform = "win32"

    import pml_ext_train.launch.launch, pml_ext_train.results.run_report
    from pml_ext_train.cli import main

    gc.freeze()  # the forks' collectors would copy the memory of all that was imported
    for number, (program, *arguments) in enumerate(json.loads(sys.argv[1])):
        if program == "rm":
            os.unlink(*arguments)
            continue
        child = fork()
        if child == 0:
            os.dup2(opened(f"{number}.out", os.O_WRONLY | os.O_CREAT), 1)
            sys.argv = [program, *arguments]
            main()
            sys.exit()
        if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            sys.exit(f"{arguments} ended with {code}")
    gc.unfreeze()
"""


@pytest.mark.nightly
def test_commands_run_without_what_posix_alone_has(tmp_path):
    write_digits(tmp_path / "photos", 12)
    train = "pml-ext train cbml/digits --out run --device cpu --set schedule.epochs=2 --set schedule.milestones=[1]"
    train += " --set sampler.iterations=3 --set evaluation.figures=few --set model.trunk.width=8"
    lines = [
        train,
        "rm run/metrics.json",
        f"{train} --resume",
        "pml-ext index run photos --device cpu",
        "pml-ext query run photos/3.png -k 1 --device cpu --json",
        "pml-ext doctor",  # whose self test passes
    ]
    script = [sys.executable, "-c", textwrap.dedent(ELSEWHERE), json.dumps([line.split() for line in lines])]
    done = subprocess.run(script, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert read_json(tmp_path / "run" / "metrics.json")["epochs"] == 2
    assert b"\r" not in (tmp_path / "run" / "SHA256SUMS").read_bytes()
    assert "3.png" in (tmp_path / "4.out").read_text()
