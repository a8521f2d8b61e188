"""The results of runs, printed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pml_ext.errors import counted

from .output import mean_and_std, print_json, print_table, say, stdout

if TYPE_CHECKING:
    from ..launch.launch import FailedRunsError


def print_results(results: list[dict[str, Any]], failed: FailedRunsError | None, as_json: bool, quick: bool) -> None:
    """Write the results of runs on stdout, as tables or as JSON."""
    from ..records.summary import summarize

    verdicts = [result.pop("verdict", "") for result in results]
    is_alone = len(results) == 1 and failed is None
    if as_json and is_alone:
        print_json(results[0])
    elif as_json:
        failures = {} if failed is None else {"failures": failed.failures}
        print_json({"runs": results, "summary": summarize(results), **failures})
    if as_json or not results:
        return
    if is_alone:
        _print_metrics(results[0])
    else:
        _print_summary(results, summarize(results))
    for result, text in zip(results, verdicts, strict=True):
        if text:
            folder = f"{result['folder']}: " if len(results) > 1 else ""
            stdout().print(folder + text, soft_wrap=True)
    if not quick:
        _say_if_tests_took_longer(results)
    for result in results:
        report_file = Path(result["folder"]) / "report.html"
        if report_file.exists():
            stdout().print(f"report: {report_file}", soft_wrap=True)


def _say_if_tests_took_longer(results: list[dict[str, Any]]) -> None:
    train_seconds = sum(result["seconds"]["train"] for result in results)
    test_seconds = sum(sum(result["seconds"].values()) for result in results) - train_seconds
    if test_seconds > train_seconds > 0:
        say(f"tests took {test_seconds:.0f} s, training {train_seconds:.0f} s; --quick skips the tests before training")


def _print_metrics(metrics: dict[str, Any]) -> None:
    """Write a row per metric and a column per phase."""
    from ..results.verdict import shown_phases

    if not metrics["after"]:  # of data without labels
        images = metrics["images"]["train"]["images"]
        stdout().print(f"{metrics['recipe']}: {images:,} {metrics['input']}, without labels; nothing was tested")
        return

    def cell(phase: str, name: str) -> str:
        value = metrics[phase].get(name)
        return "" if value is None or math.isnan(value) else f"{100 * value:.1f}"

    _print_phases(f"{metrics['recipe']}, %", shown_phases(metrics), metrics["after"], cell)


def _print_summary(results: list[dict[str, Any]], summary: dict[str, Any]) -> None:
    """Write mean and standard deviation for each recipe."""
    from ..results.verdict import shown_phases

    for recipe, values in summary.items():
        of_recipe = [result for result in results if result["recipe"] == recipe]

        def cell(phase: str, name: str, values: Any = values) -> str:
            return mean_and_std(values[phase][name]) if name in values[phase] else ""

        title = f"{recipe}, {counted(len(of_recipe), 'run')}, %, mean ± std"
        _print_phases(title, shown_phases(of_recipe[0]), of_recipe[0]["after"], cell)


def _print_phases(title: str, phases: dict[str, str], names: Iterable[str], cell: Callable[[str, str], str]) -> None:
    """Write a table of metrics by phase, split if it is too wide."""
    from pml_ext.evaluation.metrics import title_of

    rows = [[title_of(name), *(cell(phase, name) for phase in phases)] for name in names]
    stdout().print(title, soft_wrap=True)
    cell_width = max((len(text) for row in rows for text in row[1:]), default=0)
    # with the space between columns
    columns = [max(cell_width, *map(len, phase_title.split())) + 2 for phase_title in phases.values()]
    name_width = max(len(row[0]) for row in rows) + 2
    for first, last in _fitting(columns, stdout().width - name_width):
        titles = list(phases.values())[first:last]
        part = [[row[0], *row[1 + first : 1 + last]] for row in rows]
        print_table(["", *titles], part, right=range(1, len(titles) + 1))


def _fitting(widths: list[int], width: int) -> Iterator[tuple[int, int]]:
    """Yield first and last (exclusive) columns of tables that fit into a width."""
    first = 0
    for column in range(1, len(widths) + 1):
        if column == len(widths) or sum(widths[first : column + 1]) > width:
            yield first, column
            first = column
