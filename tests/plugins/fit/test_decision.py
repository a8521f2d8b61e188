"""The best of what costs nothing, and what is trained if it is significantly better."""

import pytest

from pml_ext_fit import decision
from pml_ext_fit.decision import Scored

from .helpers import scores


@pytest.mark.parametrize(("means", "wanted"), [((0.3, 0.2, 0.31), 2), ((0.5, 0.5, 0.4), 0), ((0.1, 0.4, 0.4), 1)])
def test_the_simplest_of_equal_closed_forms_wins(means, wanted):
    tried = [Scored(None, [scores(mean, spread=0)]) for mean in means]
    assert decision.best_of(tried) is tried[wanted]
