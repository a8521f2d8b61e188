"""Executors of a comparison's jobs: one by one in this process, in processes here, on Ray, on SLURM."""

from __future__ import annotations

import contextlib
import functools
import math
import multiprocessing
import os
import re
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal, Protocol

from pml_ext.tool import (
    PASSED_ON,
    ConfigError,
    PmlExtError,
    StoppedError,
    handle_signals,
    needs_extra,
    one_line,
    threads_for,
)

_POLL = 0.5  # seconds between polls of running jobs
_RETRY_ON_SLURM = 60.0  # seconds before a busy job is submitted again
_YEAR = 365 * 24 * 60  # minutes: the limit of jobs without one, which submitit otherwise gives two minutes or five
_NO_LIMIT = ("UNLIMITED", "INFINITE", "-1", "0")  # time limits of sbatch
_ATTEMPTS = 2  # attempts of a job whose worker dies
_GO_ON = "go on with the same command"

ReportProgress = Callable[[float | str], None]  # gets the share of a job that is done (0 to 1), or a message


class BusyError(Exception):
    """Another process is doing this job."""


class UselessError(Exception):
    """A setting is wrong for this job and for all others, so that doing them is useless; the text says which."""


@dataclass(frozen=True)
class JobResult:
    """The outcome of one execution of a job."""

    error: str = ""
    useless: bool = False  # the other jobs would fail with the same error
    busy: bool = False  # another process executes the job
    stopped: int = 0  # the signal that ended it
    died: bool = False  # the worker died without a result


class Job(Protocol):
    """A job that can be pickled, and resumes from where it stopped."""

    @property
    def name(self) -> str:
        """The name that messages show."""

    def do(self, on_progress: ReportProgress) -> None:
        """Execute the job; pass progress and warnings to ``on_progress``; BusyError if it runs elsewhere."""


OnProgress = Callable[[Job, float | str], None]


def _ignore_progress(said: float | str) -> None:
    pass


def run_job(
    job: Job, on_progress: ReportProgress = _ignore_progress, passed_on: tuple[type[Exception], ...] = ()
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
    """Executor of jobs one by one in this process; subclasses execute them elsewhere."""

    retry_seconds = _POLL  # before a job that another process executes is tried again

    def __init__(self, jobs: int = 1) -> None:
        self.jobs = jobs  # number of jobs at a time
        self.running: dict[Any, Job] = {}

    def start(self, job: Job) -> None:
        """Take a job, which :meth:`ended` executes."""
        self.running[job] = job

    def ended(self, on_progress: OnProgress) -> Iterator[tuple[Job, JobResult]]:
        """Yield the ended jobs and their results; this may block."""
        for job in list(self.running.values()):
            del self.running[job]
            yield job, run_job(job, functools.partial(on_progress, job))

    def stop(self) -> None:
        """Ask the running jobs to write a checkpoint and end."""

    def close(self) -> None:
        """Terminate all jobs that still run."""


class Processes(Executor):
    """Jobs in processes of this machine, each with its share of the threads and a GPU of its own in turn."""

    def __init__(self, jobs: int) -> None:
        super().__init__(jobs)
        self._context = multiprocessing.get_context("spawn")
        self._workers: dict[Connection, Any] = {}
        self._gpus = _gpus()

    def start(self, job: Job) -> None:
        """Start a job in an idle process, or in a new one."""
        connection = self._idle_worker() or self._new_worker()
        self.running[connection] = job
        with contextlib.suppress(BrokenPipeError):  # the process has just died, as ended() will find
            connection.send(job)

    def _idle_worker(self) -> Connection | None:
        """Return the pipe of an idle process; forget those that were killed while they were idle."""
        for connection, process in list(self._workers.items()):
            if connection in self.running:
                continue
            if process.is_alive():
                return connection
            connection.close()
            del self._workers[connection]
        return None

    def _new_worker(self) -> Connection:
        """Start a process with the least free number, by which it gets its GPU."""
        used_numbers = {int(process.name) for process in self._workers.values()}
        number = min(set(range(self.jobs)) - used_numbers)
        environment = {"OMP_NUM_THREADS": str(threads_for(self.jobs))}
        if self._gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self._gpus[number % len(self._gpus)]

        connection, worker_end = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(worker_end, environment), name=str(number))
        process.start()
        worker_end.close()
        self._workers[connection] = process
        return connection

    def ended(self, on_progress: OnProgress) -> Iterator[tuple[Job, JobResult]]:
        """Yield the jobs whose processes have answered or died."""
        for connection in wait([*self.running], timeout=_POLL):
            assert isinstance(connection, Connection)
            try:
                message = connection.recv()
            except (EOFError, OSError):
                process = self._workers.pop(connection)
                process.join()
                message = JobResult(died=True)
            if isinstance(message, JobResult):
                yield self.running.pop(connection), message
            else:
                on_progress(self.running[connection], message)

    def stop(self) -> None:
        """Send SIGTERM to the busy processes."""
        for connection in self.running:
            self._workers[connection].terminate()

    def close(self) -> None:
        """End all processes: idle ones by closing their pipes, the others by force."""
        for connection, process in self._workers.items():
            if connection in self.running:
                process.kill()
            connection.close()
            process.join()
        self._workers.clear()


