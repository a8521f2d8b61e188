"""A recipe becomes a run: data, networks, stages; tests before, training, tests after; the folder that is left."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import __version__
from ..devices import device_name
from ..distributed import from_rank_0
from ..errors import TrainingError
from ..files import write_json
from . import checkpoint
from .batches import BatchReader, EpochBatches, SeededImages, draw
from .engine import Engine, NotFiniteError, Objective, Step
from .finite import bad_buffer, bad_weight, infinite_variance
from .progress import Listener, Pace, Silence, heard
from .recipe import Recipe, plugins_in
from .records import Records, Rows, Terms
from .report import write_run_report
from .stages import Stage, build_optimizers, build_stages
from .state import Account, Trained, state_to_resume
from .testing import COLLAPSED, mean_similarity, metrics_after, metrics_before, metrics_of
from .view import View

_PACKAGES = ("torch", "pytorch-metric-learning", "torchvision", "numpy", "scikit-learn", "faiss-cpu", "faiss-gpu")


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
    """

    def __init__(self, recipe: Recipe, name: str, folder: Path, seed: int = 0, device: str = "cpu",
                 root: Path | None = None, listener: Listener | None = None) -> None:  # fmt: skip
        self.name = name
        self.listener: Listener = listener or Silence()
        super().__init__(recipe, folder, seed, device, root, self.listener.step)
        optimizers = build_optimizers(recipe, self.trunk, self.embedder)
        self.stages = build_stages(recipe, self.training_images, self.device, seed)
        self._trained = Trained(self.trunk, self.embedder, optimizers, self.stages)
        self._account = Account()
        for split, paths in self.skipped.items():
            self._warn(
                f"left out {len(paths)} images of {split} that cannot be read; the first: {next(iter(paths.values()))}"
            )

    @functools.cached_property
    def engine(self) -> Engine:
        """Trains the networks; made when it is wanted, since a report needs none.

        Raises:
            ConfigError: a precision that the device does not have.
        """
        return Engine(self.trunk, self.embedder, self.device, self.recipe.engine, self.recipe.model.freeze_batch_norm)

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
        """
        self._begin(resume)
        records = self._open_records() if self.rank == 0 else None
        reader = BatchReader(
            SeededImages(self.training_images), self.recipe.data.workers, self.device, self.engine.memory_format
        )
        pace = Pace(self._iterations_done(), self._iterations_done(self.recipe.schedule.epochs))
        try:
            while self.epoch < self.recipe.schedule.epochs:
                self.epoch += 1
                started = time.perf_counter()
                loss, embeddings = self._train_epoch(reader, records)
                seconds = time.perf_counter() - started
                self._account.train_seconds += seconds
                if records is not None:
                    self._end_epoch(records, embeddings)
                    self._tell(loss, seconds, pace)
            return from_rank_0(self._finish(records) if records is not None else None)  # type: ignore[no-any-return]
        finally:
            reader.close()
            if records is not None:
                records.close()

    def _begin(self, resume: bool) -> None:
        """Tests what there is before, and prepares the components; or takes the state of the run that goes on."""
        self.engine  # noqa: B018  # what it refuses is told before anything is tested
        state = state_to_resume(self.checkpoint("last"), self.device, self.processes) if resume else None
        if state is not None:
            with checkpoint.taking(self.checkpoint("last")):
                self._restore(state)
        else:
            if self.rank == 0:
                started = time.perf_counter()
                self.listener.step("testing raw pixels and the untrained network")
                self._account.metrics = {**metrics_before(self)}
                checkpoint.save(self.checkpoint("before"), {"embeddings": self.embeddings("test").cpu()})
                self._account.test_seconds += time.perf_counter() - started
            self.call_parts("prepare")
        if self.rank == 0:
            write_json(self.folder / "network.json", self.network_json())

    def _train_epoch(self, reader: BatchReader, records: Records | None) -> tuple[float, Tensor]:
        """Trains one epoch: the mean of its losses, and the embeddings of its last batch."""
        stage = self.stages.of(self.epoch)
        self.call_parts("start_epoch")
        self.listener.epoch(self.epoch, self.recipe.schedule.epochs, stage.iterations)
        self.changed()
        objective, terms = self.objective(stage, recorded=records is not None)
        losses: list[float] = []
        before = self._iterations_done(self.epoch - 1)
        try:
            with heard(self._warn):
                for step in self.engine.epoch(reader.read(self._draw_batches(stage)), objective):
                    losses.append(step.loss)
                    if records is not None:
                        records.add(before + len(losses), rows_of(step, terms))
                    self.listener.iteration(step.loss)
        except NotFiniteError as error:
            raise self._stopped(error, f"in iteration {before + len(losses) + 1} (epoch {self.epoch})") from error
        self._check_weights(stage)
        return float(np.mean(losses)), step.embeddings

    def _end_epoch(self, records: Records, embeddings: Tensor) -> None:
        """Looks for collapse, tests on the held-out classes, and writes the checkpoint."""
        started = time.perf_counter()
        if (similarity := mean_similarity(embeddings)) > COLLAPSED:
            self._warn(
                f"epoch {self.epoch}: the embeddings collapse to one point (mean cosine similarity of different "
                f"images {similarity:.3f}); a warm start, a lower learning rate or easier pairs may help"
            )
        self._validate(records)
        records.save()
        self._account.test_seconds += time.perf_counter() - started
        self._save()

    def _validate(self, records: Records) -> None:
        """Tests on the held-out classes, and keeps the model if it is the best so far."""
        table = self.recipe.evaluation
        if table.select is None or (self.epoch % table.every and self.epoch != self.recipe.schedule.epochs):
            return
        self.listener.step(f"validating epoch {self.epoch}")
        metrics = metrics_of(self, "validation")
        records.add(self.epoch, {"accuracies_validation": metrics})
        if metrics[table.select] > self._account.best["value"]:
            self._account.best = {"epoch": self.epoch, "value": metrics[table.select]}
            checkpoint.save(self.checkpoint("best"), self.model_state())

    def _finish(self, records: Records) -> dict[str, Any]:
        """Tests the trained network, and writes what a finished run has."""
        account = self._account
        self.listener.step("testing the trained network")
        started = time.perf_counter()
        if account.best["epoch"] is not None:
            self._take_model("best")
        checkpoint.save(self.checkpoint("model"), self.model_state())
        metrics = account.metrics | metrics_after(self, self.stages)
        records.add(self.epoch, {"accuracies_test": metrics["after"]})
        records.save()
        if (similarity := mean_similarity(self.embeddings("test"))) > COLLAPSED:
            self._warn(f"the test embeddings have collapsed to one point (mean cosine similarity {similarity:.3f})")
        test_seconds = account.test_seconds + time.perf_counter() - started
        result = {
            "recipe": self.name,
            "seed": self.seed,
            "device": device_name(self.device),
            "processes": self.processes,
            "versions": versions(),
            "plugins": plugins_in(self.recipe.as_dict()),
            "seconds": {"train": round(account.train_seconds, 3), "test": round(test_seconds, 3)},
            "best_epoch": account.best["epoch"] if account.best["epoch"] is not None else self.epoch,
            "warnings": account.warnings,
            **({"unreadable": {split: len(paths) for split, paths in self.skipped.items()}} if self.skipped else {}),
            **metrics,
        }
        write_json(self.folder / "metrics.json", result)  # a run with this file is finished
        self._draw_report(result)
        return result

    def _draw_report(self, metrics: Mapping[str, Any]) -> None:
        self.listener.step("writing the report")
        write_run_report(self, self.stages, metrics, self.listener.warn)

    def draw_report_again(self, metrics: Mapping[str, Any]) -> None:
        """Writes ``report.html`` of a finished run once more, from what is in its folder.

        Args:
            metrics: what stands in ``metrics.json``.

        Raises:
            DataError: ``model.pt`` is missing, damaged, or does not fit the recipe.
        """
        self._take_model("model")
        self.epoch = self.recipe.schedule.epochs
        self._draw_report(metrics)

    # An epoch's parts

    def call_parts(self, method: str) -> None:
        """Calls a method of all components that have it with the run."""
        for part in self.stages.parts():
            self.call(part, method)

    def objective(self, stage: Stage, recorded: bool) -> tuple[Objective, Terms]:
        """What an epoch minimizes, and the places of what is recorded of each step.

        Args:
            stage: of the epoch.
            recorded: whether this process records.
        """
        trained = self._trained.optimizers
        optimizers, schedulers = dict(trained.steps), [*trained.schedules.values()]
        if stage.optimizer is not None:
            optimizers["metric_loss_optimizer"] = stage.optimizer
        if stage.scheduler is not None:
            schedulers.append(stage.scheduler)
        terms = Terms(stage.loss, stage.miner, optimizers)
        values = terms.values if recorded else tuple
        return Objective(stage.trained, optimizers, stage.mining, schedulers, values), terms

    def _draw_batches(self, stage: Stage) -> EpochBatches:
        """The epoch's batches as rank 0 draws them; the other processes' networks have random numbers of their own."""
        drawn = draw(stage.sampler, stage.batch_size, stage.iterations) if self.rank == 0 else None
        if self.rank > 0:
            torch.manual_seed(hash((self.seed, self.epoch, self.rank)))
        return EpochBatches(from_rank_0(drawn), self.seed, self.epoch, self.rank, self.processes)

    def _check_weights(self, stage: Stage) -> None:
        """No checkpoint is replaced by weights that are not finite, nor by statistics that make NaN of every image."""
        networks = {"trunk": self.trunk, "embedder": self.embedder}
        if (bad := bad_weight({**networks, "loss": stage.loss}) or bad_buffer(networks)) is not None:
            raise self._stopped(f"the {bad[0]} became {bad[1]}", f"in epoch {self.epoch}")
        if (name := infinite_variance(networks)) is not None:
            text = f"{name} has become infinite: features are the same for every image there; try a lower optimizer.lr"
            if text not in self._account.warnings:
                self._warn(text)

    def _stopped(self, problem: object, when: str) -> TrainingError:
        what, _, remedy = str(problem).partition("; ")
        if self.checkpoint("last").exists():
            kept = f"the checkpoint of epoch {self.epoch - 1} is kept"
        else:
            kept = "there is no checkpoint yet"
        remedy = remedy[:1].upper() + remedy[1:] or "Try a lower optimizer.lr"
        return TrainingError(f"{what} {when}; {kept}. {remedy}")

    def _iterations_done(self, epoch: int | None = None) -> int:
        """How many iterations the run has at the end of an epoch, by default of the current one."""
        return self.stages.iterations_before((self.epoch if epoch is None else epoch) + 1)

    def _tell(self, loss: float, seconds: float, pace: Pace) -> None:
        """What an epoch gave, and how long those that are left will take at the pace so far."""
        stage, left = self.stages.of(self.epoch), pace.seconds_left(self._iterations_done())
        images = stage.iterations * stage.batch_size
        self.listener.epoch_done(self.epoch, self.recipe.schedule.epochs, loss, images / seconds, left)

    def _warn(self, text: str) -> None:
        self._account.warnings.append(text)
        self.listener.warn(text)

    # State

    def model_state(self) -> dict[str, Any]:
        """The weights of the networks and of the losses; see :meth:`Trained.model`."""
        return self._trained.model(self.epoch)

    def load_model_state(self, state: Mapping[str, Any]) -> None:
        """Takes the weights of :meth:`model_state`."""
        self._trained.take_model(state)
        self.changed()

    def _take_model(self, name: str) -> None:
        path = self.checkpoint(name)
        state = checkpoint.load(path, self.device)
        with checkpoint.taking(path):
            self.load_model_state(state)

    def _open_records(self) -> Records:
        return Records(self.folder, self._iterations_done(), self.epoch)

    def _save(self) -> None:
        state = {"epoch": self.epoch, "processes": self.processes, **vars(self._account),
                 **self._trained.everything(self.engine)}  # fmt: skip
        checkpoint.save(self.checkpoint("last"), state)

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._trained.take_everything(state, self.engine)
        self._account = Account(**{name: state[name] for name in vars(self._account)})
        self.epoch = state["epoch"]
        self.changed()


def rows_of(step: Step, terms: Terms) -> Rows:
    """What is recorded of a step, by table and column."""
    return {"loss_histories": {"total_loss": step.loss}, **terms.rows(step.recorded)}


def versions() -> dict[str, str]:
    """The versions of what a run depends on."""
    versions = {"python": platform.python_version(), "pml-ext": __version__}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions
