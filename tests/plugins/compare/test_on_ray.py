"""Jobs as tasks of Ray."""

import importlib.util
import os
import signal
import sys
from contextlib import closing
from types import SimpleNamespace

import pytest
import torch

from pml_ext.files import read_json
from pml_ext.recipe import load_recipes
from pml_ext_compare.executors import Executor
from pml_ext_compare.job_queue import do
from pml_ext_compare.jobs import JobResult
from pml_ext_compare.on_ray import OnRay
from pml_ext_compare.runs import RunJob, plans_of

from .examples import SMALL, silent


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as the workers have: sums of other threads round otherwise
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(before)


def jobs(tmp_path, seeds=1, more=""):
    file = tmp_path / "one.toml"
    file.write_text(SMALL + more)
    return [RunJob(plan, "cpu", None) for plan in plans_of(load_recipes(str(file)), tmp_path, seeds)]


def metrics(mine, executor, on_progress=silent):
    with closing(executor):
        assert do(mine, executor, on_progress) == {}
    return [read_json(job.plan.folder / "metrics.json")["after"] for job in mine]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pml_ext.training.results.write_run_report", lambda *_: None)
        return metrics(jobs(tmp_path_factory.mktemp("here"), seeds=2), Executor())


class Quick:
    """A job that has nothing to do."""

    name = "quick"

    def do(self, on_progress):
        pass


class Killed(RunJob):
    """A run whose worker is killed once, as soon as there is a checkpoint."""

    def do(self, on_progress):
        killed = self.plan.folder.parent / "killed"

        def and_die(said):
            if any(self.plan.folder.rglob("last.pt")) and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            on_progress(said)

        super().do(and_die)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_two_workers_of_ray_one_killed_give_the_same_numbers(tmp_path, here):
    try:
        executor = OnRay(2)
    except Exception as error:
        if "timed out during startup" not in str(error):  # Ray gives its own processes 30 s
            raise
        pytest.skip(f"Ray does not start on this machine: {error}")
    first, second = jobs(tmp_path, seeds=2)
    assert metrics([Killed(**vars(first)), second], executor) == here
    assert (first.plan.folder.parent / "killed").exists()


@pytest.mark.parametrize("address", [None, "ray://there:10001"])
def test_ray_begins_here_without_an_address(monkeypatch, address):
    """Also where RAY_ADDRESS names a cluster: Ray refuses a number of processors for one that exists."""
    given = {}
    fake = SimpleNamespace(
        init=lambda **settings: given.update(settings),
        cluster_resources=dict,
        remote=lambda **_: lambda function: function,
    )
    monkeypatch.setitem(sys.modules, "ray", fake)
    OnRay(2, address)
    assert (given["address"], given.get("num_cpus")) == ((address, None) if address else ("local", 2))


def test_a_task_that_is_cancelled_is_no_error():
    class RayError(Exception):
        pass

    class TaskCancelledError(RayError):
        pass

    def get(reference):
        raise TaskCancelledError

    executor = OnRay.__new__(OnRay)
    executor.running = {"reference": Quick()}
    executor._ray = SimpleNamespace(
        wait=lambda references, timeout: (references, []),
        get=get,
        exceptions=SimpleNamespace(RayError=RayError, TaskCancelledError=TaskCancelledError),
    )
    assert [result for _, result in executor.ended(silent)] == [JobResult(died=True)]
