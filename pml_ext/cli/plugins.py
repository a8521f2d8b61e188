"""``pml-ext plugins`` and ``pml-ext new-plugin``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .output import print_json, print_table, stdout

if TYPE_CHECKING:
    from ..plugins import PluginRecord


def plugins(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show hooks, components, clashes, seconds, and where one broke.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON, with all that --verbose shows.")] = False,
) -> None:
    """List the plugins found, broken ones and ones left out included; exit code 1 if one is broken."""
    import dataclasses
    import warnings

    from .. import registry
    from ..errors import PluginWarning

    with warnings.catch_warnings():  # the table says the same
        warnings.simplefilter("ignore", PluginWarning)
        records = registry.plugins()
    if as_json:
        print_json([dataclasses.asdict(record) for record in records])
    elif verbose:
        stdout().print("\n".join(map(_details, records)), soft_wrap=True)
    else:
        rows = [[r.name, r.distribution, r.version, r.module, r.status, r.error] for r in records]
        print_table(["name", "distribution", "version", "module", "status", "why"], rows)
    if any(record.status == "broken" for record in records):
        raise typer.Exit(1)


def _details(record: PluginRecord) -> str:
    lines = [
        f"{record.name}: {record.distribution} {record.version}, module {record.module}, {record.status}",
        f"  hooks       {', '.join(record.hooks) or 'none'}",
        f"  components  {record.components}",
        f"  seconds     {record.seconds:.3f}",
        *[f"  clash       {clash}" for clash in record.clashes],
        *[f"  {line}" for line in record.traceback.splitlines()],
    ]
    return "\n".join(lines)


def new_plugin(
    name: Annotated[str, typer.Argument(help="Of the package, its entry point and its loss: kebab-case, my-loss.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The folder to write (default NAME).")] = None,
) -> None:
    """Write the package of a new plugin: a loss, a recipe, and tests that pass as written."""
    from ..scaffold import new_plugin as write

    for path in write(name, out):
        stdout().print(str(path))
    stdout().print(f"next: cd {out or name}; pip install -e .; pytest; pml-ext check {name.replace('-', '_')}")
