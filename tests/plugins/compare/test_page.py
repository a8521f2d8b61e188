"""The files of a comparison: tables, curves, and queries side by side."""

import csv
import json

import pytest
import torch

from pml_ext_compare import page
from pml_ext_compare.comparisons import compare
from pml_ext_compare.groups import groups_below
from pml_ext_compare.jobs import Executor
from pml_ext_compare.page import curves_of, write_comparison
from pml_ext_compare.queries import NearestImages, compare_queries, queries_that_differ
from pml_ext_compare.runs import plans_of, rows_of
from pml_ext_compare.tables import differences_table, latex_table, markdown_table, remarks, rows_table, tuning_table
from pml_ext_train.recipe import load_recipes
from pml_ext_train.report import ReportTable

from ...overrides import typed
from .examples import silent


def test_all_files_say_the_same(folder, monkeypatch):
    monkeypatch.setattr(page, "compare_queries", lambda *_: ([], []))
    groups = groups_below([folder / "runs"])
    metrics = ["recall_at_1", "nmi", "verification_tar_at_far_0.01"]
    for run in [run for group in groups for run in group.all_runs()]:
        run["after"][metrics[2]] = 0.5
    result = compare(groups, metrics)
    out = folder / "new/out"
    html = write_comparison(out, groups, result, latex=True, device="cpu").read_text()
    assert json.loads((out / "comparison.json").read_text()) == json.loads(json.dumps(result))
    with (out / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["recipe"], row["metric"]) for row in rows] == [
        (group.name, metric) for group in groups for metric in metrics
    ]
    assert rows[0]["values"] == "0.7 0.72 0.71 0.75 0.69"
    text = (out / "comparison.md").read_text()
    assert all(f"- {line}" in text for line in result["sentences"])
    assert "Comparison of 2 recipes" in html
    assert html.count("a point per seed") == 3
    assert (out / "comparison.tex").read_text().startswith(r"\begin{tabular}")


def test_curves_are_means_over_seeds(folder, monkeypatch):
    measured = {"0": ([1, 2], [0.1, 0.3]), "1": ([1, 2], [0.3, 0.5]), "2": ([1], [0.9])}
    recorded = {seed: {"test": series} for seed, series in measured.items()}
    monkeypatch.setattr(page, "metric_by_epoch", lambda folder, metric: recorded.get(folder.name, {}))
    (group,) = groups_below([folder / "runs/without"])
    assert curves_of([group], "nmi", "validation") == {}
    epochs, values = curves_of([group], "nmi", "test")[group.name]
    assert epochs == [1, 2]
    assert [round(value, 6) for value in values] == [0.2, 0.4]  # of the seeds with the first one's epochs
    monkeypatch.setattr(page, "metric_by_epoch", lambda *_: {})
    assert curves_of([group], "nmi", "test") == {}


def test_validation_and_test_curves_are_two_figures(folder, monkeypatch):
    both = {"validation": ([1, 2], [0.1, 0.3]), "test": ([1, 2], [0.2, 0.2])}
    monkeypatch.setattr(page, "metric_by_epoch", lambda *_: both)
    figures = page._curve_figures(groups_below([folder / "runs/without"]), ["nmi"])
    assert [figure.title for figure in figures] == [
        "Metrics of validation images over the epochs",
        "Metrics of test images over the epochs",
    ]


ESTIMATE = {"mean": 0.5, "std": 0.1, "low": 0.4, "high": 0.6, "values": [0.4, 0.6]}
PRINTED = {"value": 0.7, "text": "70.0", "row": "CBML", "data": "CUB", "same_data": False}
ROW = {"recipe": "a_b", "seeds": [0, 1], "trials": 0, "seconds": 1.25, "selection": "last epoch"}
FAILED = {"recipe": "c", "seeds": [], "trials": 0, "seconds": None, "selection": "last epoch"}
NOTHING = dict.fromkeys(ESTIMATE) | {"values": []}
FAILURE = {"c, seed 0": "no memory"}
RESULT = {
    "metrics": ["nmi"],
    "differences_from": "a_b",
    "recipes": [
        ROW | {"unequal_settings": [], "errors": {}, "nmi": ESTIMATE | {"paper": [PRINTED, PRINTED]}},
        FAILED | {"unequal_settings": ["batch: 2"], "errors": FAILURE, "nmi": NOTHING | {"paper": []}},
    ],
}


def difference(**values):
    keys = ("p", "p_holm", "p_permutation", "better", "better_low", "better_high", "wanted")
    found = {"recipe": "c", "nmi": {**ESTIMATE, "pairs": 5, **dict.fromkeys(keys), **values}}
    return differences_table(RESULT | {"differences": [found]}).rows[0]


def test_rows_have_intervals_and_printed_values():
    table = rows_table(RESULT)
    assert table.columns == ["recipe", "seeds", "NMI", "NMI in the paper", "trials", "seconds", "selection"]
    assert table.rows[0] == ["a_b", "2", "50.0 [40.0, 60.0]", "70.0", "0", "1.2", "last epoch"]
    assert table.rows[1] == ["c *", "0", "", "", "0", "", "last epoch"]
    assert table.caption.endswith("The papers' values are of their own data and networks.")


