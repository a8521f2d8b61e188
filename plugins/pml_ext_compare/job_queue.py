"""The queue of jobs: busy ones are tried again, and dead workers are replaced."""

import signal
import time
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

from pml_ext.errors import ConfigError, StoppedError
from pml_ext_train.training import handle_signals

from .jobs import ATTEMPTS, POLL, Executor, Job, JobResult, OnProgress


def do(jobs: Iterable[Job], executor: Executor, on_progress: OnProgress) -> dict[Any, str]:
    """Do jobs; return the errors of failed ones.

    Jobs that are busy in another process are tried again later, and jobs whose worker died once more. A signal ends all
    jobs with a checkpoint and raises StoppedError. ConfigError if a setting is wrong for all jobs.
    """
    queue = _Queue(jobs, on_progress, executor.retry_seconds)
    stopping = False
    ended_by: int | None = None  # the signal that a job had, here or where it runs
    with handle_signals(wait=True) as received:
        while queue or executor.running:
            for job in queue.take(executor.jobs - len(executor.running)):
                executor.start(job)
            if not executor.running:  # all that is left is busy elsewhere
                time.sleep(POLL)

            for job, result in executor.ended(on_progress):
                ended_by = received() or ended_by or result.stopped or None
                # A worker that has just started does not handle signals yet, and dies of one.
                died_of_signal = result.died and ended_by is not None
                if not result.stopped and not died_of_signal:
                    queue.take_result(job, result)

            ended_by = received() or ended_by
            if ended_by is not None:
                queue.clear()  # also of jobs that were busy, or whose workers died, in this round
            if ended_by is not None and not stopping:
                executor.stop()
                stopping = True

        ended_by = received() or ended_by
        if ended_by is not None:
            name = signal.Signals(ended_by).name
            raise StoppedError(ended_by, f"stopped by {name} with checkpoints; type the same command again to continue")
    return queue.errors


class _Queue:
    def __init__(self, jobs: Iterable[Job], on_progress: OnProgress, retry_seconds: float) -> None:
        self.errors: dict[Any, str] = {}
        self._waiting = deque(jobs)
        self._busy: deque[tuple[float, Job]] = deque()  # times from which to try again, and jobs
        self._retry_seconds = retry_seconds
        self._deaths = Counter[Job]()
        self._on_progress = on_progress

    def __bool__(self) -> bool:
        return bool(self._waiting or self._busy)

    def clear(self) -> None:
        self._waiting.clear()
        self._busy.clear()

    def take(self, count: int) -> list[Job]:
        """Remove and return the next jobs, at most ``count``."""
        while self._busy and self._busy[0][0] <= time.monotonic():
            _, job = self._busy.popleft()
            self._waiting.append(job)
        count = min(count, len(self._waiting))
        return [self._waiting.popleft() for _ in range(count)]

    def take_result(self, job: Job, result: JobResult) -> None:
        if result.useless:
            raise ConfigError(result.error)
        if result.busy:
            self._busy.append((time.monotonic() + self._retry_seconds, job))
        elif result.died:
            self._deaths[job] += 1
            if self._deaths[job] < ATTEMPTS:
                self._on_progress(job, f"{job.name}: its worker died; another one resumes it")
                self._waiting.append(job)
            else:
                self._end(job, f"its worker died {ATTEMPTS} times, perhaps for lack of memory")
        else:
            self._end(job, result.error)

    def _end(self, job: Job, error: str) -> None:
        if error:
            self.errors[job] = error
            self._on_progress(job, f"{job.name} failed: {error}")
        self._on_progress(job, 1.0)
