"""Jobs: their queue, and executors in processes here, on Ray and on SLURM."""

import importlib.util
import os
import signal
import subprocess
import sys
from contextlib import closing
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from pml_ext.errors import ConfigError, StoppedError
from pml_ext_compare import job_queue, on_slurm
from pml_ext_compare.job_queue import do
from pml_ext_compare.jobs import Executor, JobResult
from pml_ext_compare.on_ray import OnRay
from pml_ext_compare.on_slurm import OnSlurm, minutes_of
from pml_ext_compare.processes import Processes
from pml_ext_train.training import signals

from .examples import Killed, Quick, Sleeper, jobs, metrics, silent


class Counting(Executor):
    """An executor that counts the jobs that are started."""

    started = 0

    def start(self, job):
        self.started += 1
        super().start(job)


class DyingWorkers(Counting):
    """Workers that a signal ends while they start, before they can handle it."""

    def __init__(self, in_the_same_poll):
        super().__init__()
        self.in_the_same_poll = in_the_same_poll

    def ended(self, on_progress):
        if signals.received() is None:
            os.kill(os.getpid(), signal.SIGTERM)
            if not self.in_the_same_poll:
                return
        for job in [*self.running]:
            yield self.running.pop(job), JobResult(died=True)


class LateAnswers(Counting):
    """Two jobs elsewhere: a signal ends the first there; the second answers something in the next round."""

    def __init__(self, answer):
        super().__init__(jobs=2)
        self.answers = [JobResult(stopped=signal.SIGTERM), answer]
        self.is_asked_to_stop = False

    def ended(self, on_progress):
        yield self.running.pop(next(iter(self.running))), self.answers.pop(0)

    def stop(self):
        self.is_asked_to_stop = True


class Busy(Counting):
    """An executor whose job is busy elsewhere at first."""

    retry_seconds = 0.01

    def ended(self, on_progress):
        for job in [*self.running]:
            yield self.running.pop(job), JobResult(busy=self.started < 3)


@pytest.mark.parametrize("in_the_same_poll", [False, True])
def test_workers_that_the_signal_ends_are_not_replaced(tmp_path, in_the_same_poll):
    said = []
    executor = DyingWorkers(in_the_same_poll)
    with pytest.raises(StoppedError, match="type the same command again to continue"):
        do(jobs(tmp_path), executor, lambda job, text: said.append(text))
    assert (said, executor.started) == ([], 1)


@pytest.mark.parametrize("answer", [JobResult(died=True), JobResult(busy=True), JobResult(stopped=signal.SIGTERM)])
def test_no_job_starts_after_a_signal(tmp_path, answer):
    said = []
    executor = LateAnswers(answer)
    with pytest.raises(StoppedError, match="SIGTERM with checkpoints"):
        do(jobs(tmp_path, seeds=2), executor, lambda job, text: said.append(text))
    assert (said, executor.started) == ([], 2)
    assert executor.is_asked_to_stop
    assert not executor.running  # the second job ended by itself


def test_a_busy_job_is_tried_again_later(tmp_path):
    executor = Busy()
    assert do(jobs(tmp_path), executor, silent) == {}
    assert executor.started == 3
    assert OnSlurm.retry_seconds >= 60  # each try is a submission
    queue = job_queue._Queue(["a", "b"], silent, retry_seconds=3600)
    (job,) = queue.take(1)
    queue.take_result(job, JobResult(busy=True))
    assert queue.take(2) == ["b"]
    assert queue  # "a" still waits


def test_a_signal_ends_jobs_with_a_checkpoint(tmp_path, here, without_report):
    mine = jobs(tmp_path)
    with pytest.raises(StoppedError, match="type the same command again to continue"):
        do(mine, Executor(), lambda job, said: os.kill(os.getpid(), signal.SIGTERM))
    assert not (mine[0].plan.folder / "metrics.json").exists()
    assert metrics(mine, Executor()) == here[:1]


