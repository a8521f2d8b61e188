"""Checks of samplers: a sampler may refuse labels by any error."""

import numpy as np

from pml_ext.testing import check_component
from tests.testing.planted import FewClasses


class AssertsSizes(FewClasses):
    """A sampler that refuses small classes by an assertion, as many do."""

    def __init__(self, labels, batch_size, length_before_new_iter, seed: int = 0):
        _, counts = np.unique(labels, return_counts=True)
        assert counts.min() >= 4
        super().__init__(labels, batch_size, length_before_new_iter, seed)


def test_samplers_may_refuse_small_classes_by_asserting():
    for result in check_component(AssertsSizes, checks=["check_sampler", "check_sampler_seed"]):
        assert result.status == "passed"
