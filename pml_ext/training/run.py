"""A training run: tests before training, epochs, tests after training, and the run's folder."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray

from ..distributed import from_rank_0, from_ranks, join, max_over_ranks
from ..distributed.devices import choose_device, device_name
from ..errors import ConfigError, DataError, StoppedError, TrainingError, TrainingWarning, counted, first_of, shortened
from ..files import final_path
from ..files.checksums import SUMS, read_sums, replace_file, write_sums
from ..networks.trunks import fit_whitened_pca, freeze
from ..recipe import Recipe, build_tracker, flat, plugins_in
from ..recipe.schema import frozen_patterns
from ..report import write_run_report
from . import checkpoint, signals
from .batches import Batches, BatchReader, draw_for_all, indices_of
from .engine import Engine, NotFiniteError, Objective, first_nonfinite_weight
from .evaluation import collapse, counts, evaluate_split, metrics_after, metrics_before, missing_pairs, recall_by_class
from .features import FeatureReader
from .records import CURVE, TEST, VALIDATION, RecordedValues, Records, write_csv_files
from .stages import Stage, build_optimizers, build_stages, clusters_of, extend_schedule, set_sampler, with_clusters
from .trackers import import_tracker
from .view import View

METRICS, RECIPE, REPORT = "metrics.json", "recipe.toml", "report.html"
_NETWORK = "network.json"
FILES = ("checkpoints", "figures", METRICS, _NETWORK, RECIPE, "records", REPORT, "tensorboard")
# What processes write under temporary names first.
WRITTEN = (METRICS, _NETWORK, RECIPE, REPORT, "checkpoints/*.pt", "figures/*.png", "records/*.csv")
_DERIVED = ("figures/", _NETWORK, RECIPE, REPORT, SUMS)  # written again for a finished run
FIRST_LOSSES = 10  # of a stage, after which a loss that was always 0 is reported
OnNonfinite = Literal["stop", "skip"]  # reaction to a NaN or infinite loss, embedding or gradient


class Listener(Protocol):
    """The observer of a run, such as the progress bar of the command line."""

    def step(self, text: str) -> None:
        """Receive a line about a step that begins, for example ``"testing"``, or an epoch that has ended."""

    def iteration(self, epoch: int, done: int, iterations: int, loss: float) -> None:
        """Receive the number of finished iterations of an epoch, and the loss of the last one."""

    def warn(self, text: str) -> None:
        """Receive a warning; the run continues."""


class Silence:
    """A listener that does nothing."""

    def step(self, *_: object) -> None:
        """Do nothing."""

    iteration = warn = step


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
    skipped: int = 0  # iterations left out because a loss, embedding or gradient was not finite
    pseudo_labels: NDArray[np.int64] | None = None  # clusters of the training images, if used as labels


class Run(View):
    """A run: the training itself, and the attributes that components may use (:class:`View`).

    The methods ``prepare(run)``, ``start_epoch(run)``, ``after_step(run, indices, embeddings)`` and ``figures(run)`` of
    components are called with the run. With several processes (``torchrun``), each has its own synchronized run;
    rank 0 tests and writes. ``on_nonfinite="skip"`` leaves out iterations whose loss, embeddings or gradients
    are NaN or infinite.
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
        super().__init__(recipe, folder, seed, choose_device(device), root, self.listener.step)
        self.optimizers, self.schedules = build_optimizers(recipe, self.trunk, self.embedder)
        self.stages = build_stages(recipe, self.training_images, self.device, seed)
        self._history = RunHistory()
        self._within: dict[str, Any] | None = None  # state of the unfinished epoch of a resumed run
        self._warn(self.note)
        for split, paths in self.unreadable.items():
            images = counted(len(paths), "image")
            self._warn(f"left out {images} of {split} that cannot be read; the first: {min(paths.values())}")

    @functools.cached_property  # a report needs no engine
    def engine(self) -> Engine:
        """The engine that trains the networks."""
        freeze, skip = self.recipe.model.freeze_batch_norm, self._on_nonfinite == "skip"
        trunk = torch.nn.Identity() if self.frozen else self.trunk  # the reader gives features
        return Engine(trunk, self.embedder, self.device, self.recipe.engine, freeze, skip_nonfinite=skip)

    @functools.cached_property
    def epochs(self) -> int:
        """The number of epochs; 0 if there are no parameters to train in the trunk, the embedder and the losses."""
        trained = self.optimizers or any(stage.optimizer is not None for stage in self.stages)
        return self.recipe.schedule.epochs if trained else 0

    def train(self, resume: bool = False) -> dict[str, Any]:
        """Train, test and write everything; return the contents of ``metrics.json``.

        Raise TrainingError if the loss, an embedding, a gradient or a weight becomes NaN or infinite, DataError for a
        checkpoint that is damaged or does not match the run, MissingExtraError for a tracker that is not installed,
        and StoppedError if a signal ends the run.
        """
        for table in self.recipe.track:
            import_tracker(table.name)
        for split in self.splits if self.frozen else ():  # each process computes a part
            self.features(split)
        self._begin(resume)
        within = len(self._within["losses"]) if self._within is not None else 0  # finished iterations of the epoch
        records = self._records(self.stages.iterations_until(self.epoch) + within) if self.rank == 0 else None
        status, metrics, reader = "failed", dict[str, Any](), self.reader()
        try:
            while self.epoch < self.epochs:
                self.epoch += 1
                with signals.waiting():
                    self._epoch(reader, records)
                signals.check(f"after epoch {self.epoch}, whose checkpoint is written")
            metrics = from_rank_0(self._finish(records) if records is not None else None)
            status = "finished"
            return metrics  # type: ignore[no-any-return]
        except StoppedError:
            status = "stopped"
            raise
        finally:
            reader.close()
            if records is not None:
                records.finish(status, metrics, self.folder / REPORT)

    def _epoch(self, reader: BatchReader | FeatureReader, records: Records | None) -> None:
        """Train an epoch; rank 0 then tests, writes the checkpoint and reports loss and speed."""
        before = len(self._within["losses"]) if self._within is not None else 0
        started = time.perf_counter()
        losses = self._train_epoch(reader, records)
        seconds = time.perf_counter() - started
        self._history.train_seconds += seconds
        if records is None:
            return
        self._end_epoch(records)
        done, stages = len(losses) - before, self.stages
        left = stages.iterations_until(self.epochs) - stages.iterations_until(self.epoch)
        time_left = timedelta(seconds=round(left / done * (time.perf_counter() - started)))
        pace = f"{done * stages.of(self.epoch).batch_size / seconds:.0f} images/s, {time_left} left"
        mean = np.mean([loss for loss in losses if math.isfinite(loss)] or [math.nan])
        self.listener.step(f"epoch {self.epoch} of {self.epochs}: loss {mean:.4f}, {pace}")

    def _records(self, iteration: int) -> Records:
        given = self.folder, flat(self.recipe.as_dict()), iteration, self.epoch
        trackers = [(table.name, functools.partial(build_tracker, table, *given)) for table in self.recipe.track]
        return Records(self.folder, iteration, self.epoch, self._warn, trackers)

    def reader(self) -> BatchReader | FeatureReader:
        """Return the reader of training batches: of images, or of features if the trunk is frozen."""
        if not self.frozen:
            workers, memory_format = self.recipe.data.workers, self.engine.memory_format
            return BatchReader(self.training_images, workers, self.device, memory_format)
        views = range(1, self.recipe.model.views + 1) if self.recipe.model.views > 1 else [0]
        return FeatureReader([self.features("train", view) for view in views], self.training_images.labels, self.device)

    def _begin(self, resume: bool) -> None:
        """Test the untrained network and prepare the components, or restore the state of a resumed run."""
        self.engine  # noqa: B018  # raise its errors before the tests
        last, within = self.checkpoint("last"), self.checkpoint("within")
        state, warning = checkpoint.load_to_resume(last, self.device, self.identity) if resume else (None, "")
        if state is not None:
            self.check_listing(state.get("listing"))
            self._restore(last, state)
            self._warn(warning)
        else:
            if self.recipe.model.init is not None:
                self._start_from(Path(self.recipe.model.init))
            if self.recipe.model.embedder == "pca":
                fit_whitened_pca(self.embeddings("train", "trunk"), cast(torch.nn.Linear, self.embedder))
            if self.rank == 0 and self.recipe.evaluation.baselines:
                self.listener.step("testing raw pixels and the untrained network")
                started = time.perf_counter()
                self._history.metrics = {**metrics_before(self)}
                untrained = {"embeddings": self.embeddings(self.queries).cpu(), "of": self.identity}
                checkpoint.save(self.checkpoint("before"), untrained)
                self._history.baseline_seconds += time.perf_counter() - started
            self.relabel(self.stages[0])
            self.call_parts("prepare")
        if resume and within.exists():
            try:
                state = checkpoint.load(within, self.device, self.identity)
                self._within = state if state["epoch"] == self.epoch + 1 else None
            except DataError as error:
                self._warn(str(error))
        if self._within is not None:
            self.check_listing(self._within.get("listing"))
        from_rank_0(None)  # all have read the checkpoints
        if self.rank == 0:
            if self._within is None:
                within.unlink(missing_ok=True)
            self._write_json(_NETWORK, self.network_json())

    def _start_from(self, folder: Path) -> None:
        """Load the weights of another run: the trunk's, and the embedder's if its shapes match."""
        path = folder / "checkpoints" / "model.pt"
        if not path.is_file():
            raise ConfigError(f"model.init: {folder} is no finished run (no {path}); wanted the folder of one")
        state = checkpoint.load(path, self.device)
        try:
            self.trunk.load_state_dict(state["trunk"])
        except RuntimeError as error:
            text = f"model.init: the trunk of {folder} is another one ({shortened(error, 160)})"
            raise ConfigError(f"{text}; take that run's [model] trunk and image size, in {folder / RECIPE}") from None
        states = state["embedder"], self.embedder.state_dict()
        one, other = ({name: tensor.shape for name, tensor in each.items()} for each in states)
        if one == other:
            self.embedder.load_state_dict(state["embedder"])
        else:
            self._warn(f"model.init: the embedder of {folder} has other sizes; it begins from random")
        self.changed()

    def _train_epoch(self, reader: BatchReader | FeatureReader, records: Records | None) -> list[float]:
        """Train one epoch and return its losses; warn if the embeddings of its last batch have collapsed."""
        stage = self.stages.of(self.epoch)
        if self.epoch == stage.first:  # its learning rates
            before = 1.0 if stage is self.stages[0] else self.stages.of(self.epoch - 1).table.lr_factor
            for group in (group for optimizer in self.optimizers.values() for group in optimizer.param_groups):
                group["lr"] *= stage.table.lr_factor / before
        if (model := self.recipe.model).lora is None:  # else peft has frozen the trunk
            patterns = frozen_patterns(model.freeze) + frozen_patterns(stage.table.freeze)
            self.engine.frozen = freeze(self.trunk, patterns)
        with signals.waiting(False):  # nothing of the epoch is lost yet
            self.relabel(stage)
            self.call_parts("start_epoch")
            self.changed()
            objective, recorded = self.objective(stage, recorded=records is not None)
            watching = [part for part in stage.parts() if callable(getattr(part, "after_step", None))]
            batches = draw_for_all(stage.sampler, stage.batch_size, stage.iterations, self.seed, self.epoch)
        before, count = self.stages.iterations_until(self.epoch - 1), len(batches)
        within, self._within = self._within, None
        losses: list[float] = list(within["losses"]) if within is not None else []
        reading = reader.read(batches[len(losses) :], self.pseudo_labels)
        self._saved = time.monotonic()
        if within is not None:
            self._restore(self.checkpoint("within"), within)
        try:
            with forward_warnings(self._warn), reader.naming_images():
                for step in self.engine.epoch(reading, objective):
                    if watching and not step.skipped:
                        said = {"indices": indices_of(batches[len(losses)]), "embeddings": step.embeddings}
                        if self.processes > 1:
                            said = join({name: tensor.cpu() for name, tensor in said.items()})
                        for part in watching:
                            self.call(part, "after_step", said["indices"], said["embeddings"])
                    losses.append(step.loss)
                    self._history.skipped += step.skipped
                    if self.epoch == stage.first and len(losses) == min(FIRST_LOSSES, count):
                        self._warn_of_zero_loss(stage, losses, batches[: len(losses)])
                    if records is not None:
                        records.add(before + len(losses), recorded.rows(step))
                    self.listener.iteration(self.epoch, len(losses), count, step.loss)
                    if len(losses) < count:
                        self._between_iterations(records, losses)
        except NotFiniteError as error:
            raise self._stopped(error, f"in iteration {before + len(losses) + 1} (epoch {self.epoch})") from error
        if (bad := first_nonfinite_weight({"trunk": self.trunk, "embedder": self.embedder}, stage.loss)) is not None:
            raise self._stopped(f"the {bad[0]} became {bad[1]}", f"in epoch {self.epoch}")
        labels = self.training_images.labels if self.pseudo_labels is None else self.pseudo_labels
        similarity = collapse(step.embeddings, labels[indices_of(batches[-1])])
        if similarity is not None and not self._history.collapsed:
            self._warn(
                f"epoch {self.epoch}: the embeddings collapse to one point (mean cosine similarity of different "
                f"images {similarity:.3f}); a warm start, a lower learning rate or easier pairs may help"
            )
        self._history.collapsed = similarity is not None
        return losses

    def _warn_of_zero_loss(self, stage: Stage, losses: list[float], batches: Batches) -> None:
        """Warn if the loss was 0 in all of a stage's first iterations, and say which pairs their batches lack."""
        if max_over_ranks(int(any(losses))):
            return
        drawn = [indices_of(batch) for batch in batches]
        if self.processes > 1:
            drawn = [join({"indices": indices})["indices"] for indices in drawn]
        if stage.table.loss.memory is not None:  # whose pairs are of several batches
            drawn = [torch.cat(drawn)]
        labels = self.labels("train").cpu()
        relation = self.relation if stage.table.loss.relation == "data" else None
        reason = missing_pairs([labels[indices].to(self.device) for indices in drawn], relation)
        if not reason:
            unused = "none adds to the loss, as when all satisfy its margin"
            if stage.table.loss.miner is not None:
                unused = f"{stage.table.loss.miner.name} selects none that the loss can use, or {unused}"
            reason = f"the batches have positive and negative pairs, but {unused}"
        iterations = f"the first {len(losses)} iterations"
        if len(self.stages) > 1:
            iterations += f" of stage {self.stages.index(stage) + 1}"
        self._warn(f"the loss is 0 in all of {iterations}, so nothing is learned: {reason}")

    def _between_iterations(self, records: Records | None, losses: list[float]) -> None:
        """Write a checkpoint when one is due; stop the run if one of its processes received a signal."""
        minutes = self.recipe.engine.checkpoint_minutes
        due = records is not None and minutes is not None and time.monotonic() - self._saved >= 60 * minutes
        number, due_somewhere = divmod(max_over_ranks(2 * (signals.received() or 0) + due), 2)
        if number or due_somewhere:
            ranks = from_ranks(checkpoint.random_state())
            if records is not None:
                records.save()
                checkpoint.save(self.checkpoint("within"), self._state() | {"losses": losses, "ranks": ranks})
            self._saved = time.monotonic()
            from_rank_0(None)  # the other ranks wait until it is written
        if number:
            where = f"in epoch {self.epoch}, after iteration {len(losses)} of it; a checkpoint is written"
            raise signals.stopped(number, where)

    def _end_epoch(self, records: Records) -> None:
        """Run the recipe's tests between epochs, save the best weights so far, and write the checkpoint."""
        started = time.perf_counter()
        table, last = self.recipe.evaluation, self.epoch == self.recipe.schedule.epochs
        measured: dict[str, dict[str, float]] = {}
        if table.test_every and (last or self.epoch % table.test_every == 0):
            self.listener.step(f"testing epoch {self.epoch}")
            measured[self.queries] = evaluate_split(self, self.queries, clustering=False)
        if table.select is not None and (last or self.epoch % table.every == 0):
            self.listener.step(f"validating epoch {self.epoch}")
            deciding = self.queries if table.select_on == "test" else "validation"
            measured[deciding] = evaluate_split(self, deciding)
            if (value := measured[deciding][table.select]) > self._history.best["value"]:
                self._history.best = {"epoch": self.epoch, "value": value}
                checkpoint.save(self.checkpoint("best"), self.model_state(trunk=not self.frozen))
        for split, metrics in measured.items():
            records.add(self.epoch, {VALIDATION if split == "validation" else CURVE: metrics})
        records.save()
        self._history.test_seconds += time.perf_counter() - started
        checkpoint.save_last(self.checkpoint("last"), self._state())
        self.checkpoint("within").unlink(missing_ok=True)

    def _finish(self, records: Records) -> dict[str, Any]:
        """Test the trained network; write ``metrics.json``, which marks the run as finished, and the report."""
        history, best, self.pseudo_labels = self._history, self.epoch, None
        self.listener.step("testing the trained network")
        started = time.perf_counter()
        if history.best["epoch"] is not None:
            best = self.load_model("best")["epoch"]
        checkpoint.save(self.checkpoint("model"), self.model_state())
        metrics = history.metrics | metrics_after(self, self.stages)
        records.add(self.epoch, {TEST: metrics["after"]})
        records.close()
        if similarity := collapse(self.embeddings(self.queries), self.true_labels(self.queries)):
            self._warn(f"the test embeddings have collapsed to one point (mean cosine similarity {similarity:.3f})")
        if history.skipped:
            skipped = f"{history.skipped} of {self.stages.iterations_until(self.epoch)} iterations were left out"
            self._warn(f"{skipped}, since a loss, an embedding or a gradient was not finite")
        history.test_seconds += time.perf_counter() - started
        seconds = {"baselines": history.baseline_seconds, "train": history.train_seconds, "test": history.test_seconds}
        result = {
            "recipe": self.name,
            "seed": self.seed,
            "device": device_name(self.device),
            "processes": self.processes,
            "versions": checkpoint.versions(),
            "plugins": plugins_in(self.recipe.as_dict()),
            "images": counts(self),
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
            "best_epoch": best,
            "skipped_iterations": history.skipped,
            "warnings": history.warnings,
            "recall_at_1_by_class": recall_by_class(self),
            **metrics,
        }
        self._write_json(METRICS, result)
        self._write_report(result)
        return result

    def finish_again(self, metrics: Mapping[str, Any], damaged: Collection[str] = ()) -> None:
        """Regenerate the derived files of a finished run, and warn about the ``damaged`` (missing or changed) files."""
        self.load_model("model")
        self.epoch = self.epochs
        derived = _DERIVED if "records/logs.db" in damaged else (*_DERIVED, "records/")
        lost = [name for name in damaged if not name.startswith(derived)]
        if names := [name for name in damaged if name != REPORT or (self.folder / REPORT).exists()]:
            self.listener.warn(f"{self.folder}: not what {SUMS} says: {first_of(names, 4)}; what can be is made again")
        if "records/logs.db" not in damaged:
            write_csv_files(self.folder / "records")
        self._write_json(_NETWORK, self.network_json())
        self._write_report(metrics, lost)

    def _write_json(self, name: str, value: Mapping[str, Any]) -> None:
        replace_file(self.folder, name, lambda path: path.write_text(json.dumps(value, indent=2) + "\n", "utf-8"))

    def _write_report(self, metrics: Mapping[str, Any], lost: Collection[str] = ()) -> None:
        """Write the report and the checksums of the run's files; those of checkpoints and ``lost`` files stay."""
        self.listener.step("writing the report")
        write_run_report(self, self.stages, metrics, self.listener.warn)
        own, kept = [], {*lost, *(name for name in read_sums(self.folder) if name.startswith("checkpoints/"))}
        for path in self.folder.rglob("*"):
            name = path.relative_to(self.folder).as_posix()
            ours = name.partition("/")[0] in FILES and (path.suffix == ".png" or not name.startswith("figures/"))
            if ours and name not in kept and path.is_file() and final_path(path) is None:
                own.append(name)
        write_sums(self.folder, own, kept.__contains__)

    def relabel(self, stage: Stage) -> None:
        """Cluster the training images before an epoch, if clusters are the labels; epoch 1 reuses the first ones."""
        if (table := self.recipe.data.pseudo) is None:
            return
        before, epoch = self._history.pseudo_labels, max(1, self.epoch)
        labels = self._within["pseudo_labels"] if self._within is not None else before if self.epoch == 1 else None
        if labels is None:
            self.listener.step(f"clustering the training images before epoch {epoch}")
            labels = clusters_of(self, table)
        self.pseudo_labels = self._history.pseudo_labels = labels
        set_sampler(stage, table, with_clusters(self.training_images, table, labels), self.seed, epoch)

    def call_parts(self, method: str) -> None:
        """Call a method, with the run as the argument, on every component that has the method."""
        for part in self.stages.parts():
            self.call(part, method)

    def objective(self, stage: Stage, recorded: bool) -> tuple[Objective, RecordedValues]:
        """Return the objective of a stage and its recorded values; its steps record them only if ``recorded``."""
        optimizers = {**self.optimizers} | ({"metric_loss_optimizer": stage.optimizer} if stage.optimizer else {})
        schedulers = [*self.schedules.values(), *([stage.scheduler] if stage.scheduler else [])]
        held = RecordedValues(stage.loss, stage.miner, optimizers)
        return Objective(stage.trained, optimizers, stage.mining, schedulers, held.values if recorded else tuple), held

    def _stopped(self, problem: object, when: str) -> TrainingError:
        what, _, remedy = str(problem).partition("; ")
        exists = self.checkpoint("last").exists()
        kept = f"the checkpoint of epoch {self.epoch - 1} is kept" if exists else "there is no checkpoint yet"
        return TrainingError(f"{what} {when}; {kept}. {remedy[:1].upper()}{remedy[1:] or 'Try a lower optimizer.lr'}")

    def _warn(self, text: str) -> None:
        """Show a warning once (also across resumes), and keep it for ``metrics.json``; ignore an empty text."""
        if text and text not in self._history.warnings:
            self._history.warnings.append(text)
            self.listener.warn(text)

    def model_state(self, trunk: bool = True) -> dict[str, Any]:
        """Return the weights of the networks and of all stages' losses (for example a learned metric)."""
        *earlier, last = (stage.loss.state_dict() for stage in self.stages)
        networks = {"trunk": self.trunk.state_dict()} if trunk else {}
        networks |= {"embedder": self.embedder.state_dict()}
        return {**networks, "loss": last, "earlier_losses": earlier, "epoch": self.epoch, **self._origin()}

    def load_model(self, name: str) -> dict[str, Any]:
        """Load the weights of a checkpoint written from :meth:`model_state`, and return the checkpoint."""
        path = self.checkpoint(name)
        state = checkpoint.load(path, self.device, self.identity)
        self.check_listing(state.get("listing"))
        with checkpoint.errors_with_path(path, state):
            if "trunk" in state:
                self.trunk.load_state_dict(state["trunk"])
            self.embedder.load_state_dict(state["embedder"])
            for stage, loss in zip(self.stages, [*state["earlier_losses"], state["loss"]], strict=True):
                stage.loss.load_state_dict(loss)
        self.changed()
        return state

    def _parts(self) -> dict[str, Any]:
        """Return all objects whose state training changes, by name; samplers are saved separately."""
        parts: dict[str, Any] = {} if self.frozen else {"trunk": self.trunk}
        parts |= {"embedder": self.embedder, "engine": self.engine, **self.optimizers}
        parts |= {f"{name} schedule": schedule for name, schedule in self.schedules.items()}
        for number, stage in enumerate(self.stages, start=1):
            for name in ("loss", "miner", "optimizer", "scheduler"):
                parts[f"stage {number} {name}"] = getattr(stage, name)
        return {name: part for name, part in parts.items() if part is not None}

    def _origin(self) -> dict[str, Any]:
        """Return what a checkpoint of this run must have in common with the run that reads it."""
        return {"of": self.identity, "listing": self.listing}

    def _state(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "processes": self.processes,
            **self._origin(),
            **vars(self._history),
            "parts": {name: part.state_dict() for name, part in self._parts().items()},
            "samplers": [checkpoint.sampler_state(stage.sampler) for stage in self.stages],
            "random": checkpoint.random_state(),
        }

    def _restore(self, path: Path, state: Mapping[str, Any]) -> None:
        if (before := state["processes"]) != self.processes:
            text = f"{self.folder} holds a run of {before} processes, not {self.processes}"
            raise ConfigError(f"{text}; resume it with torchrun --nproc-per-node {before} -m pml_ext train ...")
        with checkpoint.errors_with_path(path, state):
            for name, part in self._parts().items():
                epochs = getattr(part, "T_max", None)
                part.load_state_dict(state["parts"][name])
                if epochs is not None and epochs != part.T_max:
                    networks = name in ("trunk_optimizer schedule", "embedder_optimizer schedule")
                    extend_schedule(
                        part, epochs, self.stages.of(max(1, state["epoch"])).table.lr_factor if networks else 1.0
                    )
            for stage, sampler in zip(self.stages, state["samplers"], strict=True):
                checkpoint.set_sampler_state(stage.sampler, sampler)
            checkpoint.set_random_state(state["ranks"][self.rank] if "ranks" in state else state["random"])
            self._history = RunHistory(**{name: state[name] for name in vars(self._history) if name in state})
        self.epoch = state["epoch"]
        self.changed()


@contextlib.contextmanager
def forward_warnings(warn: Callable[[str], None]) -> Iterator[None]:
    """Pass the texts of :class:`TrainingWarning` to ``warn`` inside the block; show other warnings as always."""
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            warn(str(message)) if issubclass(category, TrainingWarning) else shown(message, category, *where, **more)

        warnings.showwarning = show
        warnings.filterwarnings("always", category=TrainingWarning)
        yield
