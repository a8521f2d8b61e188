"""An epoch in training: stage, batches, objective, losses, and the errors that end it."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pml_ext.errors import TrainingError

from . import signals
from .batches import Batch, Batches, BatchReader, draw_for_all, indices_of, with_indices
from .checkpointing import Checkpointer
from .engine import NotFiniteError, Objective, Step, first_nonfinite_weight
from .feature_reader import FeatureReader
from .pseudo_labels import relabel
from .recorded_values import RecordedValues
from .run import Run
from .stages import Stage


@dataclass
class Epoch:
    """An epoch of a run; :func:`begin_epoch` returns it."""

    run: Run
    stage: Stage
    objective: Objective
    recorded: RecordedValues
    batches: Batches  # of this process, those before an interruption included
    reader: BatchReader | FeatureReader
    reading: Iterable[Batch]  # the batches that are left
    losses: list[float]  # one for each finished iteration, those before an interruption included
    watching: list[Any]  # components with a method after_step

    @property
    def iteration(self) -> int:
        """Number of the last finished iteration of the run."""
        return self.run.stages.iterations_until(self.run.epoch - 1) + len(self.losses)

    def steps(self) -> Iterator[Step]:
        """Train on the remaining batches and yield each step."""
        for step in self.run.engine.epoch(self.reading, self.objective):
            self.run.changed()
            if self.watching and not step.skipped:
                self.run.call_after_step(self.watching, indices_of(self.batches[len(self.losses)]), step.embeddings)
            self.run.history.skipped += step.skipped
            self.losses.append(step.loss)
            yield step


def begin_epoch(run: Run, checkpointer: Checkpointer, recorded: bool) -> Epoch:
    """Draw the batches of the current epoch; a resumed run continues after its checkpoint."""
    stage = run.stages.of(run.epoch)
    run.enter_stage(stage)
    losses = checkpointer.finished_losses()
    with signals.at_once():  # nothing of the epoch is lost yet
        unfinished = checkpointer.unfinished
        relabel(run, stage, None if unfinished is None else unfinished["pseudo_labels"])
        run.call_parts("start_epoch")
        run.changed()
        objective, values = run.objective(stage, recorded, finished=len(losses))
        batches, indices_tuples = draw_for_all(  # the tuples only where data are listed pairs or triplets
            stage.sampler, stage.batch_size, stage.iterations, run.seed, run.epoch, run.recipe.data.views
        )
    reader = run.inputs.reader_of(stage)
    reading = reader.read(batches[len(losses) :], run.pseudo_labels)
    if indices_tuples is not None:
        indices_tuples = indices_tuples[len(losses) :]
    checkpointer.enter_epoch()
    return Epoch(
        run=run,
        stage=stage,
        objective=objective,
        recorded=values,
        batches=batches,
        reader=reader,
        reading=with_indices(reading, indices_tuples, run.device),
        losses=losses,
        watching=[part for part in stage.parts() if callable(getattr(part, "after_step", None))],
    )


def stopped(run: Run, problem: object, when: str) -> TrainingError:
    """Return the error that ends a run; the problem may have a remedy after a semicolon."""
    what, _, remedy = str(problem).partition("; ")
    exists = run.checkpoint("last").exists()
    kept = f"the checkpoint of epoch {run.epoch - 1} is kept" if exists else "there is no checkpoint yet"
    advice = remedy[:1].upper() + remedy[1:] if remedy else "Try a lower optimizer.lr"
    return TrainingError(f"{what} {when}; {kept}. {advice}")


@contextlib.contextmanager
def stopping_for_nonfinite(epoch: Epoch) -> Iterator[None]:
    """Translate NotFiniteError into a TrainingError that names the iteration."""
    try:
        yield
    except NotFiniteError as error:
        iteration = epoch.iteration + 1
        problem = str(error)
        if iteration == 1 and "; " not in problem:
            problem += "; no step was taken yet: check the images, the trunk and the loss"
        raise stopped(epoch.run, problem, f"in iteration {iteration} (epoch {epoch.run.epoch})") from error


def check_weights(epoch: Epoch) -> None:
    """Raise TrainingError if an epoch left a weight that is not finite."""
    run = epoch.run
    bad = first_nonfinite_weight({"trunk": run.trunk, "embedder": run.embedder}, epoch.stage.loss)
    if bad is not None:
        raise stopped(run, f"the {bad.name} became {bad.value}", f"in epoch {run.epoch}")
