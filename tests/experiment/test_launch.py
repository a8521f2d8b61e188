"""The lock of a run's folder."""

import subprocess
import sys

import pytest

from pml_ext.errors import ConfigError
from pml_ext.experiment.launch import locked

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


def test_a_living_holder_keeps_others_out_and_a_killed_one_nobody(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(ConfigError, match="is being written by another run; wait for it or stop"), locked(tmp_path):
        pass
    holder.kill()
    holder.wait()
    with locked(tmp_path):
        pass
    holder.communicate()
