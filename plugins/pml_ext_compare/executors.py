"""Executors of a comparison's jobs: one by one in this process, in processes here, on Ray, on SLURM."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal, Protocol

from pml_ext.tool import ConfigError, PmlExtError, StoppedError, needs_extra, one_line, signals

_POLL = 0.5  # seconds between polls of running jobs, and before a busy job is retried
_ATTEMPTS = 2  # attempts of a job whose worker dies


class BusyError(Exception):
    """Another process is doing this job."""


class UselessError(Exception):
    """A setting is wrong for this job and for all others; the text says which."""


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

    def do(self, on_progress: Callable[[float | str], None]) -> None:
        """Execute the job; pass progress (0 to 1) and warnings to ``on_progress``; BusyError if it runs elsewhere."""


OnProgress = Callable[[Job, float | str], None]


def run_job(job: Job, on_progress: Callable[[float | str], None] = lambda _: None) -> JobResult:
    """Execute a job and return its outcome."""
    try:
        with signals.listening():
            job.do(on_progress)
            return JobResult()
    except BusyError:
        return JobResult(busy=True)
    except UselessError as error:
        return JobResult(error=str(error), useless=True)
    except StoppedError as error:
        return JobResult(stopped=error.signal)
    except Exception as error:
        return JobResult(error=str(error) if isinstance(error, PmlExtError) else one_line(error))


class Executor:
    """Executor of jobs one by one in this process; subclasses execute them elsewhere."""

    def __init__(self, jobs: int = 1) -> None:
        self.jobs = jobs  # number of jobs at a time
        self.running: dict[Any, Job] = {}

    def start(self, job: Job) -> None:
        """Start a job."""
        self.running[job] = job

    def ended(self, on_progress: OnProgress) -> Iterator[tuple[Job, JobResult]]:
        """Yield the ended jobs and their results; this may block."""
        for job in [*self.running]:
            with signals.waiting(False):
                yield self.running.pop(job), run_job(job, lambda said, job=job: on_progress(job, said))  # type: ignore[misc]

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
        connection = next((each for each in self._workers if each not in self.running), None)
        if connection is None:
            number = min({*range(self.jobs)} - {int(process.name) for process in self._workers.values()})
            environment = {"OMP_NUM_THREADS": str(threads_for(self.jobs))}
            if self._gpus:
                environment["CUDA_VISIBLE_DEVICES"] = self._gpus[number % len(self._gpus)]
            connection, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs, environment), name=str(number))
            process.start()
            theirs.close()
            self._workers[connection] = process
        self.running[connection] = job
        connection.send(job)

    def ended(self, on_progress: OnProgress) -> Iterator[tuple[Job, JobResult]]:
        """Yield the jobs whose processes have answered or died."""
        for connection in wait([*self.running], timeout=_POLL):
            assert isinstance(connection, Connection)
            try:
                said = connection.recv()
            except (EOFError, OSError):
                self._workers.pop(connection).join()
                said = JobResult(died=True)
            if isinstance(said, JobResult):
                yield self.running.pop(connection), said
            else:
                on_progress(self.running[connection], said)

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


def threads_for(jobs: int) -> int:
    """Return the number of threads per process: ``OMP_NUM_THREADS``, or an equal share of the processors."""
    return int(os.environ.get("OMP_NUM_THREADS", "0")) or max(1, (os.cpu_count() or 1) // jobs)


def _gpus() -> list[str]:
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]


def _serve(connection: Connection, environment: dict[str, str]) -> None:
    """Run a worker process: execute the jobs received through a pipe."""
    os.environ.update(environment)  # before torch is imported, which the first job does
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C goes to the parent, which passes it on once
    with contextlib.suppress(EOFError, OSError):  # the parent is gone: a run ends where it tells its progress
        while True:
            connection.send(run_job(connection.recv(), connection.send))


class OnRay(Executor):
    """Jobs as tasks of Ray, on the cluster at an address, or on one that is started here."""

    def __init__(self, jobs: int, address: str | None = None) -> None:
        super().__init__(jobs)
        with needs_extra("ray", "--on ray"):
            import ray
        self._ray, here = ray, {} if address else {"num_cpus": jobs, "include_dashboard": False}
        ray.init(address=address, log_to_driver=False, **here)
        gpus = min(1.0, ray.cluster_resources().get("GPU", 0) / jobs)
        # Ray itself replaces a worker that dies and restarts its task.
        options = {"num_cpus": 1, "num_gpus": gpus, "max_retries": _ATTEMPTS - 1}
        threads = {"env_vars": {"OMP_NUM_THREADS": str(threads_for(jobs))}}
        self._task = ray.remote(**options, runtime_env=threads)(run_job)

    def start(self, job: Job) -> None:
        """Start a task."""
        self.running[self._task.remote(job)] = job

    def ended(self, on_progress: OnProgress) -> Iterator[tuple[Job, JobResult]]:
        """Yield the jobs whose tasks have ended."""
        for reference in self._ray.wait([*self.running], timeout=_POLL)[0]:
            try:
                result = self._ray.get(reference)
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
        return run_job(self.job)

    def checkpoint(self) -> Any:
        """Return the submission that resumes the job."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class OnSlurm(Executor):
    """Jobs of SLURM by submitit, which does them in processes here where there is no SLURM.

    Partition, account, time and GPUs are taken from sbatch's own variables: ``SBATCH_PARTITION``, ``SBATCH_TIMELIMIT``.
    """

    def __init__(self, jobs: int, folder: Path) -> None:
        super().__init__(jobs)
        with needs_extra("slurm", "--on slurm"):
            import submitit
        self._errors = submitit.core.utils.UncompletedJobError
        self._executor = submitit.AutoExecutor(folder=folder)

    def start(self, job: Job) -> None:
        """Submit a job."""
        self.running[self._executor.submit(_Submitted(job))] = job

    def ended(self, on_progress: OnProgress) -> Iterator[tuple[Job, JobResult]]:
        """Yield the jobs that SLURM has ended."""
        time.sleep(_POLL)
        for submitted in [each for each in self.running if each.done()]:
            try:
                result = submitted.result()
            except self._errors:
                result = JobResult(died=True)
            yield self.running.pop(submitted), result

    def close(self) -> None:
        """Cancel the jobs that have not ended."""
        for submitted in self.running:
            submitted.cancel(check=False)


