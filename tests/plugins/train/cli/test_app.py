"""The command line: exit codes, one line for what is wrong, what is printed where, and commands of plugins."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
import typing
from unittest.mock import Mock

import pytest
import typer
from rich.console import Console

from pml_ext import registry
from pml_ext_train.cli import main, options
from pml_ext_train.cli.app import app_for
from pml_ext_train.cli.output import Progress, print_table
from pml_ext_train.cli.results import print_results
from pml_ext_train.results.verdict import shown_phases

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
    done = subprocess.run(line, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert (done.returncode, done.stderr) == (
        2,
        "pml-ext: the command line needs the package 'typer', which is not installed. "
        'Run: pip install "pml-ext[train]"\n',
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
    assert not (tmp_path / "x").exists()


def test_ctrl_c_during_imports_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr("pml_ext_train.cli.app.app_for", Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr(sys, "argv", ["pml-ext", "list"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "pml-ext: stopped by SIGINT before the command began\n"


# Commands of plugins


COMMAND = """
    from pml_ext.plugin import Command, hookimpl

    @hookimpl
    def pml_ext_commands():
        return {{"{name}": Command("{module}.tool:{name}", "Greets {module}.")}}
"""
GREETING = """
from typing import Annotated
from typer import Option

def {name}(loud: Annotated[bool, Option("--loud", help="Shout.")] = False) -> None:
    print("HELLO" if loud else "hello", "from {module}")
"""


@pytest.fixture
def install_command(install_plugin):
    """Install a plugin with one command, whose module has the given source."""

    def install(module, name="greet", tool=GREETING):
        package = install_plugin(module, COMMAND.format(name=name, module=module))
        (package / "tool.py").write_text(tool.format(name=name, module=module))
        return package

    return install


@pytest.mark.usefixtures("isolated_registry")
def test_a_plugin_adds_a_command(install_command, pml_ext_command):
    install_command("greeter")
    sys.modules.pop("pml_ext_search.commands", None)
    assert "Greets greeter." in pml_ext_command("--help").stdout
    assert not {"greeter.tool", "pml_ext_search.commands"} & sys.modules.keys()  # the list imports no command
    told = pml_ext_command("greet", "--loud")
    assert (told.returncode, told.stdout) == (0, "HELLO from greeter\n")
    assert "--loud" in pml_ext_command("greet", "--help").stdout


@pytest.mark.usefixtures("isolated_registry")
def test_a_command_that_cannot_be_imported_is_named(install_command, pml_ext_command):
    install_command("brokenone", tool="import nothing_of_that_name\n")
    told = pml_ext_command("greet")
    assert told.returncode == 2
    assert "the command 'greet' of the plugin 'brokenone' cannot be imported: ModuleNotFoundError" in told.stderr
    assert "PML_EXT_BLOCK=brokenone" in told.stderr
    assert pml_ext_command("plugins").returncode == 1  # it imports what others name as text
    assert "greet" in pml_ext_command("--help").stdout


@pytest.mark.usefixtures("isolated_registry")
def test_a_name_of_two_plugins_is_refused(install_command, pml_ext_command):
    install_command("first")
    install_command("second")
    told = pml_ext_command("greet")
    assert told.returncode == 2
    assert "'greet' is claimed by two plugins; use 'first:greet' or 'second:greet'" in told.stderr
    assert pml_ext_command("second:greet").stdout == "hello from second\n"
    assert "first:greet" in pml_ext_command("--help").stdout


@pytest.mark.usefixtures("isolated_registry")
def test_our_commands_cannot_be_replaced(install_command, pml_ext_command):
    install_command("thief", name="report")
    assert "Redraw the report" in pml_ext_command("report", "--help").stdout
    assert pml_ext_command("thief:report").stdout == "hello from thief\n"


SHIPPED = [name for name, (_, command) in registry.commands().items() if command.function.startswith("pml_ext_")]


@pytest.mark.usefixtures("isolated_registry")
@pytest.mark.parametrize("name", SHIPPED)
def test_help_has_examples_that_can_be_typed(pml_ext_command, name):
    shown = pml_ext_command(name, "--help").stdout.partition("Examples:\n")[2]
    examples = [shlex.split(line) for line in shown.splitlines() if line.strip()]
    assert len(examples) >= 2
    command = typer.main.get_command(app_for([name])).get_command(None, name)
    for program, called, *arguments in examples:
        assert (program, called) == ("pml-ext", name)
        command.make_context(name, arguments)  # raises for an option that the command does not have


@pytest.mark.usefixtures("isolated_registry")
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("line", "completed"),
    [("pml-ext exp", "export"), ("pml-ext query --ra", "--radius"), ("pml-ext list mi", "miners")],
)
def test_shells_complete_commands_and_options(pml_ext_command, shell, line, completed):
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    if shell != "bash":
        words = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert completed in pml_ext_command(_PML_EXT_COMPLETE=f"complete_{shell}", **words).stdout


# Shared options


SHARED = {
    "RunFolder": "run",
    "DataFolder": "data",
    "OnDevice": "device",
    "AsJson": "as_json",
    "Verbose": "verbose",
    "Overrides": "overrides",
    "Workers": "workers",
    "StoreFolder": "store",
    "RayAddress": "ray_address",
}


@pytest.mark.parametrize(("option", "parameter"), SHARED.items())
def test_commands_share_name_and_help_of_an_option(option, parameter):
    annotation = getattr(options, option)
    hints = {}
    for name, (_, command) in registry.commands().items():
        hints[name] = typing.get_type_hints(command.load(), include_extras=True)
    own = {name: each[parameter] for name, each in hints.items() if parameter in each}
    assert own, option
    assert {name for name, hint in own.items() if hint == annotation}, option
    kind = type(annotation.__metadata__[0])  # bench has an option of a recipe where others have an argument
    alike = [hint.__metadata__[0] for hint in own.values() if isinstance(hint.__metadata__[0], kind)]
    assert len({each.param_decls for each in alike}) == 1, option


def test_an_unknown_device_is_refused(pml_ext_command, tmp_path):
    done = pml_ext_command("train", "cbml/digits", "--out", tmp_path / "x", "--device", "gpu")
    assert done.returncode == 2
    assert "'--device': 'gpu' is not one of 'auto', 'cpu', 'cuda', 'mps', 'xpu'" in " ".join(done.stderr.split())
    assert not (tmp_path / "x").exists()


# Progress and results


QUICK = [
    "--set=evaluation.figures=few",
    "--set=schedule.epochs=2",
    "--set=schedule.milestones=[1]",
    "--set=sampler.iterations=2",
    "--set=model.trunk.width=8",
]


# Each command is a fork of one process that has imported what it needs, which takes most of its time otherwise. Its
# garbage collector leaves alone what was imported: it would copy all pages of memory, and again at its end.
COMMANDS = """
import gc, os, sys
import record_keeper, sklearn.neighbors, torchvision.transforms.v2
import pml_ext_train.launch.launch, pml_ext_train.results.finish
from pml_ext_train.cli import main

