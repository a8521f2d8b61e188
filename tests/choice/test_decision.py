"""The simplest of what is best on held-out classes."""

import pytest

from pml_ext.choice import decision

from .helpers import by_class


@pytest.mark.parametrize(
    ("means", "spread", "wanted"),
    [
        ((0.3, 0.2, 0.25, 0.5), 0.01, "last blocks"),
        ((0.5, 0.2, 0.25, 0.3), 0.01, "frozen"),
        ((0.30, 0.301, 0.29, 0.302), 0.1, "frozen"),  # differences as large as chance gives
        ((0.3, 0.4, 0.35, 0.401), 0.02, "whitened"),
        ((0.3, 0.3, 0.5, 0.4), 0.01, "head"),
    ],
)
def test_the_simplest_of_the_best_is_taken(means, spread, wanted):
    titles = ("frozen", "whitened", "head", "last blocks")
    values = {}
    for number, (title, mean) in enumerate(zip(titles, means, strict=True)):
        values[title] = by_class(mean, spread, seed=number)
    assert decision.simplest_of_the_best(values) == wanted
    description = decision.description_of(wanted, values)
    assert description.startswith(f"The {wanted}, chosen by MAP@R in % on 12 held-out training classes: frozen ")


def test_equal_candidates_leave_the_simplest():
    same = by_class(0.5)
    assert decision.simplest_of_the_best({"frozen": same, "head": same.clone()}) == "frozen"
