"""Checks of what surrounds a call: modes, earlier calls, orders, sizes and names: planted bugs are found and named."""

import pytest

from pml_ext.testing.checks import situations
from tests.testing.planted import assert_found_and_named, planted_for


@pytest.mark.parametrize("bug", planted_for(situations))
def test_a_bug_is_found_and_named(bug):
    assert_found_and_named(bug)
