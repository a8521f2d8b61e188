"""Finished runs side by side: groups of equal settings, and statistics against scipy on the numbers themselves."""

import hashlib
import json
import math
import shutil

import numpy as np
import pytest
from scipy import stats

from pml_ext.errors import ConfigError, DataError
from pml_ext_compare.comparisons import best_rows, chosen_baseline, compare
from pml_ext_compare.groups import Group, disambiguate_names, groups_below, settings_of
from pml_ext_compare.statistics import estimate, holm, paired_difference, pairs_wanted, sentence, too_few_for_ranks
from pml_ext_compare.tables import best_first

from .examples import ONE, OTHER, finished_run


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
    result = compare([one, other, Group("same", {}, runs=one.runs)], ["recall_at_1"])
    first, second = (row["recall_at_1"] for row in result["differences"])
    assert (first["p_holm"], second["p_holm"]) == (first["p"], None)  # equal runs are not tested
    again = compare([one, other, Group("again", {}, runs=other.runs)], ["recall_at_1"])
    assert [row["recall_at_1"]["p_holm"] for row in again["differences"]] == pytest.approx([2 * first["p"]] * 2)


def test_sentences_are_of_the_first_metric(folder):
    result = compare(groups_below([folder / "runs"]), ["map_at_r", "nmi"])
    assert len(result["sentences"]) == 2
    assert "no difference of MAP@R from cbml/a loss.mvc_weight=1.0 is shown" in result["sentences"][0]
    assert "With 5 pairs neither" in result["sentences"][1]


def row(number, values, metric="map_at_r"):
    """A group with a run for each value of a metric."""
    runs = {seed: {None: {"after": {metric: value}}} for seed, value in enumerate(values)}
    return Group(f"row {number}", {}, runs=runs)


def rows_with(means, spread=0.001, seeds=5, metric="map_at_r"):
    """Groups of runs whose metric is a mean and a deviation for each seed, another in each group."""
    groups = []
    for number, mean in enumerate(means):
        deviations = [(2 * number + (number + 1) * seed) % 5 - 2 for seed in range(seeds)]  # 0 on average over five
        groups.append(row(number, [mean + spread * deviation for deviation in deviations], metric))
    return groups


def test_of_an_error_less_is_better():
    groups = rows_with([0.3, 0.1, 0.2], metric="verification_eer")
    assert "row 1, 10.0 %; all other rows are worse" in best_rows(groups, "after", "verification_eer")
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
    deviations = (0.65, 0.9, 1.1, 1.35)  # p = 0.007 for each pair of rows
    groups = [row(number, [0.5 - 0.01 * number * deviation for deviation in deviations]) for number in range(6)]
    assert "all other rows are worse" in best_rows(groups[:3], "after", "map_at_r")  # of three pairs
    assert best_rows(groups, "after", "map_at_r").endswith(": row 1, row 2, row 3, row 4, row 5.")  # of fifteen


def test_another_baseline_stands_in_for_one_that_failed(folder):
    one, other = groups_below([folder / "runs"])
    result = compare([FAILED, one, other], ["nmi"], baseline="failed")
    assert result["differences_from"] == one.name
    assert result["sentences"][0] == f"failed has no finished run; the differences are from {one.name}."


def test_common_seeds_decide_which_row_is_worse():
    best = row(0, [0.498, 0.499, 0.5, 0.501, 0.502, 0.9])
    text = best_rows([best, row(1, [0.52, 0.521, 0.52, 0.521, 0.52])], "after", "map_at_r")
    assert text.startswith("Best by MAP@R: row 0, 56.7 %. Not significantly worse")
    assert text.endswith(": row 1.")


def test_the_baseline_is_named_or_first(folder):
    one, other = groups_below([folder / "runs"])
    assert chosen_baseline([FAILED, one, other], None) is one
    assert chosen_baseline([FAILED, one, other], other.name) is other
    renamed = Group("x", {})
    renamed.name = "x lr=1"
    assert chosen_baseline([FAILED, one, renamed], "x") is renamed
    with pytest.raises(ConfigError, match="2 rows have the name 'cbml/a'"):
        chosen_baseline([one, other], "cbml/a")
    with pytest.raises(ConfigError, match="failed has no finished run; seed 0: no memory"):
        compare([FAILED], ["nmi"])