pml_ext_train.results.finish.write_run_report = lambda *_: None  # as the fixture without_report

gc.freeze()
place, streams, *arguments = sys.argv[1:]
for stream in streams.split(","):
    for number in (1, 2):  # the second time, the folder exists
        child = os.fork()
        if child == 0:
            os.dup2(os.open(f"{place}/{stream}-{number}.json", os.O_WRONLY | os.O_CREAT), 1)
            os.dup2(int(stream), 2)
            sys.argv = ["pml-ext", *arguments, "--out", f"{place}/{stream}"]
            main()
            sys.exit()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
gc.unfreeze()
"""


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
def test_messages_that_cannot_be_written_end_no_run(tmp_path):
    full_disk = os.open("/dev/full", os.O_WRONLY)
    reader, no_reader = os.pipe()
    os.close(reader)
    streams = [full_disk, no_reader]
    line = ["train", "cbml/digits", "--quick", "--device", "cpu", "--json", *QUICK]
    command = [sys.executable, "-c", COMMANDS, str(tmp_path), f"{full_disk},{no_reader}", *line]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, pass_fds=streams)
    for stream in streams:
        os.close(stream)
        assert json.loads((tmp_path / f"{stream}-1.json").read_text())["after"]
        assert (tmp_path / f"{stream}-2.json").read_bytes() == b""
    assert done.stdout.split() == ["0", "2"] * 2


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_alone_has_a_bar(terminal):
    written = io.StringIO()
    with Progress(Console(file=written, force_terminal=terminal, width=100)) as listener:
        listener.iteration(1, 1, 5, 0.25)
        listener._bar.refresh()
        listener.warn("careful")
    assert ("epoch 1: loss 0.2500" in written.getvalue()) is terminal
    assert any("warning: careful" in line for line in written.getvalue().splitlines())


def test_a_warning_of_several_runs_is_written_once(capsys):
    with Progress() as bar:
        for text in ("one", "two", "one"):
            bar.warn(text)
    assert capsys.readouterr().err.splitlines() == ["warning: one", "warning: two"]


@pytest.mark.parametrize("width", [40, 80])
def test_paths_in_tables_stay_on_one_line(capsys, width):
    path = f"photographs of birds/{'a' * 70}.jpg"
    text = "a text that is longer than the terminal is wide and is therefore folded to several lines"
    print_table(["image", "distance", ""], [[path, "0.5", text]], right=[1], width=width)
    assert capsys.readouterr().out.splitlines()[2].startswith(f"{path}  ")
    print_table(["name", ""], [["cbml/digits", text]], width=width)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= width


def test_train_writes_a_table_on_stdout_alone(pml_ext_command, tmp_path):
    done = pml_ext_command("train", "cbml/digits", "--out", str(tmp_path / "a"), "--device", "cpu", *QUICK)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "cbml/digits, %"
    assert re.split(r" {2,}", lines[1].strip()) == [
        "raw pixels",
        "untrained network",
        "trained network",
        "trained network, training images",
    ]
    assert [line for line in lines if line.startswith("Recall@1 ")]
    assert lines[-1] == f"report: {tmp_path}/a/report.html"
    assert re.search(
        r"epoch 1 of 2: loss \d\.\d{4}, \d+ images/s, 0:00:\d\d left\nepoch 2 of 2: .* 0:00:00 left\n", done.stderr
    ), done.stderr


@pytest.mark.usefixtures("without_report")
def test_train_writes_json_on_stdout_alone(pml_ext_command, tmp_path):
    done = pml_ext_command(
        "train",
        "cbml/digits",
        "--out",
        str(tmp_path / "b"),
        "--json",
        "--seeds",
        "2",
        *QUICK,
        "--set=evaluation.baselines=false",
    )
    value = json.loads(done.stdout)
    assert value["summary"]["cbml/digits"]["after"]["nmi"]["mean"] > 0
    assert len(value["runs"]) == 2


PHASES = ("raw", "frozen", "pca", "before", "head", "blocks", "after", "features", "training", "learned_metric")
NAMES = ("recall_at_1", "r_precision", "map_at_r", "nmi_majority", "f1")


def result(recipe="fit/photographs-pretrained/then-all", phases=PHASES, **more):
    metrics = {phase: dict.fromkeys(NAMES, 1 - place / 64) for place, phase in enumerate(phases)}
    return {"recipe": recipe, "seed": 0, "folder": "run", "seconds": {"train": 1.0}, **metrics, **more}


@pytest.mark.parametrize("runs", [1, 3])
def test_a_table_fits_into_80_columns(monkeypatch, capsys, runs):
    monkeypatch.setattr("pml_ext_train.cli.output.WIDE", 80)
    print_results([result() for _ in range(runs)], None, as_json=False, quick=True)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    values = " ".join(lines).split()
    for place in range(len(PHASES)):  # whole numbers, each in every metric
        assert values.count(f"{100 - 100 * place / 64:.1f}") >= len(NAMES)
    words = {word for line in lines for word in line.split()}
    assert {"untrained", "embeddings", "shortlist"} & words == {"untrained"}
    assert {"features", "network,", "images", "Recall@1"} <= words


def test_a_run_without_training_has_no_equal_columns(capsys):
    same = {"before": {"recall_at_1": 0.5}, "frozen": {"recall_at_1": 0.5}, "after": {"recall_at_1": 0.5}}
    about = result("r", (), raw={"recall_at_1": 0.25}, training={"recall_at_1": 0.75}, epochs=0, **same)
    print_results([about], None, as_json=False, quick=True)
    title, heads, _, row = capsys.readouterr().out.splitlines()[:4]
    assert title == "r, %"
    assert [head.strip() for head in heads.split("   ") if head.strip()] == [
        "raw pixels",
        "frozen trunk",
        "features of training images",
    ]
    assert row.split() == ["Recall@1", "25.0", "50.0", "75.0"]


@pytest.mark.parametrize(
    ("about", "titles"),
    [
        ({"raw": 1.0, "frozen": 1.0, "after": 1.0}, ["raw pixels", "frozen trunk"]),  # pixels are no features
        ({"raw": 1.0, "after": 1.0, "training": 1.0, "input": "vectors"}, ["raw vectors"]),
        ({"after": 0.5, "training": 1.0}, ["features, nothing trained", "features of training images"]),
    ],
)
def test_columns_of_what_is_taken_as_it_is(about, titles):
    metrics = {"epochs": 0}
    for phase, value in about.items():
        metrics[phase] = value if phase == "input" else {"recall_at_1": value}
    assert list(shown_phases(metrics).values()) == titles


def test_a_report_path_stays_on_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pml_ext_train.cli.output.WIDE", 40)  # columns, as of a narrow terminal
    folder = tmp_path / "a folder with a name of several words"
    folder.mkdir()
    (folder / "report.html").touch()
    print_results(
        [{"recipe": "cbml/digits", "after": {"recall_at_1": 0.5}, "folder": str(folder)}],
        None,
        as_json=False,
        quick=True,
    )
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {folder}/report.html"
