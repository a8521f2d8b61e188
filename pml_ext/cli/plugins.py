"""``pml-ext plugins``."""

from __future__ import annotations

from typing import Annotated

import typer


def plugins(as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False) -> None:
    """List the plugins found, those that are broken or left out included."""
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
    else:
        rows = [[r.name, r.distribution, r.version, r.module, r.status, r.error] for r in records]
        print_table(["name", "distribution", "version", "module", "status", "why"], rows)
    if any(record.status == "broken" for record in records):
        raise typer.Exit(1)
