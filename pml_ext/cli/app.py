"""The Typer app with all commands. This module does not import torch; a command does when it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from typer import Option

from pml_ext_compare.commands import compare, probe
from pml_ext_search.commands import browse, cluster, embed, export, index, query

from .bench import bench
from .listing import data, list_names, show
from .plugins import check, new_plugin, plugins
from .train import report, train

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
    help="Train, compare and use embeddings with the methods of pml_ext and pytorch-metric-learning. A recipe is a "
    "TOML file that describes a training; a run is the folder that the training writes. Start with: pml-ext train "
    "cbml/digits",
)
COMMANDS: list[Callable[..., None]] = [train, report, compare, show, plugins, data, bench, check, new_plugin]
COMMANDS += [probe, embed, index, query, cluster, browse, export]
app.command("list")(list_names)
for command in COMMANDS:
    app.command()(command)


def _version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        typer.echo(f"pml-ext {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[bool, Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Options of all commands; ``--debug`` is acted on in ``main``."""
