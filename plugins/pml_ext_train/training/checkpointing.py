"""When a run writes its checkpoints, and how it resumes from them."""

import time
from typing import Any

from pml_ext.distributed import from_ranks, max_over_ranks, wait_for_all_ranks
from pml_ext.errors import DataError

from ..records.recorder import Records
from . import checkpoint, signals
from .run import Run
from .state import model_state, restore, state_of


class Checkpointer:
    """Writes and reads the checkpoints of a run.

    Attributes:
        unfinished: state of the epoch that was interrupted, or None.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._last = run.checkpoint("last")
        self._within = run.checkpoint("within")
        self._saved = time.monotonic()
        self.unfinished: dict[str, Any] | None = None

    def resume(self) -> bool:
        """Restore the end of the last epoch; False without a checkpoint."""
        state, warning = checkpoint.load_to_resume(self._last, self._run.device, self._run.identity)
        if state is None:
            return False
        self._run.data.check_listing(self._run.folder, state["listing"])
        restore(self._run, self._last, state)
        self._run.warn(warning)
        return True

    def find_unfinished_epoch(self) -> None:
        """Read the checkpoint within the next epoch; warn if it is damaged."""
        if not self._within.exists():
            return
        try:
            state = checkpoint.load(self._within, self._run.device, self._run.identity)
        except DataError as error:
            self._run.warn(str(error))
            return
        if state["epoch"] == self._run.epoch + 1:
            self._run.data.check_listing(self._run.folder, state["listing"])
            self.unfinished = state

    def finished_losses(self) -> list[float]:
        """Return the losses of the unfinished epoch's completed iterations."""
        return [] if self.unfinished is None else list(self.unfinished["losses"])

    def enter_epoch(self) -> None:
        """Restore an unfinished epoch after its batches were drawn; start the clock."""
        self._saved = time.monotonic()
        if self.unfinished is not None:
            restore(self._run, self._within, self.unfinished)
        self.unfinished = None

    def between_iterations(self, records: Records | None, losses: list[float]) -> None:
        """Write a checkpoint if one is due; stop after a signal to any process."""
        signal_number = max_over_ranks(signals.received() or 0)
        minutes = self._run.recipe.engine.checkpoint_minutes
        is_due = records is not None and minutes is not None and time.monotonic() - self._saved >= 60 * minutes
        if max_over_ranks(int(is_due)) or signal_number:
            ranks = from_ranks(checkpoint.random_state())
            if records is not None:
                records.save()
                checkpoint.save(self._within, state_of(self._run) | {"losses": losses, "ranks": ranks})
            self._saved = time.monotonic()
            wait_for_all_ranks()  # until it is written
        if signal_number:
            raise signals.stopped(
                signal_number,
                f"in epoch {self._run.epoch}, after iteration {len(losses)}; a checkpoint is written",
            )

    def save_epoch(self) -> None:
        """Write the state at the end of an epoch."""
        checkpoint.save_last(self._last, state_of(self._run))
        self._within.unlink(missing_ok=True)

    def save_best(self) -> None:
        """Write the best weights so far, without a frozen trunk."""
        checkpoint.save(self._run.checkpoint("best"), model_state(self._run, trunk=not self._run.frozen))

    def save_model(self) -> None:
        """Write the weights of the trained network."""
        checkpoint.save(self._run.checkpoint("model"), model_state(self._run))

    def save_untrained(self) -> None:
        """Write the untrained network's test embeddings, for the report."""
        state = {"embeddings": self._run.embeddings(self._run.queries).cpu(), "of": self._run.identity}
        checkpoint.save(self._run.checkpoint("before"), state)

    def forget_epoch(self) -> None:
        """Delete the checkpoint within a finished epoch."""
        if self.unfinished is None:
            self._within.unlink(missing_ok=True)
