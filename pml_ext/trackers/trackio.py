"""Trackio."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import needs_extra
from . import final_metrics, kept_id

with needs_extra("trackio", "track.name = 'trackio'"):
    import trackio


class Trackio:
    """Run of Trackio, in its local store, or in the Space that ``space_id`` names."""

    def __init__(self, folder: Path, recipe: Mapping[str, Any], project: str, space_id: str | None) -> None:
        name = kept_id(folder, "trackio", lambda: f"{folder.name}-{uuid.uuid4().hex[:8]}")
        self._run = trackio.init(
            project=project, name=name, space_id=space_id, config=dict(recipe), resume="allow", embed=False
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the values of a step."""
        self._run.log(dict(values), step=step)

    def finish(self, status: str, metrics: Mapping[str, Any], report: Path) -> None:
        """Log the final metrics, and end the run."""
        if metrics:
            self._run.log(final_metrics(metrics))
        self._run.finish()
