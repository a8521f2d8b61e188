"""Which candidate to take: the best closed form, or a trained one that is significantly better."""

from collections.abc import Sequence
from dataclasses import dataclass

from .candidates import Candidate
from .scores import Scores, joined

SIGNIFICANT = 0.05  # p of a paired t-test over the classes


@dataclass(frozen=True)
class Scored:
    """A candidate and its scores in the first folds, or in all."""

    candidate: Candidate
    by_fold: list[Scores]

    @property
    def scores(self) -> Scores:
        """Scores pooled over all folds."""
        return joined(self.by_fold)


def best_of(scored: Sequence[Scored]) -> Scored:
    """The candidate with the greatest mean of Recall@1 and MAP@R; the first of equal ones."""
    return max(scored, key=lambda each: float(each.scores.both.mean()))


def gain(costly: Sequence[Scores], free: Sequence[Scores]) -> tuple[float, float]:
    """The mean lead of a trained candidate over classes, and p of a paired t-test."""
    from scipy.stats import ttest_rel

    after = joined(costly).both
    before = joined(free[: len(costly)]).both
    return float((after - before).mean()), float(ttest_rel(after, before).pvalue)


def is_significant(costly: Sequence[Scores], free: Sequence[Scores]) -> bool:
    """Whether a trained candidate is significantly better than a closed form."""
    difference, p = gain(costly, free)
    return difference > 0 and p < SIGNIFICANT
