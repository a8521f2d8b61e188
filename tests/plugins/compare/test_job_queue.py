"""The queue of jobs: busy, stopped, died."""

import os
import signal

import pytest

from pml_ext.errors import StoppedError
from pml_ext_compare import job_queue
from pml_ext_compare.job_queue import do
from pml_ext_compare.jobs import Executor, JobResult
from pml_ext_compare.on_slurm import OnSlurm
from pml_ext_train.training import signals

from .examples import jobs, silent


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
        first_job = next(iter(self.running))
        yield self.running.pop(first_job), self.answers.pop(0)

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
