"""Jobs of a comparison, their outcome, and the executor that runs them one by one in this process."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from pml_ext.errors import PmlExtError, StoppedError, one_line
from pml_ext_train.training import handle_signals

POLL = 0.5  # seconds between polls of running jobs
ATTEMPTS = 2  # attempts of a job whose worker dies
ReportProgress = Callable[[float | str], None]  # gets the share of a job that is done (0 to 1), or a message


class BusyError(Exception):
    """Another process is doing this job."""


class UselessError(Exception):
    """A setting is wrong for all jobs; the text names it."""


@dataclass(frozen=True)
class JobResult:
    """The outcome of one execution of a job."""

    error: str = ""
    useless: bool = False  # the other jobs would fail with the same error
    busy: bool = False  # another process executes the job
    stopped: int = 0  # the signal that ended it
    died: bool = False  # the worker died without a result


class Job(Protocol):
    """A job that can be pickled and resumed."""

    @property
    def name(self) -> str:
        """The name in messages."""

    def do(self, on_progress: ReportProgress) -> None:
        """Execute the job and report its progress; BusyError if it runs elsewhere."""


OnProgress = Callable[[Job, float | str], None]


def run_job(
    job: Job, on_progress: ReportProgress = lambda said: None, passed_on: tuple[type[Exception], ...] = ()
) -> JobResult:
    """Execute a job and return its outcome; raise errors of the classes ``passed_on``."""
    try:
        with handle_signals():
            job.do(on_progress)
        return JobResult()
    except passed_on:
        raise
    except BusyError:
        return JobResult(busy=True)
    except UselessError as error:
        return JobResult(error=str(error), useless=True)
    except StoppedError as error:
        return JobResult(stopped=error.signal)
    except PmlExtError as error:
        return JobResult(error=str(error))
    except Exception as error:
        return JobResult(error=one_line(error))


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
