"""The files of a comparison."""

import csv
import json

from pml_ext_compare import page
from pml_ext_compare.comparisons import compare
from pml_ext_compare.groups import groups_below
from pml_ext_compare.page import curves_of, write_comparison


def test_all_files_say_the_same(folder, monkeypatch):
    monkeypatch.setattr(page, "compare_queries", lambda *_: ([], []))
    groups = groups_below([folder / "runs"])
    metrics = ["recall_at_1", "nmi", "verification_tar_at_far_0.01"]
    for group in groups:
        for run in group.all_runs():
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
    for line in result["sentences"]:
        assert f"- {line}" in text
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
