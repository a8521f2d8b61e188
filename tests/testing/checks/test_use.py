"""Checks of memory, devices, tiles, caching and PML's trainer: planted bugs are found and named."""

import pytest

from pml_ext.testing.checks import use
from tests.testing.planted import assert_found_and_named, planted_for


@pytest.mark.parametrize("bug", planted_for(use))
def test_a_bug_is_found_and_named(bug):
    assert_found_and_named(bug)
