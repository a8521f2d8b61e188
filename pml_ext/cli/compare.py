"""``pml-ext compare``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError
from .options import AsJson
from .output import mean_and_std, print_json, print_table

if TYPE_CHECKING:
    from ..experiment.comparing import Difference, Group

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
    from ..experiment.comparing import difference, groups_below

    groups, metrics = groups_below(runs), metric or _METRICS
    first, *others = groups
    _check(first, phase, metrics)
    differences = [
        {name: difference(first.values(phase, name), group.values(phase, name)) for name in metrics} for group in others
    ]
    if as_json:
        _print_json(groups, differences, phase, metrics)
        return
    columns = [f"{phase}, %, mean ± std", "seeds", *metrics]
    rows = [[group.name, str(len(group.runs)), *(_spread(group, phase, name) for name in metrics)] for group in groups]
    print_table(columns, rows, right=range(1, len(columns)))
    if differences:
        columns = [f"less {first.name}", "pairs", *(word for name in metrics for word in (name, "p"))]
        rows = [
            [group.name, str(mine[metrics[0]].pairs), *(cell for name in metrics for cell in _cells(mine[name]))]
            for group, mine in zip(others, differences, strict=True)
        ]
        print_table(columns, rows, right=range(1, len(columns)), title="")


def _check(group: Group, phase: str, metrics: list[str]) -> None:
    """Refuse a phase or a metric that a group does not have."""
    run = next(iter(group.runs.values()))
    phases = [name for name, value in run.items() if isinstance(value, dict) and "recall_at_1" in value]
    if phase not in phases:
        raise ConfigError(f"--phase {phase}: {group.name} has {', '.join(phases)}")
    known = [name for name, value in run[phase].items() if isinstance(value, (int, float))]
    for name in metrics:
        if name not in known:
            raise ConfigError(f"--metric {name}: {group.name} has {', '.join(known)}")


def _spread(group: Group, phase: str, metric: str) -> str:
    from ..experiment.launch import spread

    values = group.values(phase, metric)
    return mean_and_std(spread([*values.values()])) if values else ""


def _cells(mine: Difference) -> tuple[str, str]:
    if not mine.pairs:
        return "", ""
    std = f" ± {100 * mine.std:.1f}" if math.isfinite(mine.std) else ""
    return f"{100 * mine.mean:+.1f}{std}", f"{mine.p:.3f}" if math.isfinite(mine.p) else "-"


def _print_json(groups: list[Group], differences: list[dict[str, Difference]], phase: str, metrics: list[str]) -> None:
    from ..experiment.launch import spread

    recipes: list[dict[str, Any]] = []
    for group in groups:
        values = {name: [*group.values(phase, name).values()] for name in metrics}
        spreads = {name: spread(mine) if mine else {"mean": None, "std": None} for name, mine in values.items()}
        about = {name: {**spreads[name], "values": values[name]} for name in metrics}
        recipes.append({"recipe": group.name, "seeds": sorted(group.runs), **about})
    plain = [
        {
            "recipe": group.name,
            **{
                name: {"mean": _finite(d.mean), "std": _finite(d.std), "p": _finite(d.p), "pairs": d.pairs}
                for name, d in mine.items()
            },
        }
        for group, mine in zip(groups[1:], differences, strict=True)
    ]
    print_json({"phase": phase, "recipes": recipes, "differences_from": groups[0].name, "differences": plain})


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON knows no NaN
