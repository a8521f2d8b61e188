"""All commands, mounted. Nothing here imports torch; a command does when it runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..errors import PmlExtError, one_line
from .bench import bench
from .check import check
from .compare import compare
from .data import data
from .listing import list_names
from .plugins import plugins
from .report import report
from .retrieve import cluster, embed, export, index, query
from .scaffold import new_plugin
from .show import show
from .train import train


class _Commands(TyperGroup):
    """The commands; typer takes any EOFError for the end of what a user types, and says "Aborted!" and nothing else."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except EOFError as error:
            raise PmlExtError(f"{one_line(error)} (pml-ext --debug ... shows where)") from error


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
    help="More methods for pytorch-metric-learning: list them, train them, measure them, use what was trained.",
)
app.command("train")(train)
app.command("report")(report)
app.command("compare")(compare)
app.command("list")(list_names)
app.command("show")(show)
app.command("plugins")(plugins)
app.command("data")(data)
app.command("bench")(bench)
app.command("check")(check)
app.command("new-plugin")(new_plugin)
for command in (embed, index, query, cluster, export):
    app.command(command.__name__)(command)


def _version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        typer.echo(f"pml-ext {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options of all commands; ``--debug`` is acted on in ``main``."""
