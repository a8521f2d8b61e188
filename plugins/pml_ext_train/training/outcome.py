"""What ends a run: non-finite values, and their errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pml_ext.errors import TrainingError

from .engine import NotFiniteError, first_nonfinite_weight
from .epoch import Epoch
from .run import Run


def stopped(run: Run, problem: object, when: str) -> TrainingError:
    """Return the error that ends a run; a remedy may follow the problem after a semicolon."""
    what, _, remedy = str(problem).partition("; ")
    if run.checkpoint("last").exists():
        kept = f"the checkpoint of epoch {run.epoch - 1} is kept"
    else:
        kept = "there is no checkpoint yet"
    advice = remedy[:1].upper() + remedy[1:] if remedy else "Try a lower optimizer.lr"
    return TrainingError(f"{what} {when}; {kept}. {advice}")


@contextlib.contextmanager
def stopping_for_nonfinite(epoch: Epoch) -> Iterator[None]:
    """Raise TrainingError with the iteration in which a value became NaN or infinite."""
    try:
        yield
    except NotFiniteError as error:
        iteration = epoch.iteration + 1
        problem = str(error)
        if iteration == 1 and "; " not in problem:
            problem += "; no step was taken yet: check the images, the trunk and the loss"
        raise stopped(epoch.run, problem, f"in iteration {iteration} (epoch {epoch.run.epoch})") from error


def check_weights(epoch: Epoch) -> None:
    """Raise TrainingError if a weight became NaN or infinite in an epoch."""
    run = epoch.run
    bad = first_nonfinite_weight({"trunk": run.trunk, "embedder": run.embedder}, epoch.stage.loss)
    if bad is not None:
        name, value = bad
        raise stopped(run, f"the {name} became {value}", f"in epoch {run.epoch}")
