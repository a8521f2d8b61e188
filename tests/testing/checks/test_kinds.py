"""Checks of miners, distances and reducers: planted bugs are found and named."""

import re

import pytest

from pml_ext.testing.checks import kinds
from tests.testing.planted import planted_for, text_of


@pytest.mark.parametrize("bug", planted_for(kinds))
def test_a_bug_is_found_and_named(bug):
    text = text_of(bug)
    assert len(text) > 25
    assert re.search(bug.text, text), text