def _gpus() -> list[str]:
    """Return the names of this machine's GPUs, as ``CUDA_VISIBLE_DEVICES`` takes them."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return visible.split(",")
    return [str(number) for number in range(torch.cuda.device_count())]


def _serve(connection: Connection, environment: dict[str, str]) -> None:
    """Run a worker process: execute the jobs received through a pipe."""
    os.environ.update(environment)  # before torch is imported, which the first job does
    os.environ[PASSED_ON] = "1"
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C goes to the parent, which passes it on once
    with contextlib.suppress(EOFError, OSError):  # the parent is gone: a run ends where it tells its progress
        while True:
            job = connection.recv()
            result = run_job(job, connection.send)
            connection.send(result)


class OnRay(Executor):
    """Jobs as tasks of Ray, on the cluster at an address, or on one that is started here."""

    def __init__(self, jobs: int, address: str | None = None) -> None:
        super().__init__(jobs)
        with needs_extra("ray", "--on ray"):
            import ray
        self._ray = ray
        if address:
            ray.init(address=address, log_to_driver=False)
        else:
            # "local": without an address, Ray would join a cluster that runs here, or that RAY_ADDRESS names
            ray.init(address="local", num_cpus=jobs, include_dashboard=False, log_to_driver=False)

        gpus_per_job = ray.cluster_resources().get("GPU", 0) / jobs
        environment = {"OMP_NUM_THREADS": str(threads_for(jobs))}
        as_task = ray.remote(
            num_cpus=1,
            num_gpus=min(1.0, gpus_per_job),
            max_retries=_ATTEMPTS - 1,  # Ray itself replaces a worker that dies and restarts its task
            runtime_env={"env_vars": environment},
        )
        self._task = as_task(run_job)

    def start(self, job: Job) -> None:
        """Start a task."""
        self.running[self._task.remote(job)] = job

    def ended(self, on_progress: OnProgress) -> Iterator[tuple[Job, JobResult]]:
        """Yield the jobs whose tasks have ended."""
        ready, _ = self._ray.wait([*self.running], timeout=_POLL)
        for reference in ready:
            try:
                result = self._ray.get(reference)
            except self._ray.exceptions.TaskCancelledError:  # by stop()
                result = JobResult(died=True)
            except self._ray.exceptions.RayError as error:
                result = JobResult(error=f"Ray: {one_line(error)}")
            yield self.running.pop(reference), result

    def stop(self) -> None:
        """Interrupt the tasks."""
        for reference in self.running:
            self._ray.cancel(reference)

    def close(self) -> None:
        """Leave the cluster, which ends its tasks."""
        self._ray.shutdown()


@dataclass(frozen=True)
class _Submitted:
    """A job that SLURM requeues after a timeout or preemption."""

    job: Job

    def __call__(self) -> JobResult:
        from submitit.core.utils import UncompletedJobError  # raised where the job was requeued too often

        return run_job(self.job, passed_on=(UncompletedJobError,))

    def checkpoint(self) -> Any:
        """Return the submission that resumes the job."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class OnSlurm(Executor):
    """Jobs of SLURM by submitit, which does them in processes here where there is no SLURM.

    Partition, account, time and GPUs are taken from sbatch's own variables: ``SBATCH_PARTITION``, ``SBATCH_TIMELIMIT``.
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
        """Yield the jobs that SLURM has ended."""
        time.sleep(_POLL)
        ended = [submitted for submitted in self.running if submitted.done()]
        for submitted in ended:
            try:
                result = submitted.result()
            except self._errors:
                result = JobResult(died=True)
            yield self.running.pop(submitted), result

    def stop(self) -> None:
        """Cancel the jobs: SLURM sends SIGTERM, on which a run writes its checkpoint."""
        for submitted in self.running:
            submitted.cancel(check=False)

    def close(self) -> None:
        """Cancel the jobs that have not ended."""
        self.stop()


def minutes_of(time_limit: str) -> int:
    """Return the minutes of a time limit of sbatch, rounded up: ``"90"``, ``"90:00"``, ``"1:30:00"``, ``"1-12"``.

    ConfigError for another text.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time_limit.strip())
    if match is None:
        raise ConfigError(f"SBATCH_TIMELIMIT={time_limit}: wanted minutes, HOURS:MINUTES:SECONDS or DAYS-HOURS")
    days, first, second, third = match.groups()
    numbers = [int(number or 0) for number in (first, second, third)]
    has_hours = days is not None or third is not None
    if not has_hours:  # MINUTES, MINUTES:SECONDS
        numbers = [0, *numbers[:2]]
    hours, minutes, seconds = numbers
    hours += 24 * int(days or 0)
    return 60 * hours + minutes + math.ceil(seconds / 60)


