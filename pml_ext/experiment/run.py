"""The story of one run: tests before, training by epochs, tests after, and the folder that is left."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..checksums import SUMS, replace_file, write_sums
from ..distributed import from_rank_0, from_ranks, most_of_ranks
from ..errors import DataError, StoppedError, TrainingError
from ..files import json_text, left_over
from . import checkpoint, signals
from .batches import BatchReader, SeededImages, draw_for_all
from .engine import Engine, NotFiniteError, bad_buffer, bad_weight, infinite_variance
from .evaluation import collapse, evaluate_split, facts_of, metrics_after, metrics_before, write_neighbors
from .progress import Interval, Listener, OnNonfinite, Pace, Silence, forward_warnings
from .recipe import Recipe
from .records import CURVE, PSEUDO, TEST, VALIDATION, Records, write_csv_files
from .report import write_run_report
from .stages import Stage, after_step, build_optimizers, build_stages, renew_clusters
from .state import RunHistory, TrainingState, state_to_resume, state_within
from .view import View

METRICS, RECIPE, REPORT = "metrics.json", "recipe.toml", "report.html"
_NETWORK, _NEIGHBORS, _BEFORE = "network.json", "neighbors.npz", "checkpoints/before.pt"
FILES = ("checkpoints", "figures", METRICS, _NETWORK, _NEIGHBORS, RECIPE, "records", REPORT, "tensorboard")
_DERIVED = ("figures/", _BEFORE, _NETWORK, _NEIGHBORS, RECIPE, REPORT, SUMS)  # written again for a finished run
_UNSUMMED = ("figures/", _NEIGHBORS, "records/", REPORT, "tensorboard/")  # written without a checksum, until the end


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
        on_nonfinite: ``"stop"``, or ``"skip"`` to leave out iterations whose loss, embeddings or gradients are NaN or
            infinite.
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
        self.trained = TrainingState(self.trunk, self.embedder, optimizers, self.stages)
        self._history = RunHistory()
        self._within: dict[str, Any] | None = None  # the state inside of the epoch in which the run ended
        for split, paths in self.unreadable.items():
            self._warn(f"left out {len(paths)} images of {split} that cannot be read; the first: {min(paths.values())}")

    @functools.cached_property
    def engine(self) -> Engine:
        """The engine that trains the networks; made when it is wanted, since a report needs none.

        Raises:
            ConfigError: a precision that the device does not have.
        """
        freeze, skip = self.recipe.model.freeze_batch_norm, self._on_nonfinite == "skip"
        return Engine(self.trunk, self.embedder, self.device, self.recipe.engine, freeze, skip_nonfinite=skip)

    # The story

    def train(self, resume: bool = False) -> dict[str, Any]:
        """Train, test and write everything.

        Returns:
            The contents of ``metrics.json``.

        Raises:
            TrainingError: the loss, an embedding, a gradient or a weight became NaN or infinite; the last checkpoint
                stays.
            DataError: the checkpoint to go on from is damaged, or does not fit.
            StoppedError: a signal ended the run; a checkpoint is there, if it had begun to train.
        """
        self._begin(resume)
        within = len(self._within["losses"]) if self._within is not None else 0  # of the epoch, done before
        done, epochs = self._iterations_done() + within, self.recipe.schedule.epochs
        records = Records(self.folder, done, self.epoch, self._warn) if self.rank == 0 else None
        reader = BatchReader(
            SeededImages(self.training_images), self.recipe.data.workers, self.device, self.engine.memory_format
        )
        pace = Pace(done, self._iterations_done(epochs))
        try:
            while self.epoch < epochs:
                self.epoch += 1
                started = time.perf_counter()
                with signals.waiting():
                    losses, similarity = self._train_epoch(reader, records)
                    seconds = time.perf_counter() - started
                    self._history.train_seconds += seconds
                    if records is not None:
                        self._end_epoch(records, losses, similarity)
                        if len(losses) > within:
                            finite = [loss for loss in losses if math.isfinite(loss)]
                            images = (len(losses) - within) * self.stages.of(self.epoch).batch_size
                            mean, left = (
                                float(np.mean(finite or [math.nan])),
                                pace.seconds_left(self._iterations_done()),
                            )
                            self.listener.epoch_done(self.epoch, epochs, mean, images / seconds, left)
                    within = 0
                signals.check(f"after epoch {self.epoch}, whose checkpoint is written")
            return from_rank_0(self._finish(records) if records is not None else None)  # type: ignore[no-any-return]
        finally:
            reader.close()
            if records is not None:
                records.close()

    def _begin(self, resume: bool) -> None:
        """Test the untrained network and prepare the components; or take the state of the run that goes on."""
        self.engine  # noqa: B018  # its errors come before anything is tested
        last, within = self.checkpoint("last"), self.checkpoint("within")
        loaded = state_to_resume(last, self.identity, self.device, self.processes) if resume else None
        if loaded is not None:
            state, warning = loaded
            with checkpoint.taking(last, state):
                self._restore(state)
            self._warn(warning)
        else:
            if self.rank == 0 and self.recipe.evaluation.baselines:
                self._test_before(resume)
            self.relabel(self.stages[0])
            self.call_parts("prepare")
        if resume:
            self._within, warning = state_within(within, self.identity, self.epoch, self.device, self.processes)
            self._warn(warning)
        from_rank_0(None)  # all have read the checkpoints
        if self.rank == 0:
            if self._within is None:
                within.unlink(missing_ok=True)
            self._write_json(_NETWORK, self.network_json())

    def _test_before(self, resume: bool) -> None:
        """Measure raw pixels and the untrained network, or take their metrics from ``before.pt``."""
        path, started = self.checkpoint("before"), time.perf_counter()
        if resume and path.exists():
            try:
                state = checkpoint.load(path, of=self.identity)
                self._history.metrics, random = state["metrics"], state["random"]
            except (DataError, KeyError) as error:
                self.listener.step(f"testing the untrained network again: {error}")
            else:
                checkpoint.set_random_state(random)
                return
        self.listener.step("testing raw pixels and the untrained network")
        self._history.metrics = {**metrics_before(self)}
        state = {"embeddings": self.embeddings(self.queries).cpu(), "metrics": self._history.metrics}
        checkpoint.save(path, state | {"random": checkpoint.random_state(), "of": self.identity})
        self._history.test_seconds += time.perf_counter() - started

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
        interval = Interval(self.recipe.engine.checkpoint_minutes)
        if within is not None:
            with checkpoint.taking(self.checkpoint("within"), within):
                self._restore(within)
            if within["ended"]:
                return losses, within["similarity"]
        try:
            with forward_warnings(self._warn), reader.naming_images():
                for step in self.engine.epoch(reading, objective):
                    if not step.skipped:
                        after_step(self, stage, batches.indices(len(losses)), step.embeddings)
                    losses.append(step.loss)
                    self._history.skipped += step.skipped
                    if records is not None:
                        records.add(before + len(losses), recorded.rows(step))
                    self.listener.iteration(step.loss)
                    if len(losses) < count:
                        self._between_iterations(records, losses, interval)
        except NotFiniteError as error:
            raise self._stopped(error, f"in iteration {before + len(losses) + 1} (epoch {self.epoch})") from error
        self._check_weights(stage)
        labels = self.pseudo_labels if self.pseudo_labels is not None else self.training_images.labels
        return losses, collapse(step.embeddings, labels[batches.indices(len(losses) - 1)])

    def _between_iterations(self, records: Records | None, losses: list[float], interval: Interval) -> None:
        """Write a checkpoint if it is time for one, and end the run if any of its processes had a signal."""
        due = records is not None and interval.due()
        number, due_somewhere = divmod(most_of_ranks(2 * (signals.received() or 0) + due), 2)
        if number or due_somewhere:
            ranks = from_ranks(checkpoint.random_state())
            if records is not None:
                self._save_within(records, {"losses": losses, "ranks": ranks, "ended": False, "similarity": None})
            from_rank_0(None)  # the others wait until it is written
        if number:
            raise signals.stopped(
                number, f"in epoch {self.epoch}, after iteration {len(losses)} of it; a checkpoint is written"
            )

    def _end_epoch(self, records: Records, losses: list[float], similarity: float | None) -> None:
        """Warn of a collapse, test on the held-out classes, and write the checkpoint."""
        started = time.perf_counter()
        if similarity is not None and not self._history.collapsed:
            self._warn(
                f"epoch {self.epoch}: the embeddings collapse to one point (mean cosine similarity of different "
                f"images {similarity:.3f}); a warm start, a lower learning rate or easier pairs may help"
            )
        self._history.collapsed = similarity is not None
        random = checkpoint.random_state()
        try:
            self._validate(records)
        except StoppedError as error:
            checkpoint.set_random_state(random)
            self._save_within(records, {"losses": losses, "ranks": [], "ended": True, "similarity": similarity})
            where = f"while epoch {self.epoch} was validated; a checkpoint is written"
            raise signals.stopped(error.signal, where) from None
        records.save()
        self._history.test_seconds += time.perf_counter() - started
        checkpoint.save_last(self.checkpoint("last"), self._state())
        self.checkpoint("within").unlink(missing_ok=True)

    def _validate(self, records: Records) -> None:
        """Test what the recipe wants tested between epochs, and keep the model if it is the best so far."""
        table, last, best = self.recipe.evaluation, self.epoch == self.recipe.schedule.epochs, self._history.best
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
        if table.select is not None and chooses and measured[deciding][table.select] > best["value"]:
            self._history.best = {"epoch": self.epoch, "value": measured[deciding][table.select]}
            checkpoint.save(self.checkpoint("best"), self.model_state())

    def _finish(self, records: Records) -> dict[str, Any]:
        """Test the trained network, and write what a finished run has; with ``metrics.json`` it is finished."""
        history, self.pseudo_labels = self._history, None
        self.listener.step("testing the trained network")
        started = time.perf_counter()
        if history.best["epoch"] is not None:
            history.best["epoch"] = self._load_model("best")["epoch"]
        checkpoint.save(self.checkpoint("model"), self.model_state())
        metrics = history.metrics | metrics_after(self, self.stages)
        records.add(self.epoch, {TEST: metrics["after"]})
        records.close()
        if similarity := collapse(self.embeddings(self.queries), self.true_labels(self.queries)):
            self._warn(f"the test embeddings have collapsed to one point (mean cosine similarity {similarity:.3f})")
        if history.skipped:
            self._warn(
                f"{history.skipped} of {self._iterations_done()} iterations were left out, since a loss, an "
                "embedding or a gradient was not finite"
            )
        write_neighbors(self)
        history.test_seconds += time.perf_counter() - started
        result = {"recipe": self.name, **facts_of(self), **history.facts(self.epoch), **metrics}
        self._write_json(METRICS, result)
        self._draw_report(result)
        self._write_sums(_UNSUMMED)
        return result

    def finish_again(self, metrics: Mapping[str, Any], damaged: Collection[str] = ()) -> None:
        """Draw the report of a finished run again, write damaged derived files again, and warn of all that is damaged.

        Args:
            metrics: the contents of ``metrics.json``.
            damaged: files that are gone or differ from their checksums.

        Raises:
            DataError: ``model.pt`` is missing, damaged, or does not fit the recipe.
        """
        self._load_model("model")
        self.epoch = self.recipe.schedule.epochs
        tables = [name for name in damaged if name.startswith("records/") and name.endswith(".csv")]
        tables = [] if "records/logs.db" in damaged else tables
        made = [name for name in damaged if (name.startswith(_DERIVED) or name in tables) and name != REPORT]
        lost = [name for name in damaged if name not in made and name != REPORT]
        if made:
            self.listener.warn(f"{self.folder}: not what {SUMS} says, and made again: {_listed(made)}")
        if lost:
            self.listener.warn(
                f"{self.folder}: not what {SUMS} says, and left as it is, since a finished run does not need it: "
                f"{_listed(lost)}"
            )
        if _BEFORE in made:
            self.checkpoint("before").unlink(missing_ok=True)  # the report makes it again
        if tables:
            write_csv_files(self.folder / "records")
        if _NETWORK in made:
            self._write_json(_NETWORK, self.network_json())
        if _NEIGHBORS in made:
            write_neighbors(self)
        self._draw_report(metrics)
        self._write_sums(FILES if SUMS in damaged else ("figures/", REPORT, *made))

    def _write_json(self, name: str, value: Mapping[str, Any]) -> None:
        replace_file(self.folder, name, lambda path: path.write_text(json_text(value), "utf-8"))

    def _draw_report(self, metrics: Mapping[str, Any]) -> None:
        self.listener.step("writing the report")
        write_run_report(self, self.stages, metrics, self.listener.warn)

    def _write_sums(self, anew: tuple[str, ...]) -> None:
        """Take the checksums of the run's own files anew whose paths begin so, and keep the others."""
        names = [
            path.relative_to(self.folder).as_posix()
            for path in self.folder.rglob("*")
            if path.is_file() and left_over(path)[0] is None
        ]
        own = [name for name in names if name.partition("/")[0] in FILES]
        mine = [name for name in own if not name.startswith("figures/") or name.endswith(".png")]
        write_sums(self.folder, [name for name in mine if name.startswith(anew)], lambda name: name in mine)

    # Parts of an epoch

    def relabel(self, stage: Stage, records: Records | None = None) -> None:
        """Where clusters are the labels, make those of the epoch; see :func:`~.stages.renew_clusters`."""
        kept = self._within["pseudo_labels"] if self._within is not None else None
        before = self._history.pseudo_labels
        self._history.pseudo_labels, about = renew_clusters(self, stage, before, kept, self.listener.step)
        if records is not None and about:
            records.add(self.epoch, {PSEUDO: about})

    def call_parts(self, method: str) -> None:
        """Call a method of all components that have it with the run."""
        for part in self.stages.parts():
            self.call(part, method)

    def _check_weights(self, stage: Stage) -> None:
        """Refuse weights that are not finite, and statistics that make NaN of every image, before a checkpoint."""
        networks = {"trunk": self.trunk, "embedder": self.embedder}
        if (bad := bad_weight({**networks, "loss": stage.loss}) or bad_buffer(networks)) is not None:
            raise self._stopped(f"the {bad[0]} became {bad[1]}", f"in epoch {self.epoch}")
        self._warn(infinite_variance(networks))

    def _stopped(self, problem: object, when: str) -> TrainingError:
        what, _, remedy = str(problem).partition("; ")
        exists = self.checkpoint("last").exists()
        kept = f"the checkpoint of epoch {self.epoch - 1} is kept" if exists else "there is no checkpoint yet"
        remedy = remedy[:1].upper() + remedy[1:] or "Try a lower optimizer.lr"
        return TrainingError(f"{what} {when}; {kept}. {remedy}")

    def _iterations_done(self, epoch: int | None = None) -> int:
        """Return how many iterations the run has at the end of an epoch, by default of the current one."""
        return self.stages.iterations_before((self.epoch if epoch is None else epoch) + 1)

    def _warn(self, text: str) -> None:
        """Keep and show a warning that is not empty; once, also where a resumed run meets it again."""
        if text and text not in self._history.warnings:
            self._history.warnings.append(text)
            self.listener.warn(text)

    # State

    def model_state(self) -> dict[str, Any]:
        """Return the weights of the networks and of the losses; see :meth:`TrainingState.model`."""
        return self.trained.model(self.epoch) | {"of": self.identity}

    def load_model_state(self, state: Mapping[str, Any]) -> None:
        """Take the weights of :meth:`model_state`."""
        self.trained.load_model(state)
        self.changed()

    def _load_model(self, name: str) -> dict[str, Any]:
        path = self.checkpoint(name)
        state = checkpoint.load(path, self.device, self.identity if name == "best" else None)
        with checkpoint.taking(path, state):
            self.load_model_state(state)
        return state

    def _state(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "processes": self.processes,
            "run": {"recipe": self.name, "seed": self.seed},
            "recipe": self.recipe.as_dict(),
            "of": self.identity,
            **vars(self._history),
            **self.trained.everything(self.engine),
        }

    def _save_within(self, records: Records, place: dict[str, Any]) -> None:
        records.save()
        checkpoint.save(self.checkpoint("within"), self._state() | place)

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.trained.load_everything(state, self.engine)
        if self.rank > 0 and state.get("ranks"):
            checkpoint.set_random_state(state["ranks"][self.rank])
        self._history = RunHistory(**{name: state[name] for name in vars(self._history) if name in state})
        self.epoch = state["epoch"]
        self.changed()


def _listed(names: list[str]) -> str:
    return ", ".join(names[:4]) + " ..." * (len(names) > 4)
