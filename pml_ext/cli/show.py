"""``pml-ext show``."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def show(
    name: Annotated[
        str,
        typer.Argument(help="A component, recipe, table, data set or trunk: cbml, cbml/digits, cbml/7."),
    ],
    kind: Annotated[str | None, typer.Option(help="loss, miner, ...: where two kinds share the name.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Show what a name stands for: equation, settings with defaults, paper, recipes; a table as printed."""
    from ..description import describe
    from .output import print_json, print_table, stdout

    described = describe(name, kind)
    if as_json:
        print_json(described)
        return
    console = stdout()
    for index, item in enumerate(described):
        if index:
            console.print()
        console.print(f"{item['name']}  ({item['kind']}{_of(item)})")
        if item["text"]:
            console.print()
            console.print(item["text"])
        if item.get("table", {}).get("rows"):
            console.print()
            print_table(item["table"]["columns"], item["table"]["rows"])
        if item["settings"]:
            console.print()
            rows = [[s["name"], s["default"], s["text"]] for s in item["settings"]]
            print_table(["setting", "default", "meaning"], rows)
        for label in ("capabilities", "paper", "recipes"):
            if item[label]:
                console.print()
                value = item[label]
                console.print(f"{label}: {value if isinstance(value, str) else ', '.join(value)}")


def _of(item: dict[str, Any]) -> str:
    return f", {item['class']}" if item["class"] else ""
