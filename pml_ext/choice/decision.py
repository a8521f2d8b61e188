"""Which candidate to take: the simplest of those that are significantly best on held-out classes."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

SIGNIFICANT = 0.05  # p of a paired t-test over the classes

ByClass = Tensor  # MAP@R of each class that was held out, [C], float64


def simplest_of_the_best(values: Mapping[str, ByClass]) -> str:
    """Return the title of the candidate to take.

    ``values`` are by title, the simplest first. A candidate replaces an earlier one if its mean over classes is greater
    and a paired t-test over the classes has p < 0.05.
    """
    from scipy.stats import ttest_rel

    best, *others = values
    for title in others:
        difference = float((values[title] - values[best]).mean())
        p = float(ttest_rel(values[title], values[best]).pvalue)
        if difference > 0 and p < SIGNIFICANT:
            best = title
    return best


def description_of(best: str, values: Mapping[str, ByClass]) -> str:
    """Return a line with the values of all candidates, the first words of a report."""
    found = ", ".join(f"{title} {percent_of(by_class)}" for title, by_class in values.items())
    classes = len(next(iter(values.values())))
    return (
        f"The {best}, chosen by MAP@R in % on {classes} held-out training classes: {found}; a more costly candidate is "
        f"taken where it is significantly better (p < {SIGNIFICANT})"
    )


def percent_of(values: ByClass) -> str:
    """Return the mean over classes in percent."""
    return f"{100 * float(values.mean()):.1f}"
