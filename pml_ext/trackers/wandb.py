"""Weights & Biases."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import needs_extra
from . import final_metrics, kept_id, of_epochs

with needs_extra("wandb", "track.name = 'wandb'"):
    import wandb


class WeightsAndBiases:
    """Run of Weights & Biases, in ``wandb/`` of the run's folder; its environment variables decide on the mode.

    Values are over ``iteration`` and ``epoch``, since its own steps cannot go back.
    """

    def __init__(
        self, folder: Path, recipe: Mapping[str, Any], project: str, entity: str | None, group: str | None
    ) -> None:
        self._run = wandb.init(
            project=project,
            entity=entity,
            group=group,
            name=folder.name,
            id=kept_id(folder, "wandb", lambda: uuid.uuid4().hex),
            resume="allow",
            dir=folder,
            config=dict(recipe),
        )
        self._run.define_metric("*", step_metric="iteration")
        self._run.define_metric("accuracies_*", step_metric="epoch")

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the values of a step."""
        for epochs in (False, True):
            if chosen := {name: value for name, value in values.items() if of_epochs(name) == epochs}:
                self._run.log({**chosen, "epoch" if epochs else "iteration": step})

    def finish(self, status: str, metrics: Mapping[str, Any], report: Path) -> None:
        """Add the final metrics to the summary and the report to the files, and end the run."""
        self._run.summary.update(final_metrics(metrics))
        if report.exists():
            self._run.save(report, base_path=report.parent, policy="now")
        self._run.finish(exit_code=int(status != "finished"))
