"""Jobs in processes, on Ray and on SLURM give the numbers of jobs one by one; killed ones resume from a checkpoint."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from types import SimpleNamespace

import pytest
import torch

from pml_ext.errors import ConfigError, StoppedError
from pml_ext.files import read_json
from pml_ext.recipe import load_recipes
from pml_ext.training import signals
from pml_ext_compare import executors
from pml_ext_compare.executors import Executor, JobResult, OnRay, OnSlurm, Processes, do, minutes_of
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


def test_a_signal_ends_jobs_with_a_checkpoint(tmp_path, here, without_report):
    mine = jobs(tmp_path)
    with pytest.raises(StoppedError, match="go on with the same command"):
        do(mine, Executor(), lambda job, said: os.kill(os.getpid(), signal.SIGTERM))
    assert not (mine[0].plan.folder / "metrics.json").exists()
    assert metrics(mine, Executor()) == here[:1]


class DyingWorkers(Executor):
    """Workers that a signal ends while they start, before they can handle it."""

    def __init__(self, in_the_same_poll):
        super().__init__()
        self.in_the_same_poll = in_the_same_poll
        self.started = 0

    def start(self, job):
        self.started += 1
        super().start(job)

    def ended(self, on_progress):
        if signals.received() is None:
            os.kill(os.getpid(), signal.SIGTERM)
            if not self.in_the_same_poll:
                return
        for job in [*self.running]:
            yield self.running.pop(job), JobResult(died=True)


@pytest.mark.parametrize("in_the_same_poll", [False, True])
def test_workers_that_the_signal_ends_are_not_replaced(tmp_path, in_the_same_poll):
    said = []
    executor = DyingWorkers(in_the_same_poll)
    with pytest.raises(StoppedError, match="go on with the same command"):
        do(jobs(tmp_path), executor, lambda job, text: said.append(text))
    assert (said, executor.started) == ([], 1)


class Stopped(Executor):
    """Jobs elsewhere, one of which a signal ends there before the others, and before this process has it."""

    def __init__(self):
        super().__init__(jobs=2)
        self.asked = False
        self.killed = []

    def ended(self, on_progress):
        ended = [*self.running] if self.asked else [*self.running][:1]
        for job in ended:
            yield self.running.pop(job), JobResult(stopped=signal.SIGTERM)

    def stop(self):
        self.asked = True

    def close(self):
        self.killed = [*self.running]


def test_a_signal_that_one_worker_has_lets_the_others_end_with_a_checkpoint(tmp_path):
    executor = Stopped()
    with closing(executor), pytest.raises(StoppedError, match="SIGTERM with checkpoints; go on with the same command"):
        do(jobs(tmp_path, seeds=3), executor, silent)
    assert executor.asked
    assert executor.killed == []


class LateAnswers(Executor):
    """Two jobs elsewhere: a signal ends the first there; the second answers something in the next round."""

    def __init__(self, answer):
        super().__init__(jobs=2)
        self.answers = [JobResult(stopped=signal.SIGTERM), answer]
        self.started = 0

    def start(self, job):
        self.started += 1
        super().start(job)

    def ended(self, on_progress):
        first_job = next(iter(self.running))
        yield self.running.pop(first_job), self.answers.pop(0)


@pytest.mark.parametrize("answer", [JobResult(died=True), JobResult(busy=True)])
def test_no_job_starts_again_once_a_signal_has_ended_one(tmp_path, answer):
    said = []
    executor = LateAnswers(answer)
    with pytest.raises(StoppedError, match="SIGTERM with checkpoints"):
        do(jobs(tmp_path, seeds=2), executor, lambda job, text: said.append(text))
    assert (said, executor.started) == ([], 2)


class Busy(Executor):
    """An executor whose job is busy elsewhere at first."""

    retry_seconds = 0.01

    def __init__(self):
        super().__init__()
        self.tries = 0

    def ended(self, on_progress):
        for job in [*self.running]:
            self.tries += 1
            yield self.running.pop(job), JobResult(busy=self.tries < 3)


def test_a_busy_job_is_tried_again_after_a_while(tmp_path):
    executor = Busy()
    assert do(jobs(tmp_path), executor, silent) == {}
    assert executor.tries == 3
    assert OnSlurm.retry_seconds >= 60  # each try is a submission
    queue = executors._Queue(["a", "b"], silent, retry_seconds=3600)
    (job,) = queue.take(1)
    queue.take_result(job, JobResult(busy=True))
    assert queue.take(2) == ["b"]
    assert queue  # "a" still waits


class Quick:
    """A job that has nothing to do."""

    name = "quick"

    def do(self, on_progress):
        pass


def test_a_worker_killed_while_it_is_idle_is_replaced():
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
    script = "import sys, pml_ext_compare.executors; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


class Sleeper:
    """A job whose worker tells that it has begun to start, and takes its time."""

    name = "sleeper"

    def do(self, on_progress):
        time.sleep(600)


def test_a_signal_while_processes_start_is_no_death():
    said = []

    class Signaled(Processes):
        def start(self, job):
            super().start(job)
            os.kill(os.getpid(), signal.SIGTERM)

    with closing(Signaled(1)) as executor, pytest.raises(StoppedError, match="with checkpoints"):
        do([Sleeper()], executor, lambda job, text: said.append(text))
    assert said == []


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


def test_a_killed_process_is_replaced_and_its_run_resumed(tmp_path, here):
    """Also where the process has data-loader workers, which it may start."""
    said = []
    (job,) = jobs(tmp_path, more="data = { workers = 1 }")
    assert metrics([Killed(**vars(job))], Processes(1), lambda job, text: said.append(text)) == here[:1]
    assert (job.plan.folder.parent / "killed").exists()
    assert any("its worker died; another one resumes it" in str(each) for each in said)


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


@pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed")
def test_jobs_of_submitit_are_cancelled_when_they_are_to_stop(tmp_path):
    executor = OnSlurm(1, tmp_path / "slurm")
    executor.start(Sleeper())
    executor.stop()
    results = []
    while executor.running:
        results += [result for _, result in executor.ended(silent)]
    assert results[0].died or results[0].stopped


@pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed")
def test_submitit_gives_the_same_numbers(tmp_path, here):
    assert metrics(jobs(tmp_path), OnSlurm(1, tmp_path / "slurm")) == here[:1]


@pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed")
def test_submitit_without_slurm_gives_jobs_their_time(tmp_path):
    from submitit.core.utils import DelayedSubmission, UncompletedJobError

    a_day = 24 * 60
    executor = OnSlurm(1, tmp_path / "slurm")
    assert executor._executor._executor.parameters["timeout_min"] > a_day
    with pytest.raises(UncompletedJobError):  # raised in the job, where submitit requeues it no more
        DelayedSubmission(executors._Submitted(TimedOut())).result()


class TimedOut:
    """A job that submitit ends, as it does where a job was requeued too often."""

    name = "timed out"

    def do(self, on_progress):
        from submitit.core.utils import UncompletedJobError

        raise UncompletedJobError("timed-out too many times")


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


def test_time_limits_of_sbatch():
    limits = {"90": 90, "90:30": 91, "1:30:00": 90, "1-12": 36 * 60, "1-12:30": 36 * 60 + 30, "0-0:0:1": 1}
    assert {text: minutes_of(text) for text in limits} == limits
    with pytest.raises(ConfigError, match="SBATCH_TIMELIMIT=a day: wanted minutes"):
        minutes_of("a day")


@pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed")
@pytest.mark.parametrize(("limit", "minutes"), [("1:30:00", 90), ("UNLIMITED", 525_600), ("0", 525_600)])
def test_jobs_of_slurm_have_the_time_limit_of_sbatch(tmp_path, monkeypatch, limit, minutes):
    import submitit

    given = {}
    executor = SimpleNamespace(cluster="slurm", update_parameters=lambda **settings: given.update(settings))
    monkeypatch.setattr(submitit, "AutoExecutor", lambda folder: executor)
    monkeypatch.setenv("SBATCH_TIMELIMIT", limit)
    OnSlurm(1, tmp_path)
    assert given == {"timeout_min": minutes}