def make_executor(jobs: int, on: Literal["here", "ray", "slurm"], out: Path, address: str | None = None) -> Executor:
    """Return the executor for a number of concurrent jobs."""
    if on == "ray":
        return OnRay(jobs, address)
    if on == "slurm":
        return OnSlurm(jobs, out / "slurm")
    if jobs == 1:
        return Executor()
    return Processes(jobs)


def do(jobs: Iterable[Job], executor: Executor, on_progress: OnProgress) -> dict[Any, str]:
    """Do jobs, tell ``on_progress`` the errors of failed ones, and return these errors.

    A job that is busy in another process is tried again later; a job whose worker died is tried once more. A signal
    ends all jobs with a checkpoint; then StoppedError is raised. ConfigError: a setting is wrong for all jobs.
    """
    queue = _Queue(jobs, on_progress, executor.retry_seconds)
    stopping = False
    ended_by: int | None = None  # the signal that a job had, here or where it runs
    with handle_signals(wait=True) as received:
        while queue or executor.running:
            for job in queue.take(executor.jobs - len(executor.running)):
                executor.start(job)
            if not executor.running:  # all that is left is busy elsewhere
                time.sleep(_POLL)

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
            raise _stopped_by(ended_by, f"with checkpoints; {_GO_ON}")
    return queue.errors


class _Queue:
    """The jobs that wait, and what became of the others.

    A job that is busy elsewhere waits for some seconds before it is tried again.
    """

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
        """Drop all jobs."""
        self._waiting.clear()
        self._busy.clear()

    def take(self, count: int) -> list[Job]:
        """Remove and return the next jobs that may start, at most ``count``."""
        while self._busy and self._busy[0][0] <= time.monotonic():
            _, job = self._busy.popleft()
            self._waiting.append(job)
        count = min(count, len(self._waiting))
        return [self._waiting.popleft() for _ in range(count)]

    def take_result(self, job: Job, result: JobResult) -> None:
        """Let a job wait again, or note that it has ended."""
        if result.useless:
            raise ConfigError(result.error)
        if result.busy:
            self._busy.append((time.monotonic() + self._retry_seconds, job))
        elif result.died:
            self._replace_worker(job)
        else:
            self._end(job, result.error)

    def _replace_worker(self, job: Job) -> None:
        self._deaths[job] += 1
        if self._deaths[job] < _ATTEMPTS:
            self._on_progress(job, f"{job.name}: its worker died; another one resumes it")
            self._waiting.append(job)
        else:
            self._end(job, f"its worker died {_ATTEMPTS} times, perhaps for lack of memory")

    def _end(self, job: Job, error: str) -> None:
        if error:
            self.errors[job] = error
            self._on_progress(job, f"{job.name} failed: {error}")
        self._on_progress(job, 1.0)


def _stopped_by(number: int, text: str) -> StoppedError:
    name = signal.Signals(number).name
    return StoppedError(number, f"stopped by {name} {text}")
