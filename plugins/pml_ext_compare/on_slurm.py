"""Jobs of SLURM, by submitit."""

import math
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pml_ext.errors import ConfigError, needs_extra

from .jobs import POLL, Executor, Job, JobResult, OnProgress, run_job

_RETRY_ON_SLURM = 60.0  # seconds before a busy job is submitted again
_YEAR = 365 * 24 * 60  # minutes: the limit of jobs without one, which submitit otherwise gives two minutes or five
_NO_LIMIT = ("UNLIMITED", "INFINITE", "-1", "0")  # time limits of sbatch


@dataclass(frozen=True)
class _Submitted:
    """A job that SLURM requeues after a timeout or preemption."""

    job: Job

    def __call__(self) -> JobResult:
        from submitit.core.utils import UncompletedJobError  # raised where the job was requeued too often

        return run_job(self.job, passed_on=(UncompletedJobError,))

    def checkpoint(self) -> Any:
        """The submission that resumes the job."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class OnSlurm(Executor):
    """Jobs of SLURM; without SLURM, submitit runs them in local processes.

    The variables of sbatch set partition, account, time and GPUs, such as ``SBATCH_PARTITION``.
    """

    retry_seconds = _RETRY_ON_SLURM

    def __init__(self, jobs: int, folder: Path) -> None:
        super().__init__(jobs)
        with needs_extra("slurm", "--on slurm"):
            import submitit
        self._errors = submitit.core.utils.UncompletedJobError
        self._executor = submitit.AutoExecutor(folder=folder)
        time_limit = os.environ.get("SBATCH_TIMELIMIT")
        is_unlimited = time_limit is not None and time_limit.strip().upper() in _NO_LIMIT
        if self._executor.cluster == "local" or is_unlimited:
            self._executor.update_parameters(timeout_min=_YEAR)
        elif time_limit is not None:  # submitit compares it with a job's time, to tell a timeout from a preemption
            self._executor.update_parameters(timeout_min=minutes_of(time_limit))

    def start(self, job: Job) -> None:
        """Submit a job."""
        self.running[self._executor.submit(_Submitted(job))] = job

    def ended(self, on_progress: OnProgress) -> Iterator[tuple[Job, JobResult]]:
        """Yield the ended jobs."""
        time.sleep(POLL)
        for submitted in [each for each in self.running if each.done()]:
            try:
                result = submitted.result()
            except self._errors:
                result = JobResult(died=True)
            yield self.running.pop(submitted), result

    def stop(self) -> None:
        """Cancel the jobs; on SIGTERM, a run writes its checkpoint."""
        for submitted in self.running:
            submitted.cancel(check=False)

    def close(self) -> None:
        """Cancel the jobs that have not ended."""
        self.stop()


def minutes_of(time_limit: str) -> int:
    """Minutes of a time limit of sbatch, rounded up: ``"90"``, ``"90:00"``, ``"1:30:00"``, ``"1-12"``."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+(?::\d+){0,2})", time_limit.strip())
    if match is None:
        raise ConfigError(f"SBATCH_TIMELIMIT={time_limit}: wanted minutes, HOURS:MINUTES:SECONDS or DAYS-HOURS")
    days, clock = match.groups()
    numbers = [int(number) for number in clock.split(":")]
    if days is None and len(numbers) < 3:  # MINUTES, MINUTES:SECONDS
        numbers.insert(0, 0)
    hours, minutes, seconds = [*numbers, 0, 0][:3]
    return 60 * (24 * int(days or 0) + hours) + minutes + math.ceil(seconds / 60)