def test_intervals_of_known_shares_are_cut():
    values = [0.91, 0.97, 0.9]
    runs = {}
    for seed, value in enumerate(values):
        metrics = {"recall_at_1": 0.5, "purity": value, "nmi": 1 - value, "theirs": value}
        runs[seed] = {0: {"after": metrics, "folder": "run"}}
    (found,) = compare([Group("a", {}, runs=runs)], ["purity", "nmi", "theirs"])["recipes"]
    low, high = stats.t.interval(0.95, 2, sum(values) / 3, stats.sem(values))
    assert high > 1
    for metric, interval in {"purity": (low, 1.0), "nmi": (0.0, 1 - low), "theirs": (low, high)}.items():
        assert (found[metric]["low"], found[metric]["high"]) == pytest.approx(interval)


def test_runs_of_equal_settings_are_one_group(folder):
    assert [len(each.runs) for each in groups_below([folder / "runs/without", folder / "runs"])] == [5, 5]
    one, other = groups_below([folder / "runs"])
    assert (one.name, other.name) == ("cbml/a loss.mvc_weight=1.0", "cbml/a loss.mvc_weight=0.0")
    assert one.recipe_name == "cbml/a"
    assert one.folders[2] == folder / "runs/2"


def test_the_fold_and_descriptions_are_no_settings():
    tables = {"description": "x", "paper": {"table": "y"}, "track": [], "loss": {"name": "z"}}
    assert settings_of(tables | {"evaluation": {"fold": 2, "select": "nmi"}}) == (
        2,
        {"loss.name": "z", "evaluation.select": "nmi"},
    )
    assert settings_of(tables) == (0, {"loss.name": "z"})


def test_a_setting_that_a_group_lacks_is_named(folder):
    finished_run(folder / "plain", "cbml/a", 0, 0.5)
    groups = groups_below([folder / "runs/0", folder / "plain"])
    assert [group.name for group in groups] == ["cbml/a loss.mvc_weight=1.0", "cbml/a loss.mvc_weight left out"]


def test_values_are_means_over_all_folds():
    runs = {0: {1: {"after": {"nmi": 0.2}}, 2: {"after": {"nmi": 0.4}}}, 1: {1: {"after": {"nmi": 0.9}}}}
    group = Group("a", {}, runs=runs)
    assert group.values("after", "nmi") == {0: pytest.approx(0.3)}  # seed 1 lacks a fold
    assert group.values("before", "nmi") == {}
    assert group.seconds() is None


VALIDATED = {"evaluation.validation": 0.2, "evaluation.select_on": "validation"}


@pytest.mark.parametrize(
    ("settings", "trials", "text"),
    [
        ({}, 0, "last epoch"),
        (VALIDATED, 0, "20 % of training classes"),
        (VALIDATED, 3, "trials: validation classes; 20 % of training classes"),
        (VALIDATED | {"evaluation.select_on": "test"}, 0, "test images"),
    ],
)
def test_selection_of_epochs_is_described(settings, trials, text):
    assert Group("a", settings, trials=trials).selection() == text


def test_the_order_of_metrics_makes_no_other_results(folder):
    finished_run(folder / "again/0", "cbml/a", 0, 0.1, mvc_weight=1.0)
    copy = shutil.copytree(folder / "again/0", folder / "copy/0")
    metrics = json.loads((copy / "metrics.json").read_text())
    metrics["after"] = dict(reversed(metrics["after"].items()))
    (copy / "metrics.json").write_text(json.dumps(metrics))
    assert len(groups_below([folder / "again", folder / "copy"])) == 1


def test_what_cannot_be_grouped_is_refused(folder):
    with pytest.raises(ConfigError, match=r"no finished run in it; type: pml-ext train"):
        groups_below([folder / "empty"])
    finished_run(folder / "again/0", "cbml/a", 0, 0.1, mvc_weight=1.0)
    with pytest.raises(ConfigError, match="another run has the same recipe, settings and seed, but different results"):
        groups_below([folder / "runs", folder / "again"])
    for text in ("[run", "[run]\nrecipe = 'cbml/a'\n"):
        (folder / "again/0/recipe.toml").write_text(text)
        with pytest.raises(DataError, match="not the recipe of a run"):
            groups_below([folder / "again"])


