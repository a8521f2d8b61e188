"""The lock of a run's folder."""

import subprocess
import sys

import pytest

from pml_ext.errors import ConfigError
from pml_ext.experiment.launch import LOCK, locked

HOLDS = """
import os, pathlib, sys
from pml_ext.experiment.launch import locked
with locked(pathlib.Path(sys.argv[1])):
    if os.fork() == 0:  # as a data loader's worker, which may live a little longer
        sys.stdin.read()
        os._exit(0)
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_living_holder_is_named_and_a_killed_one_keeps_nobody_waiting(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout.readline() == b"held\n"
    wanted = rf"is being written by another run \(process {holder.pid} on \S+, since 20.*\); wait for it or stop it"
    with pytest.raises(ConfigError, match=wanted), locked(tmp_path):
        pass
    assert (tmp_path / LOCK).exists()
    holder.kill()
    holder.wait()
    with locked(tmp_path):
        assert (tmp_path / LOCK).exists()
    assert not (tmp_path / LOCK).exists()
    holder.communicate()
