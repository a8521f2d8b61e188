"""The interface for making a run from a folder of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol


class EmbeddingListener(Protocol):
    """Receives the progress of making a run from a folder."""

    def step(self, text: str) -> None:
        """Receive a line about a step that begins."""

    def iteration(self, epoch: int, done: int, iterations: int, loss: float) -> None:
        """Receive the number of finished iterations of an epoch, and the loss of the last one."""

    def warn(self, text: str) -> None:
        """Receive a warning; the run continues."""

    def embedding(self, now: Any) -> None:
        """Receive ``done``, ``images``, ``rate`` and ``seconds_left`` of a pass over images."""


class FitService(Protocol):
    """The service ``"fit"``."""

    def run_of_folder(self, folder: Path, device: str, listener: EmbeddingListener) -> Path:
        """Return the run of a folder of images, or make one without labels and training.

        The caller indexes the folder. DataError for a folder without images.
        """
