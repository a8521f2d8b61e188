"""An epoch in training: its stage, batches, objective, and losses so far."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from . import signals
from .batches import Batch, Batches, BatchReader, draw_for_all, indices_of, with_indices
from .checkpointing import Checkpointer
from .engine import Objective, Step
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
        """The number of the last finished iteration in the run."""
        return self.run.stages.iterations_until(self.run.epoch - 1) + len(self.losses)

    @property
    def is_over(self) -> bool:
        """Whether all iterations are finished."""
        return len(self.losses) == len(self.batches)

    def steps(self) -> Iterator[Step]:
        """Train on the remaining batches and yield each step."""
        for step in self.run.engine.epoch(self.reading, self.objective):
            self._finish(step)
            yield step

    def _finish(self, step: Step) -> None:
        """Pass a step to the components, and count it."""
        self.run.changed()
        if self.watching and not step.skipped:
            self.run.call_after_step(self.watching, indices_of(self.batches[len(self.losses)]), step.embeddings)
        self.run.history.skipped += step.skipped
        self.losses.append(step.loss)


def begin_epoch(run: Run, checkpointer: Checkpointer, recorded: bool) -> Epoch:
    """Draw the batches of the current epoch; a resumed run continues after its checkpoint.

    ``recorded`` says whether the steps have values to record.
    """
    stage = run.stages.of(run.epoch)
    run.enter_stage(stage)
    losses = checkpointer.finished_losses()
    with signals.at_once():  # nothing of the epoch is lost yet
        relabel(run, stage, checkpointer.unfinished_labels())
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
        watching=stage.parts_with("after_step"),
    )