@pytest.mark.nightly
def test_a_killed_idle_worker_is_replaced():
    said = []
    with closing(Processes(1)) as executor:
        assert do([Quick()], executor, silent) == {}
        (process,) = executor._workers.values()
        process.kill()
        process.join()
        assert do([Quick()], executor, lambda job, text: said.append(text)) == {}
    assert said == [1.0]  # without a death of the job


def test_a_worker_starts_without_torch():
    """Torch reads the number of its threads when it is imported, and a worker is told that number once it runs."""
    script = "import sys, pml_ext_compare.processes; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_signal_while_processes_start_is_no_death():
    said = []

    class Signaled(Processes):
        def start(self, job):
            super().start(job)
            os.kill(os.getpid(), signal.SIGTERM)

    with closing(Signaled(1)) as executor, pytest.raises(StoppedError, match="with checkpoints"):
        do([Sleeper()], executor, lambda job, text: said.append(text))
    assert said == []


@pytest.mark.nightly
def test_a_killed_workers_run_is_resumed(tmp_path, here):
    """Also where the process has data-loader workers, which it may start."""
    said = []
    (job,) = jobs(tmp_path, more="data = { workers = 1 }")
    assert metrics([Killed(**vars(job))], Processes(1), lambda job, text: said.append(text)) == here[:1]
    assert (job.plan.folder.parent / "killed").exists()
    assert any("its worker died; another one resumes it" in str(each) for each in said)


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
    executor = OnRay.__new__(OnRay)
    executor.running = {"reference": Quick()}
    executor._ray = SimpleNamespace(
        wait=lambda references, timeout: (references, []),
        get=Mock(side_effect=ChildProcessError),  # in place of Ray's, which are a class and its subclass too
        exceptions=SimpleNamespace(RayError=OSError, TaskCancelledError=ChildProcessError),
    )
    assert [result for _, result in executor.ended(silent)] == [JobResult(died=True)]


@pytest.mark.nightly
@pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed")
def test_stopping_cancels_jobs_of_submitit(tmp_path):
    executor = OnSlurm(1, tmp_path / "slurm")
    executor.start(Sleeper())
    executor.stop()
    results = []
    while executor.running:
        results += [result for _, result in executor.ended(silent)]
    assert results[0].died or results[0].stopped


@pytest.mark.nightly
@pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed")
def test_submitit_gives_the_same_numbers(tmp_path, here):
    assert metrics(jobs(tmp_path), OnSlurm(1, tmp_path / "slurm")) == here[:1]


@pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed")
def test_submitit_without_slurm_gives_jobs_their_time(tmp_path):
    from submitit.core.utils import DelayedSubmission, UncompletedJobError

    executor = OnSlurm(1, tmp_path / "slurm")
    assert executor._executor._executor.parameters["timeout_min"] > 24 * 60
    job = Mock()
    job.do.side_effect = UncompletedJobError("timed-out too many times")
    with pytest.raises(UncompletedJobError):  # raised in the job, where submitit requeues it no more
        DelayedSubmission(on_slurm._Submitted(job)).result()


def test_time_limits_of_sbatch_in_minutes():
    limits = {"90": 90, "90:30": 91, "1:30:00": 90, "1-12": 36 * 60, "1-12:30": 36 * 60 + 30, "0-0:0:1": 1}
    assert {text: minutes_of(text) for text in limits} == limits
    with pytest.raises(ConfigError, match="SBATCH_TIMELIMIT=a day: wanted minutes"):
        minutes_of("a day")


@pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed")
@pytest.mark.parametrize(("limit", "minutes"), [("1:30:00", 90), ("UNLIMITED", 525_600), ("0", 525_600)])
def test_jobs_have_the_time_limit_of_sbatch(tmp_path, monkeypatch, limit, minutes):
    given = {}
    executor = SimpleNamespace(cluster="slurm", update_parameters=lambda **settings: given.update(settings))
    monkeypatch.setattr("submitit.AutoExecutor", lambda folder: executor)
    monkeypatch.setenv("SBATCH_TIMELIMIT", limit)
    OnSlurm(1, tmp_path)
    assert given == {"timeout_min": minutes}
