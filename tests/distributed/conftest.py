"""Two processes that are started as ``torchrun`` does."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

# torchrun's agent, whose processes are forked after the imports, which take most of their time otherwise
LAUNCHER = """
import gc, sys
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

here, place = sys.argv[1:]
sys.path.insert(0, here)
import cases, torch._dynamo

gc.freeze()  # the processes' collectors would copy the memory of all that was imported
where = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": "test"}
elastic_launch(LaunchConfig(1, 1, 2, start_method="fork", **where), cases.main)(place)
"""


@pytest.fixture(scope="session")
def two(make_once):
    """What ``cases.py`` saved in both processes, which all workers of pytest-xdist share."""

    def launch(folder):
        folder.mkdir()
        command = [sys.executable, "-c", LAUNCHER, Path(__file__).parent, folder]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 0, done.stderr[-4000:]

    folder, _ = make_once("two-processes", launch)
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.fixture(scope="session")
def collectives(two):
    """What collectives, batch norm and samplers gave in both processes."""
    return [saved["collectives"] for saved in two]
