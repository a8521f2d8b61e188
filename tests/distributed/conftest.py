"""Two processes that are started as ``torchrun`` does."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch


def in_two_processes(script, folder):
    """Run a script of this folder in two processes, and return what each of them saved."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, Path(__file__).with_name(script), folder]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.fixture(scope="session")
def two(tmp_path_factory):
    """What the losses and miners of ``cases.py`` gave in both processes."""
    return in_two_processes("cases.py", tmp_path_factory.mktemp("two-processes"))


@pytest.fixture(scope="session")
def collectives(tmp_path_factory):
    """What the collectives of ``primitives.py`` gave in both processes."""
    return in_two_processes("primitives.py", tmp_path_factory.mktemp("collectives"))
