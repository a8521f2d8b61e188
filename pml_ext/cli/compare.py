"""``pml-ext compare``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError

if TYPE_CHECKING:
    from ..experiment.comparing import Difference, Group

_METRICS = ["recall_at_1", "map_at_r", "nmi"]


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Finished runs, or folders that hold such.")],
    metric: Annotated[
        list[str] | None, typer.Option(help="What to compare (default recall_at_1, map_at_r and nmi); repeatable.")
    ] = None,
    phase: Annotated[
        str, typer.Option(help="before, after (training), training (images), learned_metric, shortlist, raw.")
    ] = "after",
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Compare finished runs: mean and spread of each recipe, and the paired difference of each from the first.

    Runs of one recipe with the same settings are one row. Differences are of runs with the same seed; p is of the
    two-sided paired t-test, as it is: among twenty rows that do not differ, one has p < 0.05.
    """
    from ..experiment.comparing import difference, groups_below
    from .output import print_json, print_table

    groups = groups_below(runs)
    metrics = metric or _METRICS
    _check(groups, phase, metrics)
    first = groups[0]
    differences = [
        {name: difference(first.values(phase, name), group.values(phase, name)) for name in metrics}
        for group in groups[1:]
    ]
    if as_json:
        print_json(
            {
                "phase": phase,
                "recipes": [_as_dict(group, phase, metrics) for group in groups],
                "differences_from": first.name,
                "differences": [
                    {"recipe": group.name, **{name: _plain(value) for name, value in mine.items()}}
                    for group, mine in zip(groups[1:], differences, strict=True)
                ],
            }
        )
        return
    columns = [f"{phase}, %, mean ± std", "seeds", *metrics]
    rows = [[group.name, str(len(group.runs)), *(_spread(group, phase, name) for name in metrics)] for group in groups]
    print_table(columns, rows, right=range(1, len(columns)))
    if differences:
        columns = [f"less {first.name}", "pairs", *(word for name in metrics for word in (name, "p"))]
        rows = []
        for group, mine in zip(groups[1:], differences, strict=True):
            cells = [cell for name in metrics for cell in _cells(mine[name])]
            rows.append([group.name, str(mine[metrics[0]].pairs), *cells])
        print_table(columns, rows, right=range(1, len(columns)), title="")


def _check(groups: list[Group], phase: str, metrics: list[str]) -> None:
    """Refuses a phase or a metric that no run has."""
    run = next(iter(groups[0].runs.values()))
    phases = [name for name, value in run.items() if isinstance(value, dict) and "recall_at_1" in value]
    if phase not in phases:
        raise ConfigError(f"--phase {phase}: {groups[0].name} has {', '.join(phases)}")
    known = [name for name, value in run[phase].items() if isinstance(value, (int, float))]
    for name in metrics:
        if name not in known:
            raise ConfigError(f"--metric {name}: {groups[0].name} has {', '.join(known)}")


def _spread(group: Group, phase: str, metric: str) -> str:
    from ..experiment.runs import spread
    from .output import mean_and_std

    values = group.values(phase, metric)
    return mean_and_std(spread([*values.values()])) if values else ""


def _cells(mine: Difference) -> tuple[str, str]:
    if not mine.pairs:
        return "", ""
    std = f" ± {100 * mine.std:.1f}" if math.isfinite(mine.std) else ""
    return f"{100 * mine.mean:+.1f}{std}", f"{mine.p:.3f}" if math.isfinite(mine.p) else "-"


def _as_dict(group: Group, phase: str, metrics: list[str]) -> dict[str, Any]:
    from ..experiment.runs import spread

    values = {name: [*group.values(phase, name).values()] for name in metrics}
    about = {
        name: {**(spread(mine) if mine else {"mean": None, "std": None}), "values": mine}
        for name, mine in values.items()
    }
    return {"recipe": group.name, "seeds": sorted(group.runs), **about}


def _plain(mine: Difference) -> dict[str, float | int | None]:
    return {"mean": _finite(mine.mean), "std": _finite(mine.std), "p": _finite(mine.p), "pairs": mine.pairs}


def _finite(value: float) -> float | None:
    """A number as JSON has it, which knows no NaN."""
    return value if math.isfinite(value) else None
