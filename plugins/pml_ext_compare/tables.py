"""Tables of a comparison: rows, differences and trials; LaTeX."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

from pml_ext.evaluation import SMALLER_IS_BETTER, title_of
from pml_ext_train.report import ReportTable, percent

_LATEX_ESCAPES = {
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
}


def rows_table(result: Mapping[str, Any]) -> ReportTable:
    """A row per recipe, the best first: means with 95 % intervals, and the paper's values."""
    metrics = result["metrics"]
    printed = [metric for metric in metrics if any(row[metric]["paper"] for row in result["recipes"])]
    cells = (row[metric]["paper"] for row, metric in itertools.product(result["recipes"], printed))
    same_data = all(value["same_data"] for value in itertools.chain.from_iterable(cells))
    rows = []
    for row in best_first(result["recipes"], metrics[0]):
        name = row["recipe"]
        if row["unequal_settings"]:
            name += " *"
        measured = [_interval(row[metric]) for metric in metrics]
        quoted = [", ".join(dict.fromkeys(value["text"] for value in row[metric]["paper"])) for metric in printed]
        seconds = "" if row["seconds"] is None else f"{row['seconds']:.1f}"
        seeds = str(len(row[metrics[0]]["values"]))
        rows.append([name, seeds, *measured, *quoted, str(row["trials"]), seconds, row["selection"]])

    titles = [*map(title_of, metrics), *(f"{title_of(metric)} in the paper" for metric in printed)]
    columns = ["recipe", "seeds", *titles, "trials", "seconds", "selection"]
    caption = "Mean over the seeds and its 95 % interval by Student's t, cut at 0 and 100; training seconds of one run."
    if not same_data:
        caption += " The papers' values are of their own data and networks."
    return ReportTable("Rows", columns, rows, caption)


def direction(metric: str) -> int:
    """1, or -1 for an error."""
    return -1 if metric in SMALLER_IS_BETTER else 1


def best_first(rows: list[dict[str, Any]], metric: str) -> list[dict[str, Any]]:
    """Rows sorted by the mean of a metric; rows without values last."""
    return sorted(rows, key=lambda row: goodness(metric, row[metric]["mean"]), reverse=True)


def goodness(metric: str, mean: float | None) -> float:
    """A number that is greater for better means."""
    return -math.inf if mean is None else direction(metric) * mean


def differences_table(result: Mapping[str, Any]) -> ReportTable:
    """The paired difference from the baseline, and its tests, per recipe and metric."""
    rows = [
        [row["recipe"], title_of(metric), *_difference_cells(row[metric])]
        for row, metric in itertools.product(result["differences"], result["metrics"])
    ]

    columns = ["difference from the baseline", "metric", "pairs", "difference"]
    columns += ["p", "p, Holm", "p, permutation", "P(better)", "pairs wanted"]
    caption = (
        f"Differences from {result['differences_from']}, paired by seed, in points. p: paired t-test; Holm-corrected "
        "over the rows; by sign flips. P(better): share of seeds better than the baseline, with a bootstrap interval, "
        "or Clopper-Pearson's where all seeds agree. Last: pairs to show such a difference with a probability of 80 %."
    )
    return ReportTable("Differences", columns, rows, caption)


def _difference_cells(difference: Mapping[str, Any]) -> list[str]:
    return [
        str(difference["pairs"]),
        _interval(difference, "+"),
        _p_value(difference["p"]),
        _p_value(difference["p_holm"]),
        _p_value(difference["p_permutation"]),
        _improvement(difference),
        _pairs_wanted(difference),
    ]


def _p_value(p: float | None) -> str:
    return "" if p is None else f"{p:.3g}"


def _improvement(difference: Mapping[str, Any]) -> str:
    if difference["better"] is None:
        return ""
    return "{better:.2f} [{better_low:.2f}, {better_high:.2f}]".format_map(difference)


def _pairs_wanted(difference: Mapping[str, Any]) -> str:
    if difference["p"] is None:
        return ""
    return "> 1000" if difference["wanted"] is None else str(difference["wanted"])


def tuning_table(about: Mapping[str, Any]) -> ReportTable:
    """A study's trials; the caption has ranges, importance and best values."""
    tuned_keys = list(about["ranges"])
    rows = []
    for trial in about["trials"]:
        values = [trial["value"], trial["seconds"], *map(trial["values"].get, tuned_keys)]
        rows.append([str(trial["number"]), trial["state"], *map(_value, values)])

    sentences = []
    for name in ("best", "importance"):
        if about[name]:
            texts = [f"{key} {_value(value)}" for key, value in about[name].items()]
            sentences.append(f"{name.capitalize()}: {', '.join(texts)}")
    ranges = []
    for key, range_ in about["ranges"].items():
        texts = [f"{name} {value}" for name, value in range_.items()]
        ranges.append(f"{key} {', '.join(texts)}")
    sentences.append(f"Ranges: {'; '.join(ranges)}")
    sentences.append(
        f"{about['sampler']} sampler, {about['pruner']} pruner, by {title_of(about['metric'])} of {about['chosen on']}"
    )
    caption = ". ".join(sentences) + "."
    columns = ["trial", "state", "value", "seconds", *tuned_keys]
    return ReportTable(f"Trials of {about['recipe']}", columns, rows, caption)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)


def remarks(result: Mapping[str, Any]) -> list[str]:
    """Unequal settings, seeds without a metric, and failed runs."""
    unequal = []
    lacking = []
    failed = []
    for row in result["recipes"]:
        unequal += [f"* {row['recipe']}: {text}" for text in row["unequal_settings"]]
        for metric in result["metrics"]:
            values = len(row[metric]["values"])
            seeds = len(row["seeds"])
            if values < seeds:
                lacking.append(f"{row['recipe']}: {values} of {seeds} seeds have a value of {title_of(metric)}")
        failed += [f"{name} failed: {error}" for name, error in row["errors"].items()]
    return [*unequal, *lacking, *failed]


def markdown_table(table: ReportTable) -> list[str]:
    """The lines of a table in Markdown."""
    rule = ["---"] * len(table.columns)
    rows = [[cell.replace("|", r"\|") for cell in row] for row in (table.columns, rule, *table.rows)]
    return [f"| {' | '.join(cells)} |" for cells in rows]


def latex_table(table: ReportTable) -> str:
    """A table for LaTeX with the package booktabs."""
    escapes = str.maketrans(_LATEX_ESCAPES)
    escaped = [[cell.translate(escapes) for cell in row] for row in (table.columns, *table.rows)]
    header, *body = [" & ".join(cells) + r" \\" for cells in escaped]
    begin = rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}"
    return "\n".join([begin, r"\toprule", header, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", ""])


def mean_std(about: Mapping[str, float | None], sign: str = "") -> str:
    """Mean and standard deviation in percent; the mean alone for one run."""
    deviation = "" if about["std"] is None else f" ± {percent(about['std'])}"
    return percent(about["mean"], sign) + deviation


def _interval(about: Mapping[str, float | None], sign: str = "") -> str:
    interval = "" if about["low"] is None else f" [{percent(about['low'], sign)}, {percent(about['high'], sign)}]"
    return percent(about["mean"], sign) + interval
