"""``pml-ext list``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ConfigError


class What(StrEnum):
    """What can be listed."""

    losses = "losses"
    miners = "miners"
    regularizers = "regularizers"
    distances = "distances"
    samplers = "samplers"
    reducers = "reducers"
    recipes = "recipes"
    tables = "tables"
    pipelines = "pipelines"
    datasets = "datasets"
    trunks = "trunks"


_RUNS = Path("runs")
_KINDS = {
    What.losses: "loss",
    What.miners: "miner",
    What.regularizers: "regularizer",
    What.distances: "distance",
    What.samplers: "sampler",
    What.reducers: "reducer",
}


def list_names(
    what: Annotated[What | None, typer.Argument(help="What to list; everything if left out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
    runs: Annotated[Path, typer.Option(help="With tables: the folder in which finished runs are counted.")] = _RUNS,
) -> None:
    """List losses, miners, regularizers, distances, samplers, reducers, recipes, tables, pipelines, data sets, trunks.

    Tables are the papers' tables: each has its recipes at the paper's scale and on small data, what has been run, and
    where there is no recipe, why.
    """
    from .output import print_json, print_table

    if runs != _RUNS and not (what is What.tables and runs.is_dir()):
        raise ConfigError(f"--runs {runs}: " + ("no such folder" if what is What.tables else "goes with tables"))
    if what is What.tables:
        _list_tables(runs, as_json)
        return
    listed = {each.value: _entries(each) for each in ([what] if what else What)}
    if as_json:
        print_json(listed if what is None else listed[what.value])
        return
    for name, entries in listed.items():
        rows = [[entry["name"], entry["class"], entry["from"], entry["summary"]] for entry in entries]
        print_table(["name", "class", "from", "summary"], rows, title=name if what is None else "")


def _list_tables(runs: Path, as_json: bool) -> None:
    """Prints the tables of papers."""
    from ..experiment.tables import tables
    from .output import print_json, print_table

    entries = tables(runs)
    if as_json:
        print_json(entries)
        return
    rows = []
    for entry in entries:
        run = [f"{number} {scale} in {runs}" for scale, number in entry["runs"].items() if number]
        run += ["small, in the README"] if entry["measured"] else []
        names = entry["recipes"]
        rows.append(
            [
                entry["name"],
                entry["title"],
                "\n".join(names["full"]) or entry["reason"],
                "\n".join(names["small"]),
                "\n".join(run),
            ]
        )
    print_table(["table", "what", "recipe, or why there is none", "small", "run"], rows)


def _entries(what: What) -> list[dict[str, Any]]:
    from .. import registry

    if what in _KINDS:
        return [
            {"name": registry.short_name(c), "class": c.cls.__name__, "from": c.plugin, "summary": c.summary}
            for c in registry.components(_KINDS[what])
        ]
    if what is What.tables:
        from ..experiment.tables import tables

        return [{"name": e["name"], "class": "", "from": e["paper"], "summary": e["title"]} for e in tables()]
    if what is What.recipes:
        return [
            {
                "name": name,
                "class": "",
                "from": name.partition("/")[0],
                "summary": _recipe_summary(name),
            }
            for name in registry.recipes()
        ]
    if what is What.pipelines:
        from ..experiment.recipe import pipelines

        lines = {name: file.read_text("utf-8").partition("\n")[0] for name, file in pipelines().items()}
        return [{"name": name, "class": "", "from": "pml_ext", "summary": line[2:]} for name, line in lines.items()]
    factories = registry.datasets() if what is What.datasets else registry.trunks()
    entries = [
        {"name": name, "class": "", "from": factory.__module__.partition(".")[0], "summary": _first_line(factory)}
        for name, factory in factories.items()
    ]
    if what is What.datasets:
        from ..data import PATH_FACTORIES

        for factory, wanted in PATH_FACTORIES.values():
            name = wanted.partition(",")[0]
            entries.append({"name": name, "class": "", "from": "pml_ext", "summary": _first_line(factory)})
    else:
        from ..models import TIMM, timm_trunk

        entries.append({"name": f"{TIMM}NAME", "class": "", "from": "pml_ext", "summary": _first_line(timm_trunk)})
    return entries


def _recipe_summary(name: str) -> str:
    from ..errors import PmlExtError
    from ..experiment.recipe import read_tables

    try:
        return str(read_tables(name).get("description", ""))
    except PmlExtError as error:
        return f"broken: {error}"


def _first_line(factory: Any) -> str:
    return next(iter((getattr(factory, "__doc__", None) or "").strip().splitlines()), "")
