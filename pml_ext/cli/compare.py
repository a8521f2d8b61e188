"""``pml-ext compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .common import AsJson, mean_and_std, print_json, print_table

_METRICS = ["recall_at_1", "map_at_r", "nmi"]


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Finished runs, or folders that hold such.")],
    metric: Annotated[
        list[str] | None, typer.Option(help="A metric to compare (default recall_at_1, map_at_r and nmi); repeatable.")
    ] = None,
    phase: Annotated[
        str, typer.Option(help="before, after (training), training (images), learned_metric, shortlist, raw.")
    ] = "after",
    as_json: AsJson = False,
) -> None:
    """Compare finished runs: mean and spread of each recipe, and the paired difference of each from the first.

    Runs of one recipe with the same settings are one row. Differences are of runs with the same seed; p is of the
    two-sided paired t-test, as it is: among twenty rows that do not differ, one has p < 0.05.
    """
    from ..errors import ConfigError
    from ..experiment.comparing import difference, groups_below
    from ..experiment.launch import spread

    groups, metrics = groups_below(runs), metric or _METRICS
    first, *others = groups
    run = next(iter(first.runs.values()))
    phases = [name for name, value in run.items() if isinstance(value, dict) and "recall_at_1" in value]
    if phase not in phases:
        raise ConfigError(f"--phase {phase}: {first.name} has {', '.join(phases)}")
    known = [name for name, value in run[phase].items() if isinstance(value, (int, float))]
    for name in metrics:
        if name not in known:
            raise ConfigError(f"--metric {name}: {first.name} has {', '.join(known)}")
    recipes: list[dict[str, Any]] = []
    for group in groups:
        values = {name: [*group.values(phase, name).values()] for name in metrics}
        about = {name: (spread(mine) if mine else {"mean": None, "std": None}) for name, mine in values.items()}
        both = {name: {**about[name], "values": values[name]} for name in metrics}
        recipes.append({"recipe": group.name, "seeds": sorted(group.runs), **both})
    differences: list[dict[str, Any]] = []
    for group in others:
        found = {name: difference(first.values(phase, name), group.values(phase, name)) for name in metrics}
        differences.append({"recipe": group.name, **found})
    if as_json:
        print_json({"phase": phase, "recipes": recipes, "differences_from": first.name, "differences": differences})
        return
    columns = [f"{phase}, %, mean ± std", "seeds", *metrics]
    rows = [
        [
            each["recipe"],
            str(len(each["seeds"])),
            *(mean_and_std(each[name]) if each[name]["values"] else "" for name in metrics),
        ]
        for each in recipes
    ]
    print_table(columns, rows, right=range(1, len(columns)))
    if differences:
        columns = [f"less {first.name}", "pairs", *(word for name in metrics for word in (name, "p"))]
        rows = [
            [each["recipe"], str(each[metrics[0]]["pairs"]), *(cell for name in metrics for cell in _cells(each[name]))]
            for each in differences
        ]
        print_table(columns, rows, right=range(1, len(columns)))


def _cells(mine: dict[str, Any]) -> tuple[str, str]:
    if not mine["pairs"]:
        return "", ""
    std = "" if mine["std"] is None else f" ± {100 * mine['std']:.1f}"
    return f"{100 * mine['mean']:+.1f}{std}", "-" if mine["p"] is None else f"{mine['p']:.3f}"
