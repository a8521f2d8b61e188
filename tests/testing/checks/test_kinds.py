"""Checks of miners, distances and reducers: planted bugs are found and named."""

import pytest

from pml_ext.testing.checks import kinds
from tests.testing.planted import assert_found_and_named, planted_for


@pytest.mark.parametrize("bug", planted_for(kinds))
def test_a_bug_is_found_and_named(bug):
    assert_found_and_named(bug)
