"""Intervals, paired differences and tests, probability of improvement, and power."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from pml_ext.errors import counted

LEVEL = 0.05  # of the tests; intervals cover 1 - LEVEL
POWER = 0.8
MOST = 1000  # greatest number of pairs considered for the power
NO_SPREAD = 1e-12  # standard deviation below which differences are equal
_RESAMPLES = 9999  # also the greatest number of sign changes to enumerate


@dataclass(frozen=True)
class Estimate:
    """Mean of values, standard deviation, and the mean's 95 % interval; None without two values."""

    mean: float | None
    std: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Difference(Estimate):
    """Paired difference from the baseline; values that the pairs leave undefined are None."""

    pairs: int
    p: float | None = None  # two-sided paired t-test
    p_permutation: float | None = None  # two-sided, by all changes of sign up to 13 pairs, else by 9,999 random ones
    better: float | None = None  # share of the pairs in which the row is better than the baseline, ties as halves
    better_low: float | None = None
    better_high: float | None = None
    wanted: int | None = None  # pairs that show such a difference with a power of 80 %; None for more than 1,000


def estimate(values: ArrayLike) -> Estimate:
    """Mean of values ``[N]`` with its 95 % interval by Student's t."""
    sample = np.asarray(values, dtype=np.float64)
    if len(sample) == 0:
        return Estimate(None, None, None, None)
    mean = float(sample.mean())
    if len(sample) == 1:
        return Estimate(mean, None, None, None)

    std = float(sample.std(ddof=1))
    if std <= NO_SPREAD:
        return Estimate(mean, std, mean, mean)
    low, high = stats.t.interval(1 - LEVEL, len(sample) - 1, mean, std / math.sqrt(len(sample)))
    return Estimate(mean, std, float(low), float(high))


def paired_difference(
    baseline: ArrayLike, row: ArrayLike, alpha: float = LEVEL, seed: int = 0, better_is_less: bool = False
) -> Difference:
    """Compare two samples ``[N]``, paired in the same order: the row minus the baseline.

    The probability of improvement, P(row > baseline) or with ``better_is_less`` P(row < baseline), follows Bouthillier
    et al. (2021), with a percentile bootstrap over the pairs. If all pairs agree, its interval is Clopper and
    Pearson's. ``alpha`` is the level of the t-test for ``wanted``.
    """
    change = np.asarray(row, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    pairs = len(change)
    about = estimate(change)
    if about.mean is None or about.std is None:
        return Difference(**asdict(about), pairs=pairs)

    wanted = pairs_wanted(about.mean / about.std, alpha) if about.std > NO_SPREAD else None
    permuted = stats.permutation_test(
        (change,), np.mean, permutation_type="samples", vectorized=True, n_resamples=_RESAMPLES, random_state=seed
    )
    wins = _wins(-change if better_is_less else change)
    better_low, better_high = _interval_of_wins(wins, seed)
    return Difference(
        **asdict(about),
        pairs=pairs,
        p=t_test(change),
        p_permutation=float(permuted.pvalue),
        better=float(wins.mean()),
        better_low=better_low,
        better_high=better_high,
        wanted=wanted,
    )


def t_test(change: ArrayLike) -> float | None:
    """Two-sided p of the t-test of paired differences ``[N]``; None for equal or fewer than two."""
    about = estimate(change)
    if about.std is None or about.std <= NO_SPREAD:
        return None
    return float(stats.ttest_1samp(change, 0).pvalue)


def _wins(change: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 for each positive change, 0.5 for a tie, and 0 for a negative one."""
    return np.where(np.abs(change) <= NO_SPREAD, 0.5, change > 0)


def _interval_of_wins(wins: NDArray[np.float64], seed: int) -> tuple[float, float]:
    if wins.min() < wins.max():
        resampled = stats.bootstrap(
            (wins,), np.mean, n_resamples=_RESAMPLES, confidence_level=1 - LEVEL, method="percentile", random_state=seed
        )
        low, high = resampled.confidence_interval
    elif wins[0] == 0.5:  # only ties
        low, high = 0.0, 1.0
    else:
        low, high = stats.binomtest(int(wins.sum()), len(wins)).proportion_ci(1 - LEVEL)
    return float(low), float(high)


def pairs_wanted(effect: float, alpha: float = LEVEL) -> int | None:
    """The fewest pairs that give the paired t-test a power of 80 %; None above 1,000.

    ``effect`` is the mean of the differences over their standard deviation.
    """
    pairs = np.arange(2, MOST + 1)
    critical = stats.t.ppf(1 - alpha / 2, pairs - 1)
    noncentral = abs(effect) * np.sqrt(pairs)
    power = stats.nct.sf(critical, pairs - 1, noncentral)
    enough = np.flatnonzero(np.nan_to_num(power, nan=1.0) >= POWER)  # nan far in the tail, where the power is 1
    return int(pairs[enough[0]]) if len(enough) else None


def holm(p: Sequence[float | None]) -> list[float | None]:
    """P-values corrected by Holm's step-down procedure (1979); None stays None."""
    corrected: list[float | None] = [None] * len(p)
    known = sorted((value, place) for place, value in enumerate(p) if value is not None)
    scaled = [min(1.0, (len(known) - rank) * value) for rank, (value, _) in enumerate(known)]
    for (_, place), value in zip(known, itertools.accumulate(scaled, max), strict=True):
        corrected[place] = value
    return corrected


def sentence(row: str, baseline: str, metric: str, found: Difference, p: float | None, rows: int = 1) -> str:
    """The result of one row's test; ``p`` is corrected for the number of rows."""
    number = found.pairs
    if found.mean is None or found.low is None or found.high is None:
        pairs = counted(number, "pair") if number else "no pairs"
        return f"{row}: {pairs} of runs with {baseline}; a test needs two or more."

    mean = 100 * found.mean
    if p is None:
        return (
            f"{row}: {metric} differs from that of {baseline} by {mean:+.1f} points in each of {number} pairs; no test."
        )

    corrected = f" after Holm's correction for {rows} rows" if rows > 1 else ""
    interval = f"95 % interval {100 * found.low:+.1f} to {100 * found.high:+.1f}"
    numbers = f"{interval}; p = {p:.2g}{corrected}"
    if p < LEVEL:
        direction = "higher" if mean > 0 else "lower"
        return f"{row}: {metric} is {direction} than that of {baseline} by {abs(mean):.1f} points ({numbers})."

    more = f"more than {MOST:,}"
    if found.wanted is not None:
        more = f"{max(1, found.wanted - number)} more"
    return (
        f"{row}: no difference of {metric} from {baseline} is shown ({mean:+.1f} points; {numbers}). "
        f"If it is as large as measured, {more} pairs would show it with a probability of 80 %."
    )


def too_few_for_ranks(pairs: Iterable[int]) -> list[str]:
    """A sentence on numbers of pairs too small for tests without normality, if any.

    The least two-sided p of the permutation test and of Wilcoxon's signed rank test is ``2 / 2**pairs``.
    """
    few = [number for number in sorted(set(pairs)) if number > 1 and 2 / 2**number > LEVEL]
    if not few:
        return []
    numbers = " or ".join(map(str, few))
    return [f"With {numbers} pairs neither Wilcoxon's test nor the permutation test can reach {LEVEL}."]
