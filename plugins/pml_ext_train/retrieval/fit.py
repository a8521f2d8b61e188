"""A run that is made of a folder of images on the way, as the tool that makes it shows it to another."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol


class EmbeddingListener(Protocol):
    """The observer of a run that is made of a folder, and of the passes over its images."""

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
        """Return the run that a folder of images has; without one, make one, without labels and without training.

        The caller indexes the folder. DataError for a folder without images.
        """
