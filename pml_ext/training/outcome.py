"""What ends a run or is worth a warning: values that are not finite, and embeddings that collapse to one point."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..errors import TrainingError
from .engine import first_nonfinite_weight
from .evaluation import collapse
from .run import Run
from .stages import Stage


def stopped(run: Run, problem: object, when: str) -> TrainingError:
    """Return the error of a run that cannot go on; the problem may have a remedy after a semicolon."""
    what, _, remedy = str(problem).partition("; ")
    if run.checkpoint("last").exists():
        kept = f"the checkpoint of epoch {run.epoch - 1} is kept"
    else:
        kept = "there is no checkpoint yet"
    advice = remedy[:1].upper() + remedy[1:] if remedy else "Try a lower optimizer.lr"
    return TrainingError(f"{what} {when}; {kept}. {advice}")


def check_weights(run: Run, stage: Stage) -> None:
    """Raise TrainingError if a weight became NaN or infinite in an epoch."""
    bad = first_nonfinite_weight({"trunk": run.trunk, "embedder": run.embedder}, stage.loss)
    if bad is not None:
        name, value = bad
        raise stopped(run, f"the {name} became {value}", f"in epoch {run.epoch}")


def warn_of_collapse(run: Run, embeddings: Tensor, indices: Any) -> None:
    """Warn if the embeddings of an epoch's last batch have collapsed, and those of the epoch before had not."""
    labels = run.training_images.labels if run.pseudo_labels is None else run.pseudo_labels
    similarity = collapse(embeddings, labels[indices])
    if similarity is not None and not run.history.collapsed:
        run.warn(
            f"epoch {run.epoch}: the embeddings collapse to one point (mean cosine similarity of different "
            f"images {similarity:.3f}); a warm start, a lower learning rate or easier pairs may help"
        )
    run.history.collapsed = similarity is not None
