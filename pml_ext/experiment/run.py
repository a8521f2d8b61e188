"""A recipe becomes a run: data, networks, stages; tests before, training, tests after; the folder that is left."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..distributed import from_rank_0, from_ranks, most_of_ranks
from ..errors import DataError, StoppedError, TrainingError
from ..files import write_json
from ..sums import check_unchanged
from . import checkpoint, signals
from .batches import BatchReader, SeededImages, draw_for_all
from .engine import Engine, NotFiniteError
from .evaluation import collapse, evaluate_split, facts_of, metrics_after, metrics_before, write_neighbors
from .finite import bad_buffer, bad_weight, infinite_variance
from .mending import mend, sum_up
from .progress import Alarm, Listener, OnNonfinite, Pace, Silence, heard
from .pseudo import renew
from .recipe import Recipe
from .records import CURVE, PSEUDO, TEST, VALIDATION, Records
from .report import write_run_report
from .stages import Stage, after_step, build_optimizers, build_stages
from .state import Account, Trained, state_to_resume, state_within
from .view import View


class Run(View):
    """A run: what components see of it (:class:`View`), and the training itself.

    Components that have ``prepare(run)``, ``start_epoch(run)`` or ``figures(run)`` are called with it. With several
    processes (``torchrun``) every one has a run of its own, in step with the others: rank 0 tests and writes.

    Args:
        recipe: what to train.
        name: the recipe's name.
        folder: where everything is written.
        seed: of all generators.
        device: ``"cpu"``, or an accelerator as torch names it.
        root: the folder of the data, where the data set wants one.
        listener: hears how it goes on.
        on_nonfinite: ``"stop"``, or ``"skip"`` for iterations to be left out whose loss, embeddings or gradients are
            NaN or infinite.
    """

    def __init__(
        self,
        recipe: Recipe,
        name: str,
        folder: Path,
        seed: int = 0,
        device: str = "cpu",
        root: Path | None = None,
        listener: Listener | None = None,
        on_nonfinite: OnNonfinite = "stop",
    ) -> None:
        self.name, self._on_nonfinite = name, on_nonfinite
        self.listener: Listener = listener or Silence()
        super().__init__(recipe, folder, seed, device, root, self.listener.step)
        optimizers = build_optimizers(recipe, self.trunk, self.embedder)
        self.stages = build_stages(recipe, self.training_images, self.device, seed)
        self.trained = Trained(self.trunk, self.embedder, optimizers, self.stages)
        self._account = Account()
        self._within: dict[str, Any] | None = None  # the state inside of the epoch in which the run ended
        for split, paths in self.unreadable.items():
            self._warn(f"left out {len(paths)} images of {split} that cannot be read; the first: {min(paths.values())}")

    @functools.cached_property
    def engine(self) -> Engine:
        """Trains the networks; made when it is wanted, since a report needs none.

        Raises:
            ConfigError: a precision that the device does not have.
        """
        return Engine(
            self.trunk,
            self.embedder,
            self.device,
            self.recipe.engine,
            self.recipe.model.freeze_batch_norm,
            skip_nonfinite=self._on_nonfinite == "skip",
        )

    # The story

    def train(self, resume: bool = False) -> dict[str, Any]:
        """Trains, tests and writes everything.

        Args:
            resume: go on from the folder's last checkpoint, where it has one.

        Returns:
            What stands in ``metrics.json``.

        Raises:
            TrainingError: the loss, an embedding, a gradient or a weight became NaN or infinite; the last checkpoint
                stays.
            DataError: the checkpoint to go on from is damaged, or does not fit.
            StoppedError: a signal ended the run; a checkpoint is there, if it had begun to train.
        """
        self._begin(resume)
        records = self._open_records() if self.rank == 0 else None
        reader = BatchReader(
            SeededImages(self.training_images), self.recipe.data.workers, self.device, self.engine.memory_format
        )
        within = len(self._within["losses"]) if self._within is not None else 0  # of the epoch, done before
        pace = Pace(self._iterations_done() + within, self._iterations_done(self.recipe.schedule.epochs))
        try:
            while self.epoch < self.recipe.schedule.epochs:
                self.epoch += 1
                started = time.perf_counter()
                with signals.waiting():
                    losses, similarity = self._train_epoch(reader, records)
                    seconds = time.perf_counter() - started
                    self._account.train_seconds += seconds
                    if records is not None:
                        self._end_epoch(records, losses, similarity)
                        finite = [loss for loss in losses if math.isfinite(loss)]
                        if len(losses) > within:
                            images = (len(losses) - within) * self.stages.of(self.epoch).batch_size
                            self._tell(float(np.mean(finite)) if finite else math.nan, images / seconds, pace)
                        within = 0
                signals.check(f"after epoch {self.epoch}, whose checkpoint is written")
            return from_rank_0(self._finish(records) if records is not None else None)  # type: ignore[no-any-return]
        finally:
            reader.close()
            if records is not None:
                records.close()

    def _begin(self, resume: bool) -> None:
        """Tests what there is before, and prepares the components; or takes the state of the run that goes on."""
        self.engine  # noqa: B018  # what it refuses is told before anything is tested
        last = self.checkpoint("last")
        loaded = state_to_resume(last, self.identity, self.device, self.processes) if resume else None
        if loaded is not None:
            state, word = loaded
            with checkpoint.taking(last, state):
                self._restore(state)
            if word:
                self._warn(word)
        else:
            if self.rank == 0 and self.recipe.evaluation.baselines:
                self._test_before(resume)
            self.relabel(self.stages[0])
            self.call_parts("prepare")
        if resume:
            self._within, word = state_within(
                self.checkpoint("within"), self.identity, self.epoch, self.device, self.processes
            )
            if word:
                self._warn(word)
        from_rank_0(None)  # all have read what is there
        if self.rank == 0:
            if self._within is None:
                self.checkpoint("within").unlink(missing_ok=True)
            write_json(self.folder / "network.json", self.network_json())

    def _test_before(self, resume: bool) -> None:
        """The metrics of raw pixels and of the untrained network; from ``before.pt``, if that has them."""
        path, started = self.checkpoint("before"), time.perf_counter()
        if resume and path.exists():
            try:
                state = checkpoint.load(path, of=self.identity)
                self._account.metrics, random = state["metrics"], state["random"]
            except (DataError, KeyError) as error:
                self.listener.step(f"testing the untrained network again: {error}")
            else:
                checkpoint.set_random_state(random)
                return
        self.listener.step("testing raw pixels and the untrained network")
        self._account.metrics = {**metrics_before(self)}
        checkpoint.save(
            path,
            {
                "embeddings": self.embeddings(self.queries).cpu(),
                "metrics": self._account.metrics,
                "random": checkpoint.random_state(),
                "of": self.identity,
            },
        )
        self._account.test_seconds += time.perf_counter() - started

    def _train_epoch(self, reader: BatchReader, records: Records | None) -> tuple[list[float], float | None]:
        """Train one epoch; return its losses and, if the last batch has collapsed, its mean cosine similarity."""
        stage = self.stages.of(self.epoch)
        with signals.at_once():  # nothing of the epoch is lost yet
            self.relabel(stage, records)
            self.call_parts("start_epoch")
            self.changed()
            objective, recorded = self.trained.objective(stage, recorded=records is not None)
            batches = draw_for_all(stage.sampler, stage.batch_size, stage.iterations, self.seed, self.epoch)
        self.listener.epoch(self.epoch, self.recipe.schedule.epochs, stage.iterations)
        before, count = self._iterations_done(self.epoch - 1), len(batches)
        within, self._within = self._within, None
        losses: list[float] = list(within["losses"]) if within is not None else []
        reading = reader.read(batches.after(len(losses)), self.pseudo_labels)
        alarm = Alarm(self.recipe.engine.checkpoint_minutes)
        if within is not None:
            with checkpoint.taking(self.checkpoint("within"), within):
                self._restore(within)
            if within["ended"]:
                return losses, within["similarity"]
        try:
            with heard(self._warn):
                for step in self.engine.epoch(reading, objective):
                    if not step.skipped:
                        after_step(self, stage, batches.indices(len(losses)), step.embeddings)
                    losses.append(step.loss)
                    self._account.skipped += step.skipped
                    if records is not None:
                        records.add(before + len(losses), recorded.rows(step))
                    self.listener.iteration(step.loss)
                    if len(losses) < count:
                        self._between_iterations(records, losses, alarm)
        except NotFiniteError as error:
            raise self._stopped(error, f"in iteration {before + len(losses) + 1} (epoch {self.epoch})") from error
        self._check_weights(stage)
        labels = self.pseudo_labels if self.pseudo_labels is not None else self.training_images.labels
        return losses, collapse(step.embeddings, labels[batches.indices(len(losses) - 1)])

    def _between_iterations(self, records: Records | None, losses: list[float], alarm: Alarm) -> None:
        """Writes a checkpoint if it is time for one; and ends the run, if any of its processes had a signal."""
        number, due = divmod(most_of_ranks(2 * (signals.received() or 0) + (records is not None and alarm.rings())), 2)
        if number or due:
            ranks = from_ranks(checkpoint.random_state())
            if records is not None:
                self._save_within(records, {"losses": losses, "ranks": ranks, "ended": False, "similarity": None})
            from_rank_0(None)  # the others wait until it is written
        if number:
            raise signals.stopped(
                number, f"in epoch {self.epoch}, after iteration {len(losses)} of it; a checkpoint is written"
            )

    def _end_epoch(self, records: Records, losses: list[float], similarity: float | None) -> None:
        """Looks for collapse, tests on the held-out classes, and writes the checkpoint."""
        started = time.perf_counter()
        if similarity is not None and not self._account.collapsed:
            self._warn(
                f"epoch {self.epoch}: the embeddings collapse to one point (mean cosine similarity of different "
                f"images {similarity:.3f}); a warm start, a lower learning rate or easier pairs may help"
            )
        self._account.collapsed = similarity is not None
        random = checkpoint.random_state()
        try:
            self._validate(records)
        except StoppedError as error:
            checkpoint.set_random_state(random)
            self._save_within(records, {"losses": losses, "ranks": [], "ended": True, "similarity": similarity})
            where = f"while epoch {self.epoch} was validated; a checkpoint is written"
            raise signals.stopped(error.signal, where) from None
        records.save()
        self._account.test_seconds += time.perf_counter() - started
        checkpoint.save_last(self.checkpoint("last"), self._state())
        self.checkpoint("within").unlink(missing_ok=True)

    def _validate(self, records: Records) -> None:
        """Tests what the recipe wants tested between epochs, and keeps the model if it is the best so far."""
        table, last = self.recipe.evaluation, self.epoch == self.recipe.schedule.epochs
        deciding = self.queries if table.select_on == "test" else "validation"
        chooses = table.select is not None and (last or self.epoch % table.every == 0)
        measured: dict[str, dict[str, float]] = {}
        with signals.at_once():
            if table.test_every and (last or self.epoch % table.test_every == 0):
                self.listener.step(f"testing epoch {self.epoch}")
                measured[self.queries] = evaluate_split(self, self.queries, clustering=False)
            if chooses:
                self.listener.step(f"validating epoch {self.epoch}")
                measured[deciding] = evaluate_split(self, deciding)
        for split, metrics in measured.items():
            records.add(self.epoch, {VALIDATION if split == "validation" else CURVE: metrics})
        if table.select is not None and chooses and measured[deciding][table.select] > self._account.best["value"]:
            self._account.best = {"epoch": self.epoch, "value": measured[deciding][table.select]}
            checkpoint.save(self.checkpoint("best"), self.model_state())

    def _finish(self, records: Records) -> dict[str, Any]:
        """Tests the trained network, and writes what a finished run has."""
        account, self.pseudo_labels = self._account, None
        self.listener.step("testing the trained network")
        started = time.perf_counter()
        if account.best["epoch"] is not None:
            account.best["epoch"] = self._take_model("best")["epoch"]
        checkpoint.save(self.checkpoint("model"), self.model_state())
        metrics = account.metrics | metrics_after(self, self.stages)
        records.add(self.epoch, {TEST: metrics["after"]})
        records.save()
        if similarity := collapse(self.embeddings(self.queries), self.true_labels(self.queries)):
            self._warn(f"the test embeddings have collapsed to one point (mean cosine similarity {similarity:.3f})")
        if account.skipped:
            self._warn(
                f"{account.skipped} of {self._iterations_done()} iterations were left out, since a loss, an "
                "embedding or a gradient was not finite"
            )
        write_neighbors(self)
        account.test_seconds += time.perf_counter() - started
        result = {"recipe": self.name, **facts_of(self), **account.facts(self.epoch), **metrics}
        write_json(self.folder / "metrics.json", result)  # a run with this file is finished
        self._draw_report(result)
        sum_up(self.folder)
        return result

    def _draw_report(self, metrics: Mapping[str, Any]) -> None:
        self.listener.step("writing the report")
        write_run_report(self, self.stages, metrics, self.listener.warn)

    def draw_report_again(self, metrics: Mapping[str, Any]) -> None:
        """Writes ``report.html`` of a finished run once more, and what has changed of its folder.

        Args:
            metrics: what stands in ``metrics.json``.

        Raises:
            DataError: ``model.pt`` is missing, damaged, not what the run wrote, or does not fit the recipe.
        """
        self._take_model("model")
        check_unchanged(self.folder, "checkpoints/model.pt")
        self.epoch = self.recipe.schedule.epochs
        mend(self, self.listener.warn)
        self._draw_report(metrics)
        sum_up(self.folder, again=True)

    # An epoch's parts

    def relabel(self, stage: Stage, records: Records | None = None) -> None:
        """Where clusters are the labels, makes the epoch's; see :func:`~.pseudo.renew`.

        Args:
            stage: of the epoch.
            records: that get what is known of the clusters; None for none.
        """
        kept = self._within["pseudo_labels"] if self._within is not None else None
        account, tell = self._account, self.listener.step
        account.pseudo_labels, about = renew(self, stage, account.pseudo_labels, kept, tell)
        if records is not None and about:
            records.add(self.epoch, {PSEUDO: about})

    def call_parts(self, method: str) -> None:
        """Calls a method of all components that have it with the run."""
        for part in self.stages.parts():
            self.call(part, method)

    def _check_weights(self, stage: Stage) -> None:
        """No checkpoint is replaced by weights that are not finite, nor by statistics that make NaN of every image."""
        networks = {"trunk": self.trunk, "embedder": self.embedder}
        if (bad := bad_weight({**networks, "loss": stage.loss}) or bad_buffer(networks)) is not None:
            raise self._stopped(f"the {bad[0]} became {bad[1]}", f"in epoch {self.epoch}")
        if (text := infinite_variance(networks)) is not None:
            self._warn(text)

    def _stopped(self, problem: object, when: str) -> TrainingError:
        what, _, remedy = str(problem).partition("; ")
        exists = self.checkpoint("last").exists()
        kept = f"the checkpoint of epoch {self.epoch - 1} is kept" if exists else "there is no checkpoint yet"
        remedy = remedy[:1].upper() + remedy[1:] or "Try a lower optimizer.lr"
        return TrainingError(f"{what} {when}; {kept}. {remedy}")

    def _iterations_done(self, epoch: int | None = None) -> int:
        """How many iterations the run has at the end of an epoch, by default of the current one."""
        return self.stages.iterations_before((self.epoch if epoch is None else epoch) + 1)

    def _tell(self, loss: float, images: float, pace: Pace) -> None:
        """What an epoch gave, and how long those that are left will take at the pace so far."""
        left = pace.seconds_left(self._iterations_done())
        self.listener.epoch_done(self.epoch, self.recipe.schedule.epochs, loss, images, left)

    def _warn(self, text: str) -> None:
        """Keeps and tells a warning; once, also where a run that goes on meets what it has met before."""
        if text not in self._account.warnings:
            self._account.warnings.append(text)
            self.listener.warn(text)

    # State

    def model_state(self) -> dict[str, Any]:
        """The weights of the networks and of the losses; see :meth:`Trained.model`."""
        return self.trained.model(self.epoch) | {"of": self.identity}

    def load_model_state(self, state: Mapping[str, Any]) -> None:
        """Takes the weights of :meth:`model_state`."""
        self.trained.take_model(state)
        self.changed()

    def _take_model(self, name: str) -> dict[str, Any]:
        path = self.checkpoint(name)
        state = checkpoint.load(path, self.device, self.identity if name == "best" else None)
        with checkpoint.taking(path, state):
            self.load_model_state(state)
        return state

    def _open_records(self) -> Records:
        within = len(self._within["losses"]) if self._within is not None else 0
        return Records(self.folder, self._iterations_done() + within, self.epoch, self._warn)

    def _state(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "processes": self.processes,
            "run": {"recipe": self.name, "seed": self.seed},
            "recipe": self.recipe.as_dict(),
            "of": self.identity,
            **vars(self._account),
            **self.trained.everything(self.engine),
        }

    def _save_within(self, records: Records, place: dict[str, Any]) -> None:
        records.save()
        checkpoint.save(self.checkpoint("within"), self._state() | place)

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.trained.take_everything(state, self.engine)
        if self.rank > 0 and state.get("ranks"):
            checkpoint.set_random_state(state["ranks"][self.rank])
        self._account = Account(**{name: state[name] for name in vars(self._account) if name in state})
        self.epoch = state["epoch"]
        self.changed()
