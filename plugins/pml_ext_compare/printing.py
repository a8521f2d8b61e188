"""A comparison as tables and sentences on stdout."""

import itertools
from pathlib import Path
from typing import Any

from pml_ext.evaluation import title_of
from pml_ext_train.cli import mean_and_std, print_table, stdout
from pml_ext_train.report import percent

from .tables import best_first, mean_std, remarks


def print_comparison(result: dict[str, Any], page: Path | None) -> None:
    """Print a comparison."""
    _print_rows(result)
    if result["differences"]:
        _print_differences(result)
    lines = [*result["sentences"], *remarks(result)]
    if result["best"]:
        lines.insert(0, result["best"])
    if page is not None:
        lines.append(f"page: {page}")
    for line in lines:
        stdout().print(line, soft_wrap=True)


def _print_rows(result: dict[str, Any]) -> None:
    metrics = result["metrics"]
    was_tuned = any(row["trials"] for row in result["recipes"])
    columns = [f"{result['phase']}, %, mean ± std", "seeds", *map(title_of, metrics)]
    if was_tuned:
        columns += ["trials", "seconds", "selection"]
    right = [number for number, title in enumerate(columns) if number > 0 and title != "selection"]  # not of texts

    lines = []
    for row in best_first(result["recipes"], metrics[0]):
        cells = [row["recipe"], str(len(row[metrics[0]]["values"]))]
        cells += [mean_and_std(row[metric]) if row[metric]["values"] else "" for metric in metrics]
        if was_tuned:
            cells += [str(row["trials"]), f"{row['seconds'] or 0:.1f}", row["selection"]]
        lines.append(cells)
    print_table(columns, lines, right=right)


def _print_differences(result: dict[str, Any]) -> None:
    metrics = result["metrics"]
    columns = [f"difference from {result['differences_from']}", "pairs"]
    for metric in metrics:
        columns += [title_of(metric), "95 %", "p"]

    lines = []
    for row in result["differences"]:
        cells = itertools.chain.from_iterable(_difference_cells(row[metric]) for metric in metrics)
        lines.append([row["recipe"], str(row[metrics[0]]["pairs"]), *cells])
    print_table(columns, lines, right=range(1, len(columns)))


def _difference_cells(difference: dict[str, Any]) -> tuple[str, str, str]:
    """Difference, interval and p-value; "-" without a test."""
    if not difference["pairs"]:
        return "", "", ""
    low, high = (percent(difference[end], "+") for end in ("low", "high"))
    p = "-" if difference["p"] is None else f"{difference['p']:.3f}"
    return mean_std(difference, "+"), f"{low} to {high}" if low else "", p
