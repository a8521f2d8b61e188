"""Jobs as tasks of Ray."""

import importlib.util
import sys
from types import SimpleNamespace

import pytest

from pml_ext_compare.jobs import JobResult
from pml_ext_compare.on_ray import OnRay

from .examples import Killed, Quick, jobs, metrics, silent


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_workers_of_ray_reproduce_the_same_numbers(tmp_path, here):
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
