"""Checks of samplers: planted bugs are found and named, and one of them may be waived."""

import numpy as np
import pytest

from pml_ext.testing import check_component
from pml_ext.testing.checks import samplers
from tests.testing.planted import assert_found_and_named, failing, others, planted_for


@pytest.mark.parametrize("bug", planted_for(samplers))
def test_a_bug_is_found_and_named(bug):
    assert_found_and_named(bug)


def test_a_bug_in_what_many_passes_draw_fails_the_check_of_its_name():
    checks = [name for name in vars(samplers) if name.startswith("check_sampler_")]
    assert len(checks) == 12
    assert set(failing(others.SameEveryEpoch, checks=checks)) >= {"check_sampler_passes_differ"}
    waived = {"check_sampler_draws_many_classes": "it is made for few classes"}
    results = check_component(others.Of20Classes, on_fail=None, checks=checks, expected_failed_checks=waived)
    assert not [result.check for result in results if result.fails]


class AssertsSizes(others.FewClasses):
    """A sampler that refuses small classes by an assertion, as many do."""

    def __init__(self, labels, batch_size, length_before_new_iter, seed: int = 0):
        _, counts = np.unique(labels, return_counts=True)
        assert counts.min() >= 4
        super().__init__(labels, batch_size, length_before_new_iter, seed)


def test_a_sampler_may_refuse_small_classes_by_any_error():
    for result in check_component(AssertsSizes, checks=["check_sampler_keeps_labels", "check_sampler_seed"]):
        assert result.status == "passed"
