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
import cases, primitives, torch._dynamo

def work():
    for module in (cases, primitives):
        module.main(f"{place}/{module.__name__}")

gc.freeze()  # the processes' collectors would copy the memory of all that was imported
where = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": "test"}
elastic_launch(LaunchConfig(1, 1, 2, start_method="fork", **where), work)()
"""


@pytest.fixture(scope="session")
def saved(make_once):
    """What ``cases.py`` and ``primitives.py`` saved in both processes, which all workers of pytest-xdist share."""

    def launch(folder):
        for name in NAMES:
            (folder / name).mkdir(parents=True)
        command = [sys.executable, "-c", LAUNCHER, Path(__file__).parent, folder]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 0, done.stderr[-4000:]

    folder, _ = make_once("two-processes", launch)
    found = {}
    for name in NAMES:
        found[name] = [torch.load(folder / name / f"rank-{rank}.pt", weights_only=False) for rank in range(2)]
    return found


NAMES = ("cases", "primitives")


@pytest.fixture(scope="session")
def two(saved):
    """What the losses and miners of ``cases.py`` gave in both processes."""
    return saved["cases"]


@pytest.fixture(scope="session")
def collectives(saved):
    """What the collectives of ``primitives.py`` gave in both processes."""
    return saved["primitives"]
