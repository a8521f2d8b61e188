"""Which candidate to take: the simplest of those that are significantly best on held-out classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .candidates import ByClass, Candidate

SIGNIFICANT = 0.05  # p of a paired t-test over the classes


@dataclass(frozen=True)
class Scored:
    """A candidate that was tried, and its values."""

    candidate: Candidate
    by_class: ByClass


def simplest_of_the_best(scored: Sequence[Scored]) -> Scored:
    """Return the candidate to take, of those that were tried, the simplest first.

    A candidate replaces an earlier one if its mean over classes is greater and a paired t-test over the classes has
    p < 0.05.
    """
    from scipy.stats import ttest_rel

    best, *others = scored
    for each in others:
        difference = float((each.by_class - best.by_class).mean())
        p = float(ttest_rel(each.by_class, best.by_class).pvalue)
        if difference > 0 and p < SIGNIFICANT:
            best = each
    return best


def description_of(best: Scored, scored: Sequence[Scored]) -> str:
    """Return a line with the values of all candidates, the first words of a report."""
    found = ", ".join(f"{each.candidate.title} {percent_of(each.by_class)}" for each in scored)
    return (
        f"The {best.candidate.title}, chosen by MAP@R in % on {len(best.by_class)} held-out training classes: {found}; "
        f"a more costly candidate is taken where it is significantly better (p < {SIGNIFICANT})"
    )


def percent_of(values: ByClass) -> str:
    """Return the mean over classes in percent."""
    return f"{100 * float(values.mean()):.1f}"
