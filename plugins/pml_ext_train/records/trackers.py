"""Trackers, which record values during training."""

import importlib
import math
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from pml_ext import registry
from pml_ext.errors import needs_extra
from pml_ext.evaluation.metrics import headline_metric

from ..files import read_json, write_json
from ..recipe import FILLED_FOR_TRACKER, NamedTable, options_of


class Tracker(Protocol):
    """The interface of a tracker, on rank 0; ``flush()`` is optional.

    Names are ``"TABLE/COLUMN"``. A step is the iteration of the run, from 1, or the epoch for ``accuracies...``.
    """

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Record values of a step, including NaN; called for groups of steps."""

    def finish(self, status: str, metrics: Mapping[str, Any], report: Path) -> None:
        """End a run as ``"finished"`` (with metrics and report), ``"stopped"`` or ``"failed"``."""


def of_epochs(name: str) -> bool:
    """Return whether a table is recorded per epoch."""
    return name.startswith("accuracies")


def phases_of(metrics: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the phases of ``metrics.json`` with their metrics."""
    return {phase: values for phase, values in metrics.items() if isinstance(values, dict) and headline_metric(values)}


def final_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of ``metrics.json`` as ``"after/recall_at_1"``."""
    numbers: dict[str, float] = {}
    for phase, values in phases_of(metrics).items():
        numbers |= {f"{phase}/{name}": value for name, value in values.items()}
    return numbers


def persistent_id(folder: Path, tracker: str, new: Callable[[], str]) -> str:
    """Return a tracker's id of a run, for resuming; ``new()`` makes one."""
    path = folder / "trackers.json"
    known = read_json(path) if path.exists() else {}
    if tracker not in known:
        known[tracker] = new()
        write_json(path, known)
    return str(known[tracker])


def import_tracker(name: str) -> None:
    """Import a built-in tracker's package, or raise MissingExtraError."""
    if name not in builtin_trackers():
        return
    extra, package = ("train", "torch.utils.tensorboard") if name == "tensorboard" else (name, name)
    with needs_extra(extra, f"track.name = {name!r}"):
        importlib.import_module(package)


def builtin_trackers() -> dict[str, Callable[..., Tracker]]:
    """Return built-in trackers by name."""
    return {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow, "trackio": Trackio}


