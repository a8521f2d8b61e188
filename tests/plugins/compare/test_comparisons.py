"""Finished runs side by side, against scipy on the numbers themselves."""

import re

import pytest
from scipy import stats

from pml_ext.errors import ConfigError
from pml_ext_compare.comparisons import best_rows, chosen_baseline, compare
from pml_ext_compare.groups import Group, groups_below
from pml_ext_compare.statistics import paired_difference
from pml_ext_compare.tables import best_first

from .examples import ONE, OTHER


def test_differences_are_paired_by_seed(folder):
    (folder / "runs/0/metrics.json").unlink()  # a seed that only the other has: pairs are by seed, not by place
    one, other = groups_below([folder / "runs"])
    mine = compare([one, other], ["recall_at_1"])["differences"][0]["recall_at_1"]
    gains = [b - a for a, b in zip(ONE[1:], OTHER[1:], strict=True)]
    assert mine["pairs"] == 4
    assert mine["mean"] == pytest.approx(sum(gains) / 4)
    assert mine["p"] == pytest.approx(stats.ttest_1samp(gains, 0).pvalue)


def test_p_values_are_corrected_for_the_rows(folder):
    one, other = groups_below([folder / "runs"])
    same = Group("same", {}, runs=one.runs)
    result = compare([one, other, same], ["recall_at_1"])
    first, second = (row["recall_at_1"] for row in result["differences"])
    assert (first["p_holm"], second["p_holm"]) == (first["p"], None)  # equal runs are not tested
    again = compare([one, other, Group("again", {}, runs=other.runs)], ["recall_at_1"])
    assert [row["recall_at_1"]["p_holm"] for row in again["differences"]] == pytest.approx([2 * first["p"]] * 2)


def test_sentences_are_of_the_first_metric(folder):
    groups = groups_below([folder / "runs"])
    result = compare(groups, ["map_at_r", "nmi"])
    assert len(result["sentences"]) == 2
    assert "no difference of MAP@R from cbml/a loss.mvc_weight=1.0 is shown" in result["sentences"][0]
    assert "With 5 pairs neither" in result["sentences"][1]


def rows_with(means, spread=0.001, seeds=5):
    """Groups of runs whose MAP@R is a mean and a deviation for each seed, another in each group."""
    groups = []
    for number, mean in enumerate(means):
        runs = {}
        for seed in range(seeds):
            deviation = spread * ((2 * number + (number + 1) * seed) % 5 - 2)  # 0 on average over five seeds
            runs[seed] = {None: {"after": {"map_at_r": mean + deviation}}}
        groups.append(Group(f"row {number}", {}, runs=runs))
    return groups


def test_of_an_error_less_is_better():
    groups = rows_with([0.3, 0.1, 0.2])
    for group in groups:
        for run in group.all_runs():
            run["after"] = {"verification_eer": run["after"]["map_at_r"]}
    text = best_rows(groups, "after", "verification_eer")
    assert re.search("row 1, 10.0 %; all other rows are worse", text)
    rows = [{"recipe": number, "verification_eer": {"mean": mean}} for number, mean in enumerate((0.3, None, 0.1, 0.2))]
    assert [row["recipe"] for row in best_first(rows, "verification_eer")] == [2, 3, 0, 1]
    difference = paired_difference([0.3, 0.2], [0.1, 0.15], better_is_less=True)
    assert (difference.better, difference.mean) == (1.0, pytest.approx(-0.125))


