"""The Typer app. Only the called command is imported."""

import contextlib
import inspect
import os
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup

from pml_ext import registry
from pml_ext.errors import UnknownNameError

COMPLETE = "_PML_EXT_COMPLETE"  # set by a shell that asks what could be typed next


class _Group(TyperGroup):
    """The commands; removes typer's "Value error, " from errors of options."""

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """Return the app for the arguments of a call, with all commands."""
    if COMPLETE in os.environ:  # bash sets one variable, zsh and fish set another
        words = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
        arguments = words.split()[1:]
    built = typer.Typer(
        cls=_Group,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        help="Train, compare and use embeddings with the methods of pml_ext and pytorch-metric-learning. A recipe is a "
        "TOML file that describes a training; a run is the folder that the training writes. Start with: pml-ext train "
        "cbml/digits",
    )
    built.callback()(options)
    commands = registry.commands()
    called = next((argument for argument in arguments if not argument.startswith("-")), "")
    if called and called not in commands:
        with contextlib.suppress(UnknownNameError):  # typer names an unknown command itself
            registry.find("command", called)  # raises PluginError for a name of two plugins
    for name, (plugin, command) in commands.items():
        if name == called:
            function = command.load(name, plugin)
            text, _, examples = (inspect.getdoc(function) or "").partition("\n\nExamples:\n")
            built.command(name, help=text, epilog=f"\b\nExamples:\n{examples}" if examples else None)(function)
        else:
            built.command(name, help=command.summary)(_not_called)
    return built


def _not_called() -> None:
    """Stand in for a command that was not called."""


def _version(wanted: bool) -> None:
    if wanted:
        from pml_ext import __version__

        typer.echo(f"pml-ext {__version__}")
        raise typer.Exit


def options(
    debug: Annotated[bool, Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[bool, Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Options of all commands; ``main`` handles ``--debug``."""