def make_executor(jobs: int, on: Literal["here", "ray", "slurm"], out: Path, address: str | None = None) -> Executor:
    """Return the executor for a number of concurrent jobs."""
    if on == "ray":
        return OnRay(jobs, address)
    if on == "slurm":
        return OnSlurm(jobs, out / "slurm")
    return Executor() if jobs == 1 else Processes(jobs)


def do(jobs: Iterable[Job], executor: Executor, on_progress: OnProgress) -> dict[Any, str]:
    """Do jobs, tell ``on_progress`` the errors of failed ones, and return these errors.

    A job that is busy in another process is tried again later; a job whose worker died is tried once more. A signal
    ends all jobs with a checkpoint; then StoppedError is raised. ConfigError: a setting is wrong for all jobs.
    """
    waiting, attempts, errors = deque(jobs), Counter[Job](), dict[Any, str]()
    stopped = False
    with signals.listening(), signals.waiting():
        while waiting or executor.running:
            while waiting and len(executor.running) < executor.jobs:
                executor.start(waiting.popleft())
            for job, result in executor.ended(on_progress):
                attempts[job] += result.died
                if result.stopped and not stopped:
                    raise signals.stopped(result.stopped, "with a checkpoint; go on with the same command")
                if result.stopped or (result.died and stopped):  # by the signal, perhaps before it could handle it
                    continue
                if result.useless:
                    raise ConfigError(result.error)
                if result.busy:
                    waiting.append(job)
                    time.sleep(_POLL)
                elif result.died and attempts[job] < _ATTEMPTS:
                    on_progress(job, f"{job.name}: its worker died; another one resumes it")
                    waiting.append(job)
                else:
                    died = f"its worker died {_ATTEMPTS} times, perhaps for lack of memory"
                    if error := died if result.died else result.error:
                        errors[job] = error
                        on_progress(job, f"{job.name} failed: {error}")
                    on_progress(job, 1.0)
            if signals.received():
                waiting.clear()
                if not stopped:
                    executor.stop()
                stopped = True
        signals.check("with checkpoints; go on with the same command")
    return errors
