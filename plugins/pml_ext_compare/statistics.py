"""Statistics of a comparison: intervals, paired differences and tests, probability of improvement, and power."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from pml_ext.tool import counted

LEVEL = 0.05  # of the tests; intervals cover 1 - LEVEL
POWER = 0.8
MOST = 1000  # greatest number of pairs considered for the power
_NO_SPREAD = 1e-12  # standard deviation below which differences are equal
_RESAMPLES = 9999  # also the greatest number of sign changes to enumerate


@dataclass(frozen=True)
class Estimate:
    """Mean of some values, their standard deviation, and the 95 % interval of the mean; None without two values."""

    mean: float | None
    std: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Difference(Estimate):
    """Paired difference of a row from the baseline; None for values undefined with too few or equal pairs."""

    pairs: int
    p: float | None = None  # two-sided paired t-test
    p_permutation: float | None = None  # two-sided, by all changes of sign up to 13 pairs, else by 9,999 random ones
    better: float | None = None  # share of the pairs in which the row is above the baseline, ties as halves
    better_low: float | None = None
    better_high: float | None = None
    wanted: int | None = None  # pairs that show such a difference with a power of 80 %; None for more than 1,000


def estimate(values: ArrayLike) -> Estimate:
    """Return the mean of values ``[N]`` with its 95 % interval by Student's t (``scipy.stats.t.interval``)."""
    sample = np.asarray(values, dtype=np.float64)
    mean = float(sample.mean()) if len(sample) else None
    if mean is None or len(sample) < 2:
        return Estimate(mean, None, None, None)
    std = float(sample.std(ddof=1))
    if std <= _NO_SPREAD:
        return Estimate(mean, std, mean, mean)
    low, high = stats.t.interval(1 - LEVEL, len(sample) - 1, mean, std / math.sqrt(len(sample)))
    return Estimate(mean, std, float(low), float(high))


def paired_difference(baseline: ArrayLike, row: ArrayLike, alpha: float = LEVEL, seed: int = 0) -> Difference:
    """Compare two samples ``[N]`` of the same seeds in the same order, the row less the baseline.

    The probability of improvement P(row > baseline) is estimated as by Bouthillier et al. (2021), with a percentile
    bootstrap over the pairs; where all pairs agree, and resamples with them, its interval is Clopper and Pearson's.
    ``alpha`` is the level of the t-test whose power gives ``wanted``.
    """
    change = np.asarray(row, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    about, pairs = estimate(change), len(change)
    if about.mean is None or about.std is None:
        return Difference(**asdict(about), pairs=pairs)
    wins = (np.sign(np.where(np.abs(change) <= _NO_SPREAD, 0, change)) + 1) / 2
    if wins.min() < wins.max():
        resampled = stats.bootstrap(
            (wins,), np.mean, n_resamples=_RESAMPLES, confidence_level=1 - LEVEL, method="percentile", random_state=seed
        )
        low, high = resampled.confidence_interval
    elif wins[0] == 0.5:  # only ties
        low, high = 0.0, 1.0
    else:
        low, high = stats.binomtest(int(wins.sum()), pairs).proportion_ci(1 - LEVEL)
    spread = about.std > _NO_SPREAD
    permuted = stats.permutation_test(
        (change,), np.mean, permutation_type="samples", vectorized=True, n_resamples=_RESAMPLES, random_state=seed
    )
    return Difference(
        **asdict(about),
        pairs=pairs,
        p=float(stats.ttest_1samp(change, 0).pvalue) if spread else None,
        p_permutation=float(permuted.pvalue),
        better=float(wins.mean()),
        better_low=float(low),
        better_high=float(high),
        wanted=pairs_wanted(about.mean / about.std, alpha) if spread else None,
    )


def pairs_wanted(effect: float, alpha: float = LEVEL) -> int | None:
    """Return the least number of pairs whose paired t-test has a power of 80 %; None for more than 1,000.

    The power is that of scipy's noncentral t distribution; the effect is the mean of the differences in units of their
    standard deviation.
    """
    pairs = np.arange(2, MOST + 1)
    critical, noncentral = stats.t.ppf(1 - alpha / 2, pairs - 1), abs(effect) * np.sqrt(pairs)
    power = stats.nct.sf(critical, pairs - 1, noncentral)
    enough = np.flatnonzero(np.nan_to_num(power, nan=1.0) >= POWER)  # nan far in the tail, where the power is 1
    return int(pairs[enough[0]]) if len(enough) else None


def holm(p: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected for their number by Holm's step-down procedure (1979); None stays."""
    corrected: list[float | None] = [None] * len(p)
    known = sorted((value, place) for place, value in enumerate(p) if value is not None)
    largest = 0.0
    for rank, (value, place) in enumerate(known):
        corrected[place] = largest = max(largest, min(1.0, (len(known) - rank) * value))
    return corrected


def sentence(row: str, baseline: str, metric: str, found: Difference, p: float | None, rows: int = 1) -> str:
    """Say in words no more than the test of one row shows; ``p`` is of the t-test, corrected for the number of rows."""
    number = found.pairs
    if found.mean is None or found.low is None or found.high is None:
        pairs = counted(number, "pair") if number else "no pairs"
        return f"{row}: {pairs} of runs with {baseline}; a test takes two or more."
    mean, low, high = (100 * x for x in (found.mean, found.low, found.high))
    if p is None:
        return (
            f"{row}: {metric} differs from that of {baseline} by {mean:+.1f} points in each of {number} pairs; no test."
        )
    corrected = f" after Holm's correction for {rows} rows" if rows > 1 else ""
    numbers = f"95 % interval {low:+.1f} to {high:+.1f}; p = {p:.2g}{corrected}"
    if p < LEVEL:
        direction = "higher" if mean > 0 else "lower"
        text = f"{row}: {metric} is {direction} than that of {baseline} by {abs(mean):.1f} points ({numbers})."
    else:
        text = f"{row}: no difference of {metric} from {baseline} is shown ({mean:+.1f} points; {numbers})."
        more = f"more than {MOST:,}" if found.wanted is None else f"{max(1, found.wanted - number)} more"
        text += f" If it is as large as measured, {more} pairs would show it with a probability of 80 %."
    return text


def too_few_for_ranks(pairs: Iterable[int]) -> list[str]:
    """Return the sentence about rows with too few pairs for the tests without normality, if there are such rows.

    The least two-sided p-value of the permutation test and of Wilcoxon's signed rank test is ``2 / 2**pairs``.
    """
    few = " or ".join(str(number) for number in sorted(set(pairs)) if number > 1 and 2 / 2**number > LEVEL)
    return [f"With {few} pairs neither Wilcoxon's test nor the permutation test can reach {LEVEL}."] if few else []
