"""The command line: exit codes, and one line for what is wrong."""

import json
import os
import subprocess
import sys

import pytest

WITHOUT_TORCH = """
import contextlib, io, json, sys
from pml_ext_train.cli import main
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
    line = [sys.executable, "-m", "pml_ext", "list"]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(line, capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert done.stderr == (
        "pml-ext: the command line needs the package 'typer', which is not installed. "
        'Run: pip install "pml-ext[train]"\n'
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "cbml/digit"], "no recipe 'cbml/digit'; nearest: cbml/digits"),
        (["train", "cbml/omniglot-small", "--data", "{tmp}/absent", "--out", "{tmp}/x"], "absent"),
        (
            ["train"],
            "no recipe given; type pml-ext train cbml/digits, for example, or for data",
        ),
        (["train", "--images", "my photos", "--seed", "1"], "for your data, type: pml-ext fit 'my photos'"),
        (["train", "--vectors=mine.npz"], "--vectors: train needs a recipe; to have one chosen"),
        (["train", "cbml/digits", "--set", "loss=cbml"], "loss=cbml: loss is a table; type --set loss.name=cbml"),
        (["train", "cbml/digits", "--set", "data.name={tmp}"], "type --set data.name=folder:"),
        (["train", "cbml/digits", "--set", "schedule.epochs=x"], "epochs=x: schedule.epochs: found 'x'"),
        (["train", "cbml/digits", "--set", "schedule.epoch=3"], "--set schedule.epoch=3: schedule: no key 'epoch'"),
        (["fit", "table:{tmp}/none.csv"], "none.csv: no such folder or file"),
        (["show", "cbmll"], "nearest: cbml"),
        (["data", "--download"], "need the name of a data set"),
        (["index", "{tmp}", "{tmp}", "--check"], "--check changes nothing"),
        (["query", "{tmp}", "--list", "{tmp}/x", "{tmp}/y"], "--list and --workers go with -o FILE"),
        (["compare", "cbml/digits", "--ray-address", "x", "--out", "{tmp}/x"], "--ray-address needs --on ray"),
        (["bench", "cbml", "--run", "cbml/digits"], "--run measures the steps of a recipe; leave out losses"),
        (["bench", "--run", "cbml/digits", "--scale"], "leave out losses, --shapes and --scale"),
        (["bench", "--run", "cbml/omniglot-small-mvc-weight"], "has 4 variants; wanted one of them"),
        (["bench", "cbml", "--to", "64"], "--to goes with --scale"),
        (["bench", "cbml", "--scale", "--shapes=8x4x2,16x4x2"], "with --scale, give one shape"),
        (["bench", "cbml", "--set", "schedule.epochs=1"], "--data and --set go with --run RECIPE"),
        (["bench", "cbml", "--shapes=8x4"], "8x4"),
    ],
)
def test_wrong_use_is_one_line(pml_ext_command, tmp_path, arguments, message):
    done = pml_ext_command(*(argument.replace("{tmp}", str(tmp_path)) for argument in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "x").exists()


def test_ctrl_c_during_imports_is_one_line(monkeypatch, capsys):
    from pml_ext_train import cli
    from pml_ext_train.cli import app

    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "app_for", interrupted)
    monkeypatch.setattr(sys, "argv", ["pml-ext", "list"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "pml-ext: stopped by SIGINT before the command began\n"