TESTS = "(paired t-tests, p < 0.05 after Holm's correction for all pairs of rows)"
FAILED = Group("failed", {}, errors={"seed 0": "no memory"})
OF_OTHER_METRIC = Group("other", {}, runs={0: {0: {"after": {"nmi": 0.9}}}})


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        (rows_with([0.3, 0.5, 0.4999, 0.2]), f"row 1, 50.0 %. Not significantly worse {TESTS}: row 2."),
        (rows_with([0.3, 0.5, 0.4]), f"row 1, 50.0 %; all other rows are worse {TESTS}."),
        (rows_with([0.3, 0.5], seeds=1), "row 1, 50.0 %. Not tested (fewer than two common seeds): row 0."),
        (
            [*rows_with([0.3, 0.5], spread=0), FAILED, OF_OTHER_METRIC],
            "row 1, 50.0 %. Worse by the same difference in each pair, without a test: row 0. "
            "Not tested (fewer than two common seeds): other.",
        ),
        (
            [*rows_with([0.3, 0.5, 0.4]), OF_OTHER_METRIC],
            "row 1, 50.0 %. Not tested (fewer than two common seeds): other.",
        ),
        (rows_with([0.5, 0.5], spread=0), f"row 0, 50.0 %. Not significantly worse {TESTS}: row 1."),
    ],
)
def test_the_best_row_and_similar_rows_are_named(groups, text):
    assert best_rows(groups, "after", "map_at_r") == f"Best by MAP@R: {text}"


def test_a_single_row_is_not_called_best():
    assert best_rows(rows_with([0.3]), "after", "map_at_r") == ""


def test_tests_of_the_best_row_cover_all_pairs():
    """The values that are tested have chosen it."""
    groups = []
    for number in range(6):
        runs = {}
        for seed, deviation in enumerate((0.65, 0.9, 1.1, 1.35)):  # p = 0.007 for each pair of rows
            runs[seed] = {0: {"after": {"map_at_r": 0.5 - 0.01 * number * deviation}}}
        groups.append(Group(f"row {number}", {}, runs=runs))
    assert "all other rows are worse" in best_rows(groups[:3], "after", "map_at_r")  # of three pairs
    assert best_rows(groups, "after", "map_at_r").endswith(": row 1, row 2, row 3, row 4, row 5.")  # of fifteen


def test_another_baseline_stands_in_for_one_that_failed(folder):
    one, other = groups_below([folder / "runs"])
    failed = Group("failed", {}, errors={"seed 0": "no memory"})
    result = compare([failed, one, other], ["nmi"], baseline="failed")
    assert result["differences_from"] == one.name
    assert result["sentences"][0] == f"failed has no finished run; the differences are from {one.name}."


def test_common_seeds_decide_which_row_is_worse():
    best, other = rows_with([0.5, 0.4])
    best.runs[5] = {None: {"after": {"map_at_r": 0.9}}}
    other.runs.clear()
    for seed in range(5):
        deviation = 0.001 * (seed % 2)
        other.runs[seed] = {None: {"after": {"map_at_r": 0.52 + deviation}}}
    text = best_rows([best, other], "after", "map_at_r")
    assert text.startswith("Best by MAP@R: row 0, 56.7 %. Not significantly worse")
    assert text.endswith(": row 1.")


def test_the_baseline_is_named_or_first(folder):
    one, other = groups_below([folder / "runs"])
    failed = Group("failed", {}, errors={"seed 0": "no such file"})
    assert chosen_baseline([failed, one, other], None) is one
    assert chosen_baseline([failed, one, other], other.name) is other
    renamed = Group("x", {})
    renamed.name = "x lr=1"
    assert chosen_baseline([failed, one, renamed], "x") is renamed
    with pytest.raises(ConfigError, match="2 rows have the name 'cbml/a'"):
        chosen_baseline([one, other], "cbml/a")
    with pytest.raises(ConfigError, match="failed has no finished run; seed 0: no such file"):
        compare([failed], ["nmi"])


def test_intervals_of_known_shares_are_cut():
    values = [0.91, 0.97, 0.9]
    runs = {}
    for seed, value in enumerate(values):
        metrics = {"recall_at_1": 0.5, "purity": value, "nmi": 1 - value, "theirs": value}
        runs[seed] = {0: {"after": metrics, "folder": "run"}}
    (row,) = compare([Group("a", {}, runs=runs)], ["purity", "nmi", "theirs"])["recipes"]
    low, high = stats.t.interval(0.95, 2, sum(values) / 3, stats.sem(values))
    assert high > 1
    assert (row["purity"]["low"], row["purity"]["high"]) == pytest.approx((low, 1.0))
    assert (row["nmi"]["low"], row["nmi"]["high"]) == pytest.approx((0.0, 1 - low))
    assert (row["theirs"]["low"], row["theirs"]["high"]) == pytest.approx((low, high))
