"""The history of a run."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass
class RunHistory:
    """Metrics, warnings and timings of a run so far."""

    metrics: dict[str, Any] = field(default_factory=dict)  # by phase: "raw", "before" ...
    best: dict[str, Any] = field(default_factory=lambda: {"epoch": None, "value": -math.inf})  # on held-out classes
    warnings: list[str] = field(default_factory=list)
    train_seconds: float = 0.0
    test_seconds: float = 0.0
    baseline_seconds: float = 0.0  # of tests before training
    collapsed: bool = False  # at the end of the last epoch
    has_loss: bool = False  # whether the loss of an iteration was not 0 yet
    skipped: int = 0  # iterations left out because a loss, embedding or gradient was not finite
    pseudo_labels: NDArray[np.int64] | None = None  # clusters of the training images, if used as labels
