"""The command line: what it prints where, exit codes, and one line for what is wrong."""

import io
import json
import os
import re
import subprocess
import sys

import pytest
from rich.console import Console

from pml_ext.cli.output import Progress

FEW = "evaluation.figures=few schedule.epochs=2 schedule.milestones=[1] sampler.iterations=2 model.trunk.width=8"
QUICK = [argument for key in FEW.split() for argument in ("--set", key)]


WITHOUT_TORCH = """
import contextlib, io, json, sys
from pml_ext.cli import main
said = {}
for line in ("--help", "list", "list miners", "show cbml/digits", "show cbml/7"):
    sys.argv = ["pml-ext", *line.split()]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main()
    said[line] = out.getvalue()
    assert "torch" not in sys.modules, line
print(json.dumps(said))
"""


def test_it_says_what_there_is_without_importing_torch():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert all(said.values())
    assert all(command in said["--help"] for command in ("train", "list", "show", "plugins", "bench"))
    assert said["list"].index("cbml ") < said["list"].index("cbml/digits")
    assert max(map(len, said["list"].splitlines())) <= 100
    assert "hard-pair" not in said["list"]


def test_without_the_extra_it_says_what_to_install(tmp_path):
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError(\"No module named 'typer'\", name='typer')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    line, environment = [sys.executable, "-m", "pml_ext", "list"], {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(line, capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert done.stderr == (
        "pml-ext: the command line needs the package 'typer', which is not installed. "
        'Type: pip install "pml-ext[train]"\n'
    )


def test_list_and_show_and_plugins(pml_ext_command, tmp_path):
    listed = json.loads(pml_ext_command("list", "--json").stdout)
    assert {"cbml", "regularized", "pml/contrastive"} <= {entry["name"] for entry in listed["losses"]}
    assert {"cbml/digits", "pml/multi-similarity/omniglot-small"} <= {entry["name"] for entry in listed["recipes"]}
    names = {e["name"] for e in listed["datasets"]}
    assert {"digits", "digits-unseen", "omniglot-small", "cub", "inshop", "folder:PATH", "table:FILE.csv"} <= names
    assert {"convnet", "mlp", "torchvision/resnet50"} <= {entry["name"] for entry in listed["trunks"]}
    table = pml_ext_command("list", "miners").stdout
    assert any(line.startswith("hard-pair") and "HardPairMiner" in line for line in table.splitlines())
    shown = pml_ext_command("show", "cbml").stdout
    for wanted in ("(27)", "alpha_pos", "0.01", "Kan", "cbml/digits", "metric variance"):
        assert wanted.lower() in shown.lower(), wanted
    assert json.loads(pml_ext_command("show", "pml/angular", "--json").stdout)[1]["kind"] == "miner"
    assert "schedule.epochs" in pml_ext_command("show", "cbml/digits").stdout
    (tmp_path / "mine.toml").write_text('extends = "cbml/digits"\ndescription = "my own"')
    assert "my own" in pml_ext_command("show", str(tmp_path / "mine.toml")).stdout
    found = pml_ext_command("plugins")
    assert found.returncode == 0
    assert any(line.split()[:2] == ["cbml", "pml-ext"] and "ok" in line.split() for line in found.stdout.splitlines())


def test_train_writes_a_table_or_json_on_stdout_alone(pml_ext_command, tmp_path):
    done = pml_ext_command("train", "cbml/digits", "--out", str(tmp_path / "a"), "--device", "cpu", *QUICK)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("raw pixels")]
    assert [line for line in lines if line.startswith("untrained network")]
    assert [line for line in lines if line.startswith("trained network")]
    assert lines[-1] == f"report: {tmp_path}/a/report.html"
    told = r"epoch 1 of 2: loss \d\.\d{4}, \d+ images/s, 0:00:\d\d left\nepoch 2 of 2: .* 0:00:00 left\n"
    assert re.search(told, done.stderr), done.stderr
    done = pml_ext_command("train", "cbml/digits", "--out", str(tmp_path / "b"), "--json", "--seeds", "2", *QUICK)
    value = json.loads(done.stdout)
    assert value["summary"]["cbml/digits"]["after"]["nmi"]["mean"] > 0
    assert len(value["runs"]) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
@pytest.mark.parametrize("stream", ["full disk", "no reader"])
def test_messages_that_cannot_be_written_end_no_run(tmp_path, stream):
    if stream == "full disk":
        writer = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, writer = os.pipe()
        os.close(reader)
    line = [sys.executable, "-m", "pml_ext", "train", "cbml/digits", "--quick", "--device", "cpu", "--json", *QUICK]
    done = subprocess.run([*line, "--out", str(tmp_path / "out")], stdout=subprocess.PIPE, stderr=writer)
    assert done.returncode == 0
    assert json.loads(done.stdout)["after"]
    done = subprocess.run([*line, "--out", str(tmp_path / "out")], stdout=subprocess.PIPE, stderr=writer)
    os.close(writer)
    assert (done.returncode, done.stdout) == (2, b"")  # the folder exists


def test_a_terminal_has_a_bar():
    for terminal in (True, False):
        written = io.StringIO()
        with Progress(Console(file=written, force_terminal=terminal, width=100)) as listener:
            listener.step("cbml/digits, seed 0")
            listener.iteration(1, 1, 5, 0.25)
            listener._bar.refresh()
            listener.warn("careful")
        assert ("epoch 1: loss 0.2500" in written.getvalue()) is terminal
        assert any("warning: careful" in line for line in written.getvalue().splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "cbml/digit"], "no recipe 'cbml/digit'; nearest: cbml/digits"),
        (["train", "cbml/omniglot-small", "--data", "{tmp}/absent", "--out", "{tmp}/x"], "absent"),
        (["train"], "no recipe given; wanted a recipe or --images FOLDER"),
        (["train", "cbml/digits", "--set", "loss=cbml"], "loss=cbml: loss is a table; type --set loss.name=cbml"),
        (["train", "cbml/digits", "--set", "data.name={tmp}"], "type --set data.name=folder:"),
        (["train", "cbml/digits", "--set", "schedule.epochs=x"], "epochs=x: schedule.epochs: found 'x'"),
        (["train", "cbml/digits", "--set", "schedule.epoch=3"], "--set schedule.epoch=3: schedule: no key 'epoch'"),
        (["train", "--images", "table:{tmp}/none.csv"], "none.csv: no such folder or table"),
        (["show", "cbmll"], "nearest: cbml"),
        (["data", "--download"], "want the name of a data set"),
        (["index", "{tmp}", "{tmp}", "--check"], "--check reads the index as it is"),
        (["query", "{tmp}", "--list", "{tmp}/x", "{tmp}/y"], "--list and --workers go with -o FILE"),
        (["compare", "cbml/digits", "--ray-address", "x", "--out", "{tmp}/x"], "--ray-address goes with --on ray"),
        (["bench", "cbml", "--run", "cbml/digits"], "--run measures the steps of a recipe; leave out losses"),
    ],
)
def test_wrong_use_is_one_line(pml_ext_command, tmp_path, arguments, message):
    done = pml_ext_command(*(argument.replace("{tmp}", str(tmp_path)) for argument in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "x").exists()