def test_differences_have_their_tests_and_intervals():
    tested = difference(p=0.0123, p_holm=0.0246, p_permutation=0.0625, better=0.9, better_low=0.5, better_high=1.0)
    assert tested == [
        "c",
        "NMI",
        "5",
        "+50.0 [+40.0, +60.0]",
        "0.0123",
        "0.0246",
        "0.0625",
        "0.90 [0.50, 1.00]",
        "> 1000",
    ]
    assert difference(p=0.2, wanted=12)[-1] == "12"
    assert difference()[4:] == ["", "", "", "", ""]


def test_trials_have_ranges_and_importance():
    about = {
        "recipe": "a",
        "sampler": "TPE",
        "pruner": "median",
        "metric": "nmi",
        "chosen on": "held-out training classes",
        "ranges": {"lr": {"low": 0.1, "high": 1, "log": True}, "m": {"choices": [2, 4]}, "b": {"low": 0, "high": 1}},
        "importance": {},
        "best": {"lr": 0.25, "m": 2},
        "trials": [{"number": 0, "state": "pruned", "value": None, "seconds": 1.5, "values": {"lr": 0.123456}}],
    }
    table = tuning_table(about)
    assert table.rows == [["0", "pruned", "", "1.5", "0.1235", "", ""]]
    assert table.caption == (
        "Best: lr 0.25, m 2. Ranges: lr low 0.1, high 1, log True; m choices [2, 4]; b low 0, high 1. "
        "TPE sampler, median pruner, by NMI of held-out training classes."
    )


def test_remarks_are_of_settings_and_failed_runs():
    assert remarks(RESULT) == ["* c: batch: 2", "c, seed 0 failed: no memory"]


def test_values_are_counted_and_not_runs():
    row = RESULT["recipes"][0] | {"seeds": [0, 1, 2]}  # one of them has no value: NaN, or a fold that failed
    result = RESULT | {"recipes": [row]}
    assert rows_table(result).rows[0][:2] == ["a_b", "2"]
    assert "a_b: 2 of 3 seeds have a value of NMI" in remarks(result)


def test_a_table_in_markdown_and_latex():
    table = rows_table(RESULT)
    assert markdown_table(table)[:2] == [
        "| recipe | seeds | NMI | NMI in the paper | trials | seconds | selection |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines = latex_table(table).splitlines()
    assert lines[0] == r"\begin{tabular}{lrrrrrr}"
    assert lines[4].startswith(r"a\_b & 2 & 50.0 [40.0, 60.0] & 70.0")
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]


def test_markdown_and_latex_have_names_escaped():
    table = ReportTable("", ["recipe", "nmi"], [[r"C:\a_b~1^2", "a|b"]], "")
    assert markdown_table(table)[-1].endswith(r" | a\|b |")
    assert (
        latex_table(table).splitlines()[4].startswith(r"C:\textbackslash{}a\_b\textasciitilde{}1\textasciicircum{}2 &")
    )


RIGHT = [[True, True, False, False], [True, False, False, True], [True, False, False, True]]


def test_queries_that_runs_differ_about_come_first():
    has_answer = torch.ones(4, dtype=torch.bool)
    by_name = {}
    for number, right in enumerate(RIGHT):
        by_name[str(number)] = NearestImages(torch.zeros(4, dtype=torch.int64), torch.tensor(right), has_answer)
    assert set(queries_that_differ(by_name, count=2)) == {1, 3}
    assert sorted(queries_that_differ(by_name)) == [0, 1, 2, 3]
    assert queries_that_differ(by_name) == queries_that_differ(by_name)


@pytest.mark.usefixtures("without_report")
def test_two_runs_are_searched_and_drawn(recipe, tmp_path):
    plans = []
    for width in (4, 8):
        plans += plans_of(load_recipes(recipe, typed(["schedule.epochs=1", f"model.trunk.width={width}"])), tmp_path)
    groups = rows_of(plans, [], Executor(), silent, "cpu")
    base, other = (group.name for group in groups)
    (table,), (figure,) = compare_queries(groups, {"differences_from": base}, "cpu", None)
    (row,) = table.rows
    here_alone, base_alone, both = map(int, row[1:])
    queries = groups[0].all_runs()[0]["images"]["test"]["images"]
    recalls = [group.values("after", "recall_at_1")[0] for group in groups]
    assert row[0] == other
    assert [base_alone + both, here_alone + both] == pytest.approx([recall * queries for recall in recalls])
    assert figure.problem == ""
    assert figure.caption.endswith(f"1: {base}; 2: {other}.")


def test_a_run_that_cannot_be_opened_is_named(folder):
    groups = groups_below([folder / "runs/0"])
    tables, (problem,) = compare_queries(groups, {"differences_from": groups[0].name}, "cpu", None)
    assert tables == []
    assert problem.title == f"Queries of {groups[0].name}"
    assert problem.problem
