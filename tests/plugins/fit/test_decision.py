"""The simplest of what is best on held-out classes."""

import pytest

from pml_ext_fit import candidates, decision
from pml_ext_fit.images import describe_images

from .helpers import by_class


def scored(photos, values):
    known = candidates.candidates(describe_images(photos))
    return [decision.Scored(candidate, value) for candidate, value in zip(known, values, strict=False)]


@pytest.mark.parametrize(
    ("means", "spread", "wanted"),
    [
        ((0.3, 0.2, 0.25, 0.5), 0.01, candidates.LastBlocks),
        ((0.5, 0.2, 0.25, 0.3), 0.01, candidates.FrozenFeatures),
        ((0.30, 0.301, 0.29, 0.302), 0.1, candidates.FrozenFeatures),  # differences as large as chance gives
        ((0.3, 0.4, 0.35, 0.401), 0.02, candidates.WhitenedFeatures),
        ((0.3, 0.3, 0.5, 0.4), 0.01, candidates.HeadOnFeatures),
    ],
)
def test_the_simplest_of_the_best_is_taken(photos, means, spread, wanted):
    values = [by_class(mean, spread, seed=number) for number, mean in enumerate(means)]
    tried = scored(photos, values)
    best = decision.simplest_of_the_best(tried)
    assert type(best.candidate) is wanted
    description = decision.description_of(best, tried)
    assert description.startswith(
        f"The {best.candidate.title}, chosen by MAP@R in % on 12 held-out training classes: frozen features "
    )


def test_equal_candidates_leave_the_simplest(photos):
    same = by_class(0.5)
    tried = scored(photos, [same, same.clone()])
    assert decision.simplest_of_the_best(tried) is tried[0]
