"""Statistics of comparisons: against scipy called by hand, and on made-up samples with and without a difference."""

import math

import numpy as np
import pytest
from scipy import stats

from pml_ext_compare.statistics import estimate, holm, paired_difference, pairs_wanted, sentence, too_few_for_ranks

ONE = np.array([0.70, 0.72, 0.71, 0.75, 0.69])
OTHER = np.array([0.73, 0.74, 0.72, 0.75, 0.74])


def test_interval_and_tests_are_those_of_scipy():
    found = paired_difference(ONE, OTHER)
    by_scipy = stats.ttest_rel(OTHER, ONE)
    interval = by_scipy.confidence_interval()
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p == pytest.approx(by_scipy.pvalue)
    change = OTHER - ONE
    signs = np.array(np.meshgrid(*[[1, -1]] * 5)).reshape(5, -1)
    means = np.abs((change[:, None] * signs).mean(axis=0))
    assert found.p_permutation == pytest.approx(float((means >= abs(change.mean()) - 1e-12).mean()))
    mine = estimate(ONE)
    assert (mine.low, mine.high) == pytest.approx(stats.t.interval(0.95, 4, ONE.mean(), stats.sem(ONE)))


def test_probability_of_improvement_and_its_interval():
    found = paired_difference(ONE, OTHER)  # four of five pairs above, one tie
    assert found.better == pytest.approx(0.9)
    assert 0.5 <= found.better_low < 0.9 < found.better_high <= 1
    all_above = paired_difference(ONE, OTHER + 0.01)
    assert (all_above.better, all_above.better_high) == (1, 1)
    assert all_above.better_low == pytest.approx(0.025 ** (1 / 5))  # of five of five, by the binomial distribution
    below = paired_difference(OTHER + 0.01, ONE)
    assert (below.better, below.better_low) == (0, 0)
    assert below.better_high == pytest.approx(1 - 0.025 ** (1 / 5))


def test_fewest_pairs_that_reach_a_power():
    def power(pairs, effect):
        critical = stats.t.ppf(0.975, pairs - 1)
        return stats.nct.sf(critical, pairs - 1, effect * math.sqrt(pairs))

    for effect in (0.2, 0.5, 1.0, 3.0):
        pairs = pairs_wanted(effect)
        assert power(pairs, effect) >= 0.8 > (power(pairs - 1, effect) if pairs > 2 else 0)
    assert pairs_wanted(0.5) == 34  # as G*Power and statsmodels say
    assert pairs_wanted(-0.5) == 34
    assert pairs_wanted(0.01) is None
    generator = np.random.default_rng(0)
    samples = generator.normal(0.5, 1, (34, 4000))
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
    corrected = holm([found.p, 0.9, 0.9])[0]
    text = sentence("a", "b", "nmi", found, corrected, rows=3)
    assert "no difference of nmi from b is shown" in text
    assert "after Holm's correction for 3 rows" in text
    assert f"{found.wanted - 5} more pairs would show it" in text
