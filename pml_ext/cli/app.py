"""The Typer app. Only the command that is called is imported; the others are known by name and summary."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Annotated

import typer
from typer import Option

from .. import registry
from ..errors import UnknownNameError


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """Return the app for the arguments of a call, with all commands of the layer and of plugins."""
    built = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
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
            built.command(name)(command.load(name, plugin))
        else:
            built.command(name, help=command.summary)(_not_called)
    return built


def _not_called() -> None:
    """Stand in for a command that was not called."""


def _version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        typer.echo(f"pml-ext {__version__}")
        raise typer.Exit


def options(
    debug: Annotated[bool, Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[bool, Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Options of all commands; ``--debug`` is acted on in ``main``."""
