"""Jobs in processes, on Ray and on SLURM give the numbers of jobs one by one; what dies goes on from its checkpoint."""

import importlib.util
import os
import signal

import pytest
import torch

from pml_ext.errors import StoppedError
from pml_ext.experiment.executors import Executor, OnRay, OnSlurm, Processes, done
from pml_ext.experiment.running import RunJob, plans_of

SMALL = """
extends = "pml/multi-similarity/digits"
sampler = { batch_size = 20, m = 2, iterations = 3 }
schedule = { name = "constant", epochs = 2, milestones = [] }
model = { embedding_size = 8, trunk = { blocks = 1, width = 8 } }
evaluation = { baselines = false, figures = "few", training_images = 0 }
"""


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as the workers have: sums of other threads round otherwise
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(before)


def jobs(tmp_path, name, seeds=1):
    file = tmp_path / "one.toml"
    file.write_text(SMALL)
    return [RunJob(plan, "cpu", None) for plan in plans_of(str(file), tmp_path / name, seeds)]


def metrics(tmp_path, executor, seeds=1, hear=lambda job, said: None, name=None):
    mine = jobs(tmp_path, name or type(executor).__name__, seeds)
    try:
        answers = dict(done(mine, executor, hear))
    finally:
        executor.close()
    assert [answer.error for answer in answers.values()] == [""] * seeds
    return [answers[job].value["after"] for job in mine]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pml_ext.experiment.run.write_run_report", lambda *_: None)
        return metrics(tmp_path_factory.mktemp("here"), Executor(), seeds=2)


def test_a_process_that_is_killed_is_replaced_and_its_run_goes_on(tmp_path, here):
    executor, said = Processes(1), []

    def hear(job, value):
        said.append(value)
        if not isinstance(value, str) and "killed" not in said:
            said.append("killed")
            (process,) = executor._workers.values()
            os.kill(process.pid, signal.SIGKILL)

    assert metrics(tmp_path, executor, hear=hear) == here[:1]
    assert any("its worker died; another one goes on with it" in str(each) for each in said)


def test_a_signal_ends_jobs_with_a_checkpoint(tmp_path, here, without_report):
    (job,) = jobs(tmp_path, "stopped")

    def hear(job, said):
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(StoppedError, match="go on with the same command"):
        list(done([job], Executor(), hear))
    assert not (job.plan.folder / "metrics.json").exists()
    assert metrics(tmp_path, Executor(), name="stopped") == here[:1]


class Killed(RunJob):
    """A run whose worker is killed once, as soon as there is a checkpoint."""

    def do(self, hear):
        killed = self.plan.folder.parent / "killed"

        def and_die(said):
            if any(self.plan.folder.rglob("last.pt")) and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            hear(said)

        return super().do(and_die)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_two_workers_of_ray_one_killed_give_the_same_numbers(tmp_path, here):
    try:
        executor = OnRay(2)
    except Exception as error:
        if "timed out during startup" not in str(error):  # Ray gives its own processes 30 s
            raise
        pytest.skip(f"Ray does not start on this machine: {error}")
    first, second = jobs(tmp_path, "ray", seeds=2)
    killed = Killed(**vars(first))
    try:
        answers = dict(done([killed, second], executor, lambda job, said: None))
    finally:
        executor.close()
    assert (killed.plan.folder.parent / "killed").exists()
    assert [answers[job].error for job in (killed, second)] == ["", ""]
    assert [answers[job].value["after"] for job in (killed, second)] == here


@pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed")
def test_submitit_gives_the_same_numbers(tmp_path, here):
    assert metrics(tmp_path, OnSlurm(1, tmp_path / "slurm")) == here[:1]
