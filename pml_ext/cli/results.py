"""The results of runs on stdout: a table of metrics, or of means and deviations, and sentences on them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .output import mean_and_std, print_json, print_table, say, stdout

if TYPE_CHECKING:
    from ..training.launch import FailedRunsError


def print_runs(results: list[dict[str, Any]], failed: FailedRunsError | None, as_json: bool, quick: bool) -> None:
    """Write the results of the runs on stdout, as tables or as JSON."""
    from ..training.summary import summarize

    verdicts = [result.pop("verdict", "") for result in results]
    if as_json:
        _print_as_json(results, failed)
        return
    if not results:
        return
    if len(results) == 1 and failed is None:
        _print_metrics(results[0])
    else:
        _print_summary(results, summarize(results))
    _print_verdicts(results, verdicts)
    if not quick:
        _say_if_tests_took_longer(results)
    for result in results:
        report_file = Path(result["folder"]) / "report.html"
        if report_file.exists():
            stdout().print(f"report: {report_file}", soft_wrap=True)


def _print_as_json(results: list[dict[str, Any]], failed: FailedRunsError | None) -> None:
    from ..training.summary import summarize

    if len(results) == 1 and failed is None:
        print_json(results[0])
        return
    about: dict[str, Any] = {"runs": results, "summary": summarize(results)}
    if failed is not None:
        about["failures"] = failed.failures
    print_json(about)


def _say_if_tests_took_longer(results: list[dict[str, Any]]) -> None:
    """Say how to leave out tests, if they took longer than training."""
    train_seconds = 0.0
    all_seconds = 0.0
    for result in results:
        train_seconds += result["seconds"]["train"]
        all_seconds += sum(result["seconds"].values())
    test_seconds = all_seconds - train_seconds
    if test_seconds > train_seconds:
        times = f"tests took {test_seconds:.0f} s, training {train_seconds:.0f} s"
        say(f"{times}: --quick leaves out the tests before training")


def _print_verdicts(results: list[dict[str, Any]], verdicts: list[str]) -> None:
    """Say which runs are behind their untrained networks, and what fine-tuning has brought."""
    for result, text in zip(results, verdicts, strict=True):
        if text and len(results) > 1:
            text = f"{result['folder']}: {text}"
        if text:
            stdout().print(text, soft_wrap=True)


def _print_metrics(metrics: dict[str, Any]) -> None:
    from ..evaluation.metrics import title_of
    from ..training.verdict import phase_titles

    names = list(metrics["after"])
    rows = []
    for phase, label in phase_titles(metrics.get("input", "images")).items():
        if phase not in metrics:
            continue
        cells = []
        for name in names:
            value = metrics[phase].get(name)
            cells.append("" if value is None or math.isnan(value) else f"{100 * value:.1f}")
        rows.append([label, *cells])
    columns = [f"{metrics['recipe']}, %", *map(title_of, names)]
    print_table(columns, rows, right=range(1, len(columns)))


def _print_summary(results: list[dict[str, Any]], summary: dict[str, Any]) -> None:
    from ..evaluation.metrics import title_of
    from ..training.verdict import phase_titles

    names = list(results[0]["after"])
    rows = []
    for recipe, phases in summary.items():
        of_recipe = [result for result in results if result["recipe"] == recipe]
        titles = phase_titles(of_recipe[0].get("input", "images"))
        for phase, values in phases.items():
            cells = []
            for name in names:
                cells.append(mean_and_std(values[name]) if name in values else "")
            rows.append([recipe, titles[phase], str(len(of_recipe)), *cells])
    columns = ["recipe", "%, mean ± std", "runs", *map(title_of, names)]
    print_table(columns, rows, right=range(2, len(columns)))