def test_metrics_of_another_run_are_refused(folder):
    file = folder / "runs/1/metrics.json"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    shutil.copy(folder / "runs/0/metrics.json", file)
    assert groups_below([file.parent])
    (file.parent / "SHA256SUMS").write_text(f"{digest}  metrics.json\n")
    with pytest.raises(DataError, match=r"1/metrics.json: not the file that the run wrote"):
        groups_below([folder / "runs"])


BASE = Group("base", {"loss.name": "cbml", "model.trunk.name": "convnet", "sampler.batch_size": 80})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model.trunk.name": "resnet"}, "trunk: resnet (convnet in base)"),
        ({"model.trunk.weights": "x"}, "weights: x (default in base)"),
        ({"model.embedding_size": 128}, "embedding size: 128 (default in base)"),
        ({"data.images.crop": 227}, "image size: 227 (default in base)"),
        ({"sampler.batch_size": 160}, "batch: 160 (80 in base)"),
        ({"schedule.epochs": 3}, "iterations: 3 (default in base)"),
        ({"data.augment.shift": 2}, "augmentation: 2 (default in base)"),
        ({"data.name": "other"}, "data: other (default in base)"),
        ({"data.official": "train"}, "data.official: train (default in base)"),
        ({"loss.name": "pddm"}, ""),
        ({"data.workers": 2, "data.cache": "memory"}, ""),
    ],
)
def test_unequal_settings_are_named_by_kind(change, text):
    assert Group("other", BASE.settings | change).unequal_settings(BASE) == [text] * bool(text)


def test_unequal_trials_and_failed_rows():
    assert Group("tuned", BASE.settings, trials=20).unequal_settings(BASE) == ["trials: 20 (0 in base)"]
    assert Group("failed", {}).unequal_settings(BASE) == []


def test_values_of_the_paper_are_quoted():
    paper = {"table": "cbml/7", "row": "CBML + MVC + Hard Mining"}
    values = Group("x", {"data.name": "omniglot-small"}, paper=paper).paper_values("after", "recall_at_1")
    assert values
    assert all(0.5 < each["value"] < 1 and not each["same_data"] for each in values)
    assert Group("x", {"data.name": "omniglot-small"}, paper={"table": "cbml/99"}).paper_values("after", "nmi") == []
    assert Group("x", {"data.name": "omniglot-small"}).paper_values("after", "nmi") == []


def test_metrics_that_are_not_finite_are_missing(tmp_path):
    finished_run(tmp_path / "0", "cbml/a", 0, 0.5)
    finished_run(tmp_path / "1", "cbml/a", 1, float("nan"))
    finished_run(tmp_path / "again/1", "cbml/a", 1, float("nan"))  # the same run: NaN differs from itself
    (group,) = groups_below([tmp_path])
    assert group.values("after", "recall_at_1") == {0: 0.5}
    assert group.values("after", "nmi") == {0: 0.5, 1: 0.5}


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ([("a", {"x": 1}, 0), ("a", {"x": 1}, 20), ("b", {"x": 1}, 0)], ["a trials=0", "a trials=20", "b"]),
        (
            [("a", {"x": 1}, 0), ("a", {"x": 1}, 20), ("a", {"x": 2}, 0), ("a", {}, 0)],
            ["a x=1 trials=0", "a x=1 trials=20", "a x=2", "a"],
        ),
        ([("a", {"x": 1}, 0), ("a", {}, 20)], ["a trials=0", "a trials=20"]),  # the tuning of the second failed
    ],
)
def test_rows_with_unequal_trials_have_different_names(rows, names):
    groups = [Group(name, settings, trials=trials) for name, settings, trials in rows]
    disambiguate_names(groups)
    assert [group.name for group in groups] == names


def test_interval_and_tests_are_those_of_scipy():
    found = paired_difference(ONE, OTHER)
    by_scipy = stats.ttest_rel(OTHER, ONE)
    interval = by_scipy.confidence_interval()
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p == pytest.approx(by_scipy.pvalue)
    change = np.subtract(OTHER, ONE)
    signs = np.array(np.meshgrid(*[[1, -1]] * 5)).reshape(5, -1)
    means = np.abs((change[:, None] * signs).mean(axis=0))
    assert found.p_permutation == pytest.approx(float((means >= abs(change.mean()) - 1e-12).mean()))
    mine = estimate(ONE)
    assert (mine.low, mine.high) == pytest.approx(stats.t.interval(0.95, 4, np.mean(ONE), stats.sem(ONE)))


