"""The command line: exit codes, one line for what is wrong, shared options, and commands of plugins."""

import json
import os
import shlex
import subprocess
import sys
import typing

import pytest
import typer

from pml_ext import registry
from pml_ext_train.cli import options
from pml_ext_train.cli.app import app_for

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
    done = pml_ext_command(_PML_EXT_COMPLETE=f"complete_{shell}", **words)
    assert completed in done.stdout


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


def commands():
    """``{name: {parameter: annotation}}`` of every command."""
    found = {}
    for name, (_, command) in registry.commands().items():
        found[name] = typing.get_type_hints(command.load(), include_extras=True)
    return found


@pytest.mark.parametrize(("option", "parameter"), SHARED.items())
def test_commands_share_name_and_help_of_an_option(option, parameter):
    annotation = getattr(options, option)
    own = {name: hints[parameter] for name, hints in commands().items() if parameter in hints}
    assert own, option
    same_text = {name for name, hint in own.items() if hint == annotation}
    assert same_text, option
    kind = type(annotation.__metadata__[0])  # bench has an option of a recipe where others have an argument
    alike = [hint.__metadata__[0] for hint in own.values() if isinstance(hint.__metadata__[0], kind)]
    assert len({each.param_decls for each in alike}) == 1, option


def test_an_unknown_device_is_refused(pml_ext_command, tmp_path):
    done = pml_ext_command("train", "cbml/digits", "--out", tmp_path / "x", "--device", "gpu")
    assert done.returncode == 2
    assert "'--device': 'gpu' is not one of 'auto', 'cpu', 'cuda', 'mps', 'xpu'" in " ".join(done.stderr.split())
    assert not (tmp_path / "x").exists()
