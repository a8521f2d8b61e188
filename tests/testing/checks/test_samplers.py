"""Checks of samplers: planted bugs are found and named, and one of them may be waived."""

import re

import pytest

from pml_ext.testing import check_component
from pml_ext.testing.checks import samplers
from tests.testing.planted import failing, others, planted_for, text_of


@pytest.mark.parametrize("bug", planted_for(samplers))
def test_a_bug_is_found_and_named(bug):
    text = text_of(bug)
    assert len(text) > 25
    assert re.search(bug.text, text), text


def test_a_bug_in_what_many_passes_draw_fails_the_check_of_its_name():
    checks = [name for name in vars(samplers) if name.startswith("check_sampler_")]
    assert len(checks) == 10
    assert set(failing(others.SameEveryEpoch, checks=checks)) >= {"check_sampler_passes_differ"}
    waived = {"check_sampler_draws_many_classes": "it is made for few classes"}
    results = check_component(others.Of20Classes, on_fail=None, checks=checks, expected_failed_checks=waived)
    assert not [result.check for result in results if result.fails]
