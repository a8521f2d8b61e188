"""Jobs in processes of this machine."""

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from pml_ext.distributed import threads_for
from pml_ext_train.training import PASSED_ON

from .jobs import POLL, Executor, Job, JobResult, OnProgress, run_job


class Processes(Executor):
    """Worker processes; each has its share of the threads, and GPUs are assigned in turn."""

    def __init__(self, jobs: int) -> None:
        super().__init__(jobs)
        self._context = multiprocessing.get_context("spawn")
        self._workers: dict[Connection, Any] = {}
        self._gpus = _gpus()

    def start(self, job: Job) -> None:
        """Start a job in an idle process or a new one."""
        connection = self._idle_worker() or self._new_worker()
        self.running[connection] = job
        with contextlib.suppress(BrokenPipeError):  # the process has just died, as ended() will find
            connection.send(job)

    def _idle_worker(self) -> Connection | None:
        """The pipe of an idle process; drops processes that were killed while idle."""
        for connection, process in list(self._workers.items()):
            if connection in self.running:
                continue
            if process.is_alive():
                return connection
            connection.close()
            del self._workers[connection]
        return None

    def _new_worker(self) -> Connection:
        number = min(set(range(self.jobs)) - {int(process.name) for process in self._workers.values()})
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
        for connection in wait([*self.running], timeout=POLL):
            assert isinstance(connection, Connection)
            try:
                message = connection.recv()
            except (EOFError, OSError):
                self._workers.pop(connection).join()
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
        """End all processes, busy ones by force."""
        for connection, process in self._workers.items():
            if connection in self.running:
                process.kill()
            connection.close()
            process.join()
        self._workers.clear()


def _gpus() -> list[str]:
    """This machine's GPUs, in the form of ``CUDA_VISIBLE_DEVICES``."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return visible.split(",")
    return [str(number) for number in range(torch.cuda.device_count())]


def _serve(connection: Connection, environment: dict[str, str]) -> None:
    os.environ.update(environment)  # before torch is imported, which the first job does
    os.environ[PASSED_ON] = "1"
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C goes to the parent, which passes it on once
    with contextlib.suppress(EOFError, OSError):  # the parent is gone; the run ends when it reports progress
        while True:
            job = connection.recv()
            connection.send(run_job(job, connection.send))
