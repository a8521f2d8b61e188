"""The fixtures for tests of plugins."""

import subprocess
import sys

TESTS = """
import pytest
from pytorch_metric_learning import losses

import pml_ext

pytest_plugins = ["pml_ext.testing.fixtures"]


@pytest.mark.parametrize("number", [1, 2])
def test_an_entry_is_there_once(isolated_registry, number):
    assert "scratch" not in {component.name for component in isolated_registry.components()}
    pml_ext.register(type("ScratchLoss", (losses.ContrastiveLoss,), {}), name="scratch")
    assert isolated_registry.get("scratch").kind == "loss"
"""


def test_entries_of_a_test_are_removed(tmp_path):
    """As a plugin's conftest.py names it, in a process of its own."""

    (tmp_path / "test_mine.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "test_mine.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "2 passed" in done.stdout, done.stdout
