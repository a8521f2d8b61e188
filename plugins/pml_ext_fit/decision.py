"""Which candidate to take: the best of those that cost nothing, or a trained one that is significantly better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .candidates import Candidate
from .scores import Scores, joined

SIGNIFICANT = 0.05  # p of a paired t-test over the classes


@dataclass(frozen=True)
class Scored:
    """A candidate that was tried, and its scores in the first folds, or in all."""

    candidate: Candidate
    by_fold: list[Scores]

    @property
    def scores(self) -> Scores:
        """Those of all its folds."""
        return joined(self.by_fold)


def best_of(scored: Sequence[Scored]) -> Scored:
    """Return the candidate of those that cost nothing with the greatest mean of Recall@1 and MAP@R over the classes.

    Of equal ones it is the first, and ``scored`` has the simplest first.
    """
    return max(scored, key=lambda each: float(each.scores.both.mean()))


def gain(costly: Sequence[Scores], free: Sequence[Scores]) -> tuple[float, float]:
    """Return by how much a costly candidate is ahead in its folds, the mean over classes, and p of a paired t-test."""
    from scipy.stats import ttest_rel

    after = joined(costly).both
    before = joined(free[: len(costly)]).both
    return float((after - before).mean()), float(ttest_rel(after, before).pvalue)


def is_significant(costly: Sequence[Scores], free: Sequence[Scores]) -> bool:
    """Return whether a costly candidate is significantly better than one that costs nothing."""
    difference, p = gain(costly, free)
    return difference > 0 and p < SIGNIFICANT