def test_probability_of_improvement_and_its_interval():
    found = paired_difference(ONE, OTHER)  # four of five pairs above, one tie
    assert found.better == pytest.approx(0.9)
    assert 0.5 <= found.better_low < 0.9 < found.better_high <= 1
    above = np.add(OTHER, 0.01)
    all_above = paired_difference(ONE, above)
    assert (all_above.better, all_above.better_high) == (1, 1)
    assert all_above.better_low == pytest.approx(0.025 ** (1 / 5))  # of five of five, by the binomial distribution
    below = paired_difference(above, ONE)
    assert (below.better, below.better_low) == (0, 0)
    assert below.better_high == pytest.approx(1 - 0.025 ** (1 / 5))


def test_fewest_pairs_that_reach_a_power():
    def power(pairs, effect):
        critical = stats.t.ppf(0.975, pairs - 1)
        return stats.nct.sf(critical, pairs - 1, effect * math.sqrt(pairs))

    for effect in (0.2, 0.5, 1.0, 3.0):
        pairs = pairs_wanted(effect)
        assert power(pairs, effect) >= 0.8 > (power(pairs - 1, effect) if pairs > 2 else 0)
    assert pairs_wanted(0.5) == pairs_wanted(-0.5) == 34  # as G*Power and statsmodels say
    assert pairs_wanted(0.01) is None
    samples = np.random.default_rng(0).normal(0.5, 1, (34, 4000))
    assert np.mean(stats.ttest_1samp(samples, 0).pvalue < 0.05) == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize(
    ("p", "corrected"),
    [([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]), ([None, 0.5, 0.9], [None, 1.0, 1.0]), ([], [])],
)
def test_holm_corrects_step_by_step(p, corrected):
    assert holm(p) == pytest.approx(corrected)


def test_equal_rows_rarely_differ_significantly_by_chance():
    generator = np.random.default_rng(1)
    called = 0
    rows = 200
    for _ in range(rows):
        seeds = generator.normal(0.7, 0.05, 5)  # what runs of one seed share
        one, other = seeds + generator.normal(0, 0.01, (2, 5))
        found = paired_difference(one, other)
        called += "higher" in (text := sentence("a", "b", "recall_at_1", found, found.p)) or "lower" in text
    low, high = stats.binom(rows, 0.05).interval(0.999)
    assert low <= called <= high
    assert not low <= sum(generator.random(rows) < 0.2) <= high  # the bounds tell one in five from one in twenty


def test_a_difference_is_found_and_said():
    generator = np.random.default_rng(2)
    seeds = generator.normal(0.7, 0.05, 5)
    one = seeds + generator.normal(0, 0.005, 5)
    other = seeds + 0.03 + generator.normal(0, 0.005, 5)
    found = paired_difference(one, other)
    text = sentence("cbml", "ms", "recall_at_1", found, found.p)
    assert text.startswith("cbml: recall_at_1 is higher than that of ms by 2.9 points (95 % interval +")
    assert too_few_for_ranks([5, 5, 6, 1]) == [
        "With 5 pairs neither Wilcoxon's test nor the permutation test can reach 0.05."
    ]
    assert not too_few_for_ranks([6, 0])
    assert stats.wilcoxon(other - one).pvalue == pytest.approx(2 / 2**5) == found.p_permutation


def test_too_little_is_said_to_be_so():
    none = paired_difference(ONE[:1], OTHER[:1])
    assert (none.pairs, none.p, none.p_permutation, none.better, none.wanted) == (1, None, None, None, None)
    assert "1 pair of runs" in sentence("a", "b", "nmi", none, None)
    assert "no pairs of runs" in sentence("a", "b", "nmi", paired_difference([], []), None)
    same = paired_difference(ONE, ONE)
    assert (same.p, same.p_permutation, same.better, same.better_low, same.better_high) == (None, 1.0, 0.5, 0.0, 1.0)
    assert "+0.0 points in each of 5 pairs; no test" in sentence("a", "b", "nmi", same, same.p)
    found = paired_difference(ONE, OTHER)
    text = sentence("a", "b", "nmi", found, holm([found.p, 0.9, 0.9])[0], rows=3)
    assert "no difference of nmi from b is shown" in text
    assert "after Holm's correction for 3 rows" in text
    assert f"{found.wanted - 5} more pairs would show it" in text
