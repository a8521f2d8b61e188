"""TensorBoard's events, in ``tensorboard/`` of the run's folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import needs_extra
from . import of_epochs

with needs_extra("train", "track.name = 'tensorboard'"):
    from tensorboard.compat.proto.summary_pb2 import Summary
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard:
    """Writer of TensorBoard's events, which purges those written after the checkpoint that a run resumes from."""

    def __init__(self, folder: Path, iteration: int, epoch: int) -> None:
        self._iterations = SummaryWriter(str(folder / "tensorboard"), purge_step=iteration + 1)
        self._epochs = SummaryWriter(str(folder / "tensorboard" / "epochs"), purge_step=epoch + 1)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write the values of a step; NaN is left out."""
        for writer, epochs in ((self._iterations, False), (self._epochs, True)):
            summary = Summary()
            for name, value in values.items():
                if of_epochs(name) is epochs and not math.isnan(value):
                    summary.value.add(tag=name, simple_value=value)
            if summary.value:  # add_scalar takes 50 microseconds for each value
                writer.file_writer.add_summary(summary, step)  # type: ignore[attr-defined]

    def flush(self) -> None:
        """Write what is buffered to the files."""
        self._iterations.flush()
        self._epochs.flush()

    def finish(self, status: str, metrics: Mapping[str, Any], report: Path) -> None:
        """Close the files."""
        self._iterations.close()
        self._epochs.close()
