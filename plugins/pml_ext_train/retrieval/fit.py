"""The interface that makes runs from folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol


class EmbeddingListener(Protocol):
    """Receives progress."""

    def step(self, text: str) -> None:
        """A step begins."""

    def iteration(self, epoch: int, done: int, iterations: int, loss: float) -> None:
        """An iteration is done; ``loss`` is its loss."""

    def warn(self, text: str) -> None:
        """A warning; the run continues."""

    def embedding(self, now: Any) -> None:
        """Progress over images: ``done``, ``images``, ``rate`` and ``seconds_left``."""


class FitService(Protocol):
    """The service ``"fit"``."""

    def run_of_folder(
        self, folder: Path, device: str, listener: EmbeddingListener, exclude: Sequence[str] | None = None
    ) -> Path:
        """The run of a folder of images, or a new one without training; DataError without images."""
