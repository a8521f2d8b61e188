"""Executors of jobs; the base runs them one by one in this process."""

import functools
from collections.abc import Iterator
from typing import Any

from .jobs import Job, JobResult, OnProgress, run_job

POLL = 0.5  # seconds between polls of running jobs
ATTEMPTS = 2  # attempts of a job whose worker dies


class Executor:
    """Runs jobs one by one in this process; subclasses run them elsewhere."""

    retry_seconds = POLL  # before a job that another process executes is tried again

    def __init__(self, jobs: int = 1) -> None:
        self.jobs = jobs  # number of jobs at a time
        self.running: dict[Any, Job] = {}

    def start(self, job: Job) -> None:
        """Accept a job; :meth:`ended` executes it."""
        self.running[job] = job

    def ended(self, on_progress: OnProgress) -> Iterator[tuple[Job, JobResult]]:
        """Yield ended jobs and their results; this may block."""
        for job in list(self.running.values()):
            del self.running[job]
            yield job, run_job(job, functools.partial(on_progress, job))

    def stop(self) -> None:
        """Ask the running jobs to write a checkpoint and end."""

    def close(self) -> None:
        """Terminate all running jobs."""
