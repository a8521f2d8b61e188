"""MLflow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import needs_extra
from . import final_metrics, kept_id

with needs_extra("mlflow", "track.name = 'mlflow'"):
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param
    from mlflow.utils.validation import MAX_METRICS_PER_BATCH, MAX_PARAMS_TAGS_PER_BATCH

_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MLflow:
    """Run of MLflow, in the store that ``MLFLOW_TRACKING_URI`` says.

    A resumed run leaves out the steps that the store has.
    """

    def __init__(self, folder: Path, recipe: Mapping[str, Any], experiment: str) -> None:
        self._client, self._values = MlflowClient(), list[Metric]()
        self._id = kept_id(folder, "mlflow", lambda: self._created(folder, recipe, experiment))
        known = self._client.get_run(self._id).data.metrics
        self._last = {name: self._client.get_metric_history(self._id, name)[-1].step for name in known}

    def _created(self, folder: Path, recipe: Mapping[str, Any], experiment: str) -> str:
        found = self._client.get_experiment_by_name(experiment)
        place = found.experiment_id if found is not None else self._client.create_experiment(experiment)
        run = self._client.create_run(place, run_name=folder.name).info.run_id
        settings = [Param(name, str(value)[:500]) for name, value in recipe.items()]
        for start in range(0, len(settings), MAX_PARAMS_TAGS_PER_BATCH):
            self._client.log_batch(run, params=settings[start : start + MAX_PARAMS_TAGS_PER_BATCH])
        return str(run)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Keep the values of a step for :meth:`flush`."""
        now = int(1000 * time.time())
        new = [name for name in values if step > self._last.get(name, 0)]
        self._values += [Metric(name, values[name], now, step) for name in new]

    def flush(self) -> None:
        """Write the values to the store."""
        values, self._values = self._values, []
        for start in range(0, len(values), MAX_METRICS_PER_BATCH):
            self._client.log_batch(self._id, metrics=values[start : start + MAX_METRICS_PER_BATCH])

    def finish(self, status: str, metrics: Mapping[str, Any], report: Path) -> None:
        """Add the final metrics, and the report as an artifact, and end the run."""
        for name, value in final_metrics(metrics).items():
            self._client.log_metric(self._id, name, value)
        if report.exists():
            self._client.log_artifact(self._id, str(report))
        self._client.set_terminated(self._id, _STATUS[status])
