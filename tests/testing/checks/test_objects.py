"""Checks of components as objects: state, copies, processes, compilation: planted bugs are found and named."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pml_ext.testing.checks import objects
from tests.testing.planted import assert_found_and_named, planted_for


@pytest.mark.parametrize("bug", planted_for(objects))
def test_a_bug_is_found_and_named(bug):
    assert_found_and_named(bug)


_FORKED = """
import os
from pml_ext.testing.checks import objects
objects.fork_worker()
(worker,) = objects._workers
objects.fork_worker()
assert objects._workers == [worker]
assert worker.submit(os.getppid).result() == os.getpid()
"""
_OF_NO_USE = """
from pml_ext.testing.checks import objects
objects._can_go_backward = bool  # False
objects.fork_worker()
assert not objects._workers
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
@pytest.mark.parametrize("code", [_FORKED, _OF_NO_USE], ids=["usable", "of no use"])
def test_the_worker_is_forked_while_that_is_safe(code):
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])


_KILLED = """
import os, signal
from pml_ext.testing.checks import objects

if __name__ == "__main__":
    {start}
    print(objects._worker().submit(int).result(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
@pytest.mark.parametrize("start", ["objects.fork_worker()", "pass"], ids=["forked", "spawned"])
def test_the_worker_ends_with_a_killed_process(tmp_path, start):
    """``run`` reads until the worker, too, has closed its output."""
    script = tmp_path / "script.py"
    script.write_text(_KILLED.format(start=start))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "0\n")


SCRIPT = """
from pml_ext import CBMLLoss
from pml_ext.testing import check_component

print(check_component(CBMLLoss, checks=["check_other_process"])[0])
"""


@pytest.mark.slow
def test_a_script_without_a_main_block_is_told_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "another process runs the script again" in done.stdout
    assert "if __name__ == " in done.stdout
