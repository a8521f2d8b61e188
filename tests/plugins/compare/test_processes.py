"""Jobs in processes here: signals, kills, the same numbers."""

import os
import signal
import subprocess
import sys
from contextlib import closing

import pytest

from pml_ext.errors import StoppedError
from pml_ext_compare.job_queue import do
from pml_ext_compare.jobs import Executor
from pml_ext_compare.processes import Processes

from .examples import Killed, Quick, Sleeper, jobs, metrics, silent


def test_a_signal_ends_jobs_with_a_checkpoint(tmp_path, here, without_report):
    mine = jobs(tmp_path)
    with pytest.raises(StoppedError, match="type the same command again to continue"):
        do(mine, Executor(), lambda job, said: os.kill(os.getpid(), signal.SIGTERM))
    assert not (mine[0].plan.folder / "metrics.json").exists()
    assert metrics(mine, Executor()) == here[:1]


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


def test_a_killed_workers_run_is_resumed(tmp_path, here):
    """Also where the process has data-loader workers, which it may start."""
    said = []
    (job,) = jobs(tmp_path, more="data = { workers = 1 }")
    assert metrics([Killed(**vars(job))], Processes(1), lambda job, text: said.append(text)) == here[:1]
    assert (job.plan.folder.parent / "killed").exists()
    assert any("its worker died; another one resumes it" in str(each) for each in said)