class TensorBoard:
    """Event files in ``tensorboard/``; resuming purges later events."""

    def __init__(self, folder: Path, recipe: Mapping[str, Any], iteration: int, epoch: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._iterations = SummaryWriter(str(folder / "tensorboard"), purge_step=iteration + 1)
        self._epochs = SummaryWriter(str(folder / "tensorboard" / "epochs"), purge_step=epoch + 1)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write the values of a step; NaN is left out."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        for writer, epochs in ((self._iterations, False), (self._epochs, True)):
            entries = [
                Summary.Value(tag=name, simple_value=value)
                for name, value in values.items()
                if of_epochs(name) is epochs and not math.isnan(value)
            ]
            if entries:  # add_scalar would take 50 microseconds per value
                summary = Summary(value=entries)
                writer.file_writer.add_summary(summary, step)  # type: ignore[attr-defined]

    def flush(self) -> None:
        """Write what is buffered."""
        self._iterations.flush()
        self._epochs.flush()

    def finish(self, status: str, metrics: Mapping[str, Any], report: Path) -> None:
        """Close the files."""
        self._iterations.close()
        self._epochs.close()


class WeightsAndBiases:
    """Weights & Biases, with files in ``wandb/``; variables such as ``WANDB_MODE`` apply.

    The x-axes are ``iteration`` and ``epoch``, because W&B's steps cannot decrease.
    """

    def __init__(
        self,
        folder: Path,
        recipe: Mapping[str, Any],
        project: str = "pml-ext",
        entity: str | None = None,
        group: str | None = None,
    ) -> None:
        import wandb

        self._run = wandb.init(
            project=project,
            entity=entity,
            group=group,
            name=folder.name,
            id=persistent_id(folder, "wandb", lambda: uuid.uuid4().hex),
            resume="allow",
            dir=folder,
            config=dict(recipe),
        )
        self._run.define_metric("*", step_metric="iteration")
        self._run.define_metric("accuracies_*", step_metric="epoch")

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the values of a step."""
        for step_name, epochs in (("iteration", False), ("epoch", True)):
            chosen = {name: value for name, value in values.items() if of_epochs(name) == epochs}
            if chosen:
                self._run.log({**chosen, step_name: step})

    def finish(self, status: str, metrics: Mapping[str, Any], report: Path) -> None:
        """Add final metrics and report."""
        self._run.summary.update(final_metrics(metrics))
        if report.exists():
            self._run.save(report, base_path=report.parent, policy="now")
        self._run.finish(exit_code=int(status != "finished"))


class MLflow:
    """MLflow, at ``MLFLOW_TRACKING_URI``; a resumed run skips stored steps."""

    def __init__(self, folder: Path, recipe: Mapping[str, Any], experiment: str = "pml-ext") -> None:
        import mlflow

        self._client = mlflow.MlflowClient()
        self._values = list[Any]()
        self._id = persistent_id(folder, "mlflow", lambda: self._created(folder, recipe, experiment))
        known = self._client.get_run(self._id).data.metrics
        self._last = {name: self._client.get_metric_history(self._id, name)[-1].step for name in known}

    def _created(self, folder: Path, recipe: Mapping[str, Any], experiment: str) -> str:
        from mlflow.entities import Param
        from mlflow.utils.validation import MAX_PARAMS_TAGS_PER_BATCH

        found = self._client.get_experiment_by_name(experiment)
        place = found.experiment_id if found is not None else self._client.create_experiment(experiment)
        run = self._client.create_run(place, run_name=folder.name).info.run_id
        settings = [Param(name, str(value)[:500]) for name, value in recipe.items()]
        for start in range(0, len(settings), MAX_PARAMS_TAGS_PER_BATCH):
            self._client.log_batch(run, params=settings[start : start + MAX_PARAMS_TAGS_PER_BATCH])
        return str(run)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Buffer the values of a step until :meth:`flush`."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        new = {name: value for name, value in values.items() if step > self._last.get(name, -1)}
        self._values += [Metric(name, value, now, step) for name, value in new.items()]

    def flush(self) -> None:
        """Write the buffered values."""
        from mlflow.utils.validation import MAX_METRICS_PER_BATCH

        values = self._values
        self._values = []
        for start in range(0, len(values), MAX_METRICS_PER_BATCH):
            self._client.log_batch(self._id, metrics=values[start : start + MAX_METRICS_PER_BATCH])

    def finish(self, status: str, metrics: Mapping[str, Any], report: Path) -> None:
        """Add final metrics and report."""
        for name, value in final_metrics(metrics).items():
            self._client.log_metric(self._id, name, value)
        if report.exists():
            self._client.log_artifact(self._id, str(report))
        self._client.set_terminated(self._id, {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}[status])


class Trackio:
    """Trackio, in its local store or a Space."""

    def __init__(
        self, folder: Path, recipe: Mapping[str, Any], project: str = "pml-ext", space_id: str | None = None
    ) -> None:
        import trackio

        name = persistent_id(folder, "trackio", lambda: f"{folder.name}-{uuid.uuid4().hex[:8]}")
        self._run: Any = trackio.init(  # typed in part
            project=project, name=name, space_id=space_id, config=dict(recipe), resume="allow", embed=False
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the values of a step."""
        self._run.log(dict(values), step=step)

    def finish(self, status: str, metrics: Mapping[str, Any], report: Path) -> None:
        """Log the final metrics."""
        if metrics:
            self._run.log(final_metrics(metrics))
        self._run.finish()


def build_tracker(table: NamedTable, folder: Path, recipe: Mapping[str, Any], iteration: int, epoch: int) -> Tracker:
    """Build a tracker of ``[track]``."""
    factory = registry.factory("tracker", table.name)
    options = options_of("track", table.name, factory, FILLED_FOR_TRACKER, table.settings)
    filled = {"folder": folder, "recipe": recipe, "iteration": iteration, "epoch": epoch}
    accepted = registry.settings_of(factory)
    given = {name: value for name, value in filled.items() if name in accepted}
    return factory(**given, **options)  # type: ignore[no-any-return]
