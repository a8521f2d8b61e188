"""Commands that plugins add: found, imported when called, isolated, named."""

import shlex
import sys

import pytest
import typer

from pml_ext import registry
from pml_ext_train.cli.app import app_for

pytestmark = pytest.mark.usefixtures("isolated_registry")

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


def test_a_plugin_adds_a_command(install_command, pml_ext_command):
    install_command("greeter")
    sys.modules.pop("pml_ext_search.commands", None)
    assert "Greets greeter." in pml_ext_command("--help").stdout
    assert not {"greeter.tool", "pml_ext_search.commands"} & sys.modules.keys()  # the list imports no command
    told = pml_ext_command("greet", "--loud")
    assert (told.returncode, told.stdout) == (0, "HELLO from greeter\n")
    assert "--loud" in pml_ext_command("greet", "--help").stdout


def test_a_command_that_cannot_be_imported_is_named(install_command, pml_ext_command):
    install_command("brokenone", tool="import nothing_of_that_name\n")
    told = pml_ext_command("greet")
    assert told.returncode == 2
    assert "the command 'greet' of the plugin 'brokenone' cannot be imported: ModuleNotFoundError" in told.stderr
    assert "PML_EXT_BLOCK=brokenone" in told.stderr
    assert pml_ext_command("plugins").returncode == 1  # it imports what others name as text
    assert "greet" in pml_ext_command("--help").stdout


def test_a_name_of_two_plugins_is_refused(install_command, pml_ext_command):
    install_command("first")
    install_command("second")
    told = pml_ext_command("greet")
    assert told.returncode == 2
    assert "'greet' is claimed by two plugins; use 'first:greet' or 'second:greet'" in told.stderr
    assert pml_ext_command("second:greet").stdout == "hello from second\n"
    assert "first:greet" in pml_ext_command("--help").stdout


def test_our_commands_cannot_be_replaced(install_command, pml_ext_command):
    install_command("thief", name="report")
    assert "Redraw the report" in pml_ext_command("report", "--help").stdout
    assert pml_ext_command("thief:report").stdout == "hello from thief\n"


SHIPPED = [name for name, (_, command) in registry.commands().items() if command.function.startswith("pml_ext_")]


@pytest.mark.parametrize("name", SHIPPED)
def test_help_has_examples_that_can_be_typed(pml_ext_command, name):
    shown = pml_ext_command(name, "--help").stdout.partition("Examples:\n")[2]
    examples = [shlex.split(line) for line in shown.splitlines() if line.strip()]
    assert len(examples) >= 2
    command = typer.main.get_command(app_for([name])).get_command(None, name)
    for program, called, *arguments in examples:
        assert (program, called) == ("pml-ext", name)
        command.make_context(name, arguments)  # raises for an option that the command does not have


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
