"""The module of wrong components, under a name that other processes can import; no limit of time for two processes."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_collection_modifyitems(items):
    """A loaded machine may take minutes to start two processes; they end with what they wait for, not with a clock."""
    for item in items:
        if "check_two_processes" in item.nodeid:
            item.add_marker(pytest.mark.timeout(0))
