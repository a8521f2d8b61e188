"""The best of what costs nothing, and what is trained if it is significantly better."""

import pytest
import torch

from pml_ext_fit import decision
from pml_ext_fit.decision import Scored
from pml_ext_fit.scores import Scores

from .helpers import scores


@pytest.mark.parametrize(("means", "wanted"), [((0.3, 0.2, 0.31), 2), ((0.5, 0.5, 0.4), 0), ((0.1, 0.4, 0.4), 1)])
def test_the_best_of_what_is_free_is_taken_and_the_simplest_of_equals(means, wanted):
    tried = [Scored(None, [scores(mean, spread=0)]) for mean in means]
    assert decision.best_of(tried) is tried[wanted]


def test_a_small_gain_is_taken_where_nothing_costs_more():
    simple = scores(0.5, spread=0.1, seed=0)
    noise = torch.tensor([0.1, -0.1] * 6, dtype=torch.float64)
    for ahead, wanted in ((0.001, 1), (-0.001, 0)):  # the standard error of the difference is 0.030
        more = Scores(simple.recall_at_1 + noise + ahead, simple.map_at_r + noise + ahead)
        tried = [Scored(None, [simple]), Scored(None, [more])]
        assert decision.best_of(tried) is tried[wanted]


@pytest.mark.parametrize(
    ("mean", "spread", "wanted"), [(0.6, 0.05, True), (0.501, 0.1, False), (0.4, 0.01, False), (0.5, 0.0, False)]
)
def test_what_is_trained_is_compared_in_its_own_folds(mean, spread, wanted):
    free = [scores(0.5, spread, seed=1), scores(0.9, spread, seed=2)]
    costly = [scores(mean, spread, seed=3)]
    assert decision.is_significant(costly, free) == wanted
