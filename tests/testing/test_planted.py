"""Bugs planted in components: the check that finds each, and that it names the fault."""

import re

import planted
import pytest
import wrong

from pml_ext import registry
from pml_ext.testing import check_component

PLANTED = [*planted.LOSSES, *planted.OTHERS]


@pytest.mark.parametrize(("component", "check", "text", "given"), PLANTED, ids=[each[0].__name__ for each in PLANTED])
def test_a_bug_is_found_and_named(component, check, text, given):
    (result,) = check_component(component, checks=[check], on_fail=None, **given)
    assert result.status == "failed"
    assert re.search(text, result.text), result.text


@pytest.mark.parametrize("component", planted.GOOD)
def test_what_they_are_planted_in_passes(component):
    results = check_component(component, on_fail=None, checks=wrong.short_checks(registry.kind_of(component)))
    assert not [(result.check, result.text) for result in results if result.fails]


def test_how_many():
    assert len(planted.LOSSES) >= 40
    assert len(planted.OTHERS) >= 20
    assert len({component for component, *_ in PLANTED}) == len(PLANTED)
