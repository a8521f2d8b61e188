"""Jobs as tasks of Ray."""

from collections.abc import Iterator
from typing import Any

from pml_ext.distributed import threads_for
from pml_ext.errors import needs_extra, one_line

from .jobs import ATTEMPTS, POLL, Executor, Job, JobResult, OnProgress, run_job


class OnRay(Executor):
    """Tasks of Ray, on the cluster at an address or on one that is started here."""

    def __init__(self, jobs: int, address: str | None = None) -> None:
        super().__init__(jobs)
        with needs_extra("ray", "--on ray"):
            import ray
        self._ray = ray
        # "local": without an address, Ray would join a cluster that runs here, or that RAY_ADDRESS names
        options: dict[str, Any] = {} if address else {"num_cpus": jobs, "include_dashboard": False}
        ray.init(address=address or "local", log_to_driver=False, **options)

        gpus_per_job = ray.cluster_resources().get("GPU", 0) / jobs
        as_task = ray.remote(
            num_cpus=1,
            num_gpus=min(1.0, gpus_per_job),
            max_retries=ATTEMPTS - 1,  # Ray itself replaces a worker that dies and restarts its task
            runtime_env={"env_vars": {"OMP_NUM_THREADS": str(threads_for(jobs))}},
        )
        self._task = as_task(run_job)

    def start(self, job: Job) -> None:
        """Start a task."""
        self.running[self._task.remote(job)] = job

    def ended(self, on_progress: OnProgress) -> Iterator[tuple[Job, JobResult]]:
        """Yield the jobs of ended tasks."""
        ready, _ = self._ray.wait([*self.running], timeout=POLL)
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
