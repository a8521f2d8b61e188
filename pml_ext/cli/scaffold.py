"""``pml-ext new-plugin``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def new_plugin(
    name: Annotated[str, typer.Argument(help="Of the package, its entry point and its loss: kebab-case, my-loss.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The folder to write (default NAME).")] = None,
) -> None:
    """Write the package of a new plugin: a loss, a recipe, and tests that pass as written."""
    from ..scaffold import new_plugin as write
    from .output import stdout

    for path in write(name, out):
        stdout().print(str(path))
    stdout().print(f"next: cd {out or name}; pip install -e .; pytest; pml-ext check {name.replace('-', '_')}")
