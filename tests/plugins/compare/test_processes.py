"""Jobs in processes here: signals, kills, the same numbers."""

import os
import signal
import subprocess
import sys
from contextlib import closing

import pytest

from pml_ext.errors import StoppedError
from pml_ext_compare.executors import Executor
from pml_ext_compare.job_queue import do
from pml_ext_compare.jobs import JobResult
from pml_ext_compare.processes import Processes

from .examples import Killed, Quick, Sleeper, jobs, metrics, silent


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


def test_a_signal_ends_jobs_with_a_checkpoint(tmp_path, here, without_report):
    mine = jobs(tmp_path)
    with pytest.raises(StoppedError, match="type the same command again to continue"):
        do(mine, Executor(), lambda job, said: os.kill(os.getpid(), signal.SIGTERM))
    assert not (mine[0].plan.folder / "metrics.json").exists()
    assert metrics(mine, Executor()) == here[:1]


def test_a_signal_that_one_worker_has_lets_the_others_end_with_a_checkpoint(tmp_path):
    executor = Stopped()
    with closing(executor), pytest.raises(StoppedError, match="stopped by SIGTERM with checkpoints; type the same"):
        do(jobs(tmp_path, seeds=3), executor, silent)
    assert executor.asked
    assert executor.killed == []


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


def test_a_killed_process_is_replaced_and_its_run_resumed(tmp_path, here):
    """Also where the process has data-loader workers, which it may start."""
    said = []
    (job,) = jobs(tmp_path, more="data = { workers = 1 }")
    assert metrics([Killed(**vars(job))], Processes(1), lambda job, text: said.append(text)) == here[:1]
    assert (job.plan.folder.parent / "killed").exists()
    assert any("its worker died; another one resumes it" in str(each) for each in said)
