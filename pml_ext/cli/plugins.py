"""``pml-ext plugins``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

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
    from .output import print_json, print_table

    with warnings.catch_warnings():  # the table says the same
        warnings.simplefilter("ignore", PluginWarning)
        records = registry.plugins()
    if as_json:
        print_json([dataclasses.asdict(record) for record in records])
    elif verbose:
        _print_all(records)
    else:
        rows = [[r.name, r.distribution, r.version, r.module, r.status, r.error] for r in records]
        print_table(["name", "distribution", "version", "module", "status", "why"], rows)
    if any(record.status == "broken" for record in records):
        raise typer.Exit(1)


def _print_all(records: list[PluginRecord]) -> None:
    from .output import stdout

    for record in records:
        lines = [
            f"{record.name}: {record.distribution} {record.version}, module {record.module}, {record.status}",
            f"  hooks       {', '.join(record.hooks) or 'none'}",
            f"  components  {record.components}",
            f"  seconds     {record.seconds:.3f}",
            *[f"  clash       {clash}" for clash in record.clashes],
            *[f"  {line}" for line in record.traceback.splitlines()],
        ]
        stdout().print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
