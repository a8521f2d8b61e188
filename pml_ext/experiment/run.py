"""A recipe becomes a run: data, networks, PML's trainer and tester, and the folder that is left behind."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import math
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tomli_w
import torch
import tqdm
from pytorch_metric_learning.distances import BaseDistance
from pytorch_metric_learning.testers import GlobalEmbeddingSpaceTester
from pytorch_metric_learning.trainers import MetricLossOnly
from pytorch_metric_learning.utils.logging_presets import HookContainer
from torch import Tensor, nn

from .. import __version__, models, registry
from ..building import BuildContext
from ..data import build_transforms, hold_out_classes, raw_pixels
from ..distributed import (
    DistributedLoss,
    DistributedMiner,
    from_rank_0,
    num_processes,
    rank,
    synchronize_batch_norm,
)
from ..errors import ConfigError, TrainingError, TrainingWarning
from ..evaluation import (
    NearestNeighbours,
    RetrievalAccuracyCalculator,
    learned_metric,
    neighbours_under,
    reranked_under,
    retrieval_metrics,
)
from ..losses import CrossBatchMemory
from ..plugin import RunView
from ..samplers import sampler_state, set_sampler_state
from . import checkpoint, records
from .batches import EpochBatches, SeededImages, draw
from .finite import first_bad, gradients
from .recipe import (
    SHUFFLE,
    LossTable,
    Recipe,
    SamplerTable,
    ScheduleTable,
    build_dataset,
    build_loss,
    build_optimizer,
    build_trunk,
    loss_context,
    own_optimizer,
)
from .run_report import write_run_report

COLLAPSED = 0.99  # mean cosine similarity of different images above which the embeddings count as one point
_PACKAGES = ("torch", "pytorch-metric-learning", "torchvision", "numpy", "scikit-learn", "faiss-cpu", "faiss-gpu")


class Listener(Protocol):
    """Hears how a run goes on; the command line draws it."""

    def step(self, text: str) -> None:
        """Something begins, for example ``"testing"``."""

    def epoch(self, epoch: int, epochs: int, iterations: int) -> None:
        """An epoch of so many iterations begins."""

    def iteration(self, loss: float) -> None:
        """An iteration is done."""

    def epoch_done(self, epoch: int, epochs: int, loss: float, images_per_second: float, seconds_left: float) -> None:
        """An epoch is done: its mean loss, how fast it trained, and how long the epochs that are left will take."""

    def warn(self, text: str) -> None:
        """Something looks wrong, but goes on."""


class Silence:
    """A listener that does nothing."""

    def step(self, text: str) -> None:
        """Nothing."""

    def epoch(self, epoch: int, epochs: int, iterations: int) -> None:
        """Nothing."""

    def iteration(self, loss: float) -> None:
        """Nothing."""

    def epoch_done(self, epoch: int, epochs: int, loss: float, images_per_second: float, seconds_left: float) -> None:
        """Nothing."""

    def warn(self, text: str) -> None:
        """Nothing."""


@dataclass
class Stage:
    """A part of the training with its own loss and sampler.

    Args:
        first: its first epoch, from 1.
        last: its last epoch.
        loss: what is minimised.
        miner: what chooses pairs or triplets for it.
        sampler: what composes batches.
        batch_size: images a batch, over all processes.
        iterations: batches an epoch.
        optimizer: of the loss's own parameters, where it has some.
        scheduler: of that optimizer's learning rate, where the recipe wants one.
        trained: the loss as the trainer calls it: over all processes.
        mining: the miner likewise.
        memory_from: the epoch from which on the loss's memory is used, where it has one.
    """

    first: int
    last: int
    loss: nn.Module
    miner: nn.Module | None
    sampler: Any
    batch_size: int
    iterations: int
    optimizer: torch.optim.Optimizer | None
    scheduler: Any
    trained: nn.Module
    mining: nn.Module | None
    memory_from: int = 1


class _Trainer(MetricLossOnly):
    """PML's trainer, counting iterations from 1 over stages of different length.

    Args:
        iterations_before: how many iterations all epochs before one have together.
        check: called after the backward pass, before the weights change.
        settings: of PML's trainer.
    """

    def __init__(
        self, iterations_before: Callable[[int], int], check: Callable[[MetricLossOnly], None], **settings: Any
    ) -> None:
        super().__init__(**settings)
        self._iterations_before, self._check = iterations_before, check

    def step_optimizers(self) -> None:
        self._check(self)
        super().step_optimizers()

    def get_global_iteration(self) -> int:
        return self._iterations_before(self.epoch) + int(self.iteration) + 1


class _Tester(GlobalEmbeddingSpaceTester):
    """PML's tester, which does not rank by embeddings that are not finite."""

    def maybe_normalize(self, embeddings: Tensor) -> Tensor:
        if (bad := first_bad({"": embeddings})) is not None:
            raise TrainingError(f"the network gives {bad[1]} for images to test; try a lower optimizer.lr")
        return super().maybe_normalize(embeddings)  # type: ignore[no-any-return]


class Run:
    """A run: what components see of it, and the training itself.

    Components that have ``prepare(run)``, ``start_epoch(run)`` or ``figures(run)`` are called with it. With several
    processes (``torchrun``) every one has a run of its own, in step with the others: rank 0 tests and writes.

    Args:
        recipe: what to train.
        name: the recipe's name.
        folder: where everything is written.
        seed: of all generators.
        device: ``"cpu"`` or ``"cuda"``.
        root: the folder of the data, where the data set wants one.
        listener: hears how it goes on.
    """

    def __init__(self, recipe: Recipe, name: str, folder: Path, seed: int = 0, device: str = "cpu",
                 root: Path | None = None, listener: Listener | None = None) -> None:  # fmt: skip
        self.recipe, self.name, self.folder, self.seed = recipe, name, folder, seed
        self.device = torch.device(device)
        self.listener: Listener = listener or Silence()
        self.rank, self.processes = rank(), num_processes()
        self.epoch = 0
        self.warnings: list[str] = []
        self.train_seconds = 0.0
        checkpoint.seed_all(seed)
        self._load_data(root)
        self._build_networks()
        self.stages = list(self._build_stages())

    # What components see

    def embeddings(self, split: str, layer: str = "embedder") -> Tensor:
        """The network's output for all images of a split, not normalised.

        Args:
            split: ``"train"``, ``"test"``, or ``"validation"`` where the recipe holds out classes.
            layer: ``"embedder"``, or ``"trunk"`` for the features before it.

        Returns:
            ``[N, D]``, float32, on the run's device, in the order of :meth:`labels`.
        """
        return torch.cat([features for features, _ in self.batches(split, layer)])

    @torch.no_grad()
    def batches(self, split: str, layer: str = "embedder") -> Iterator[tuple[Tensor, Tensor]]:
        """What :meth:`embeddings` and :meth:`labels` give, batch by batch, so that not all is held at a time.

        Args:
            split: as of :meth:`embeddings`.
            layer: likewise.

        Yields:
            The output ``[B, D]`` and the labels ``[B]``.
        """
        if layer not in ("embedder", "trunk"):
            raise ValueError(f"layer must be 'embedder' or 'trunk', not {layer!r}")
        loader = torch.utils.data.DataLoader(
            self._split(split), self.recipe.evaluation.batch_size, num_workers=self.recipe.data.workers
        )
        training = [module.training for module in (self.trunk, self.embedder)]
        try:
            for images, labels in loader:
                self.trunk.eval()
                self.embedder.eval()
                features = self.trunk(images.to(self.device))
                found = features if layer == "trunk" else self.embedder(features)
                yield found.float(), labels.to(self.device)
        finally:
            for module, was_training in zip((self.trunk, self.embedder), training, strict=True):
                module.train(was_training)

    def embeddings_before(self) -> Tensor:
        """The test embeddings of the untrained network, ``[N, D]``."""
        return checkpoint.load(self._checkpoint("before"), self.device)["embeddings"]  # type: ignore[no-any-return]

    def labels(self, split: str) -> Tensor:
        """The labels of a split: ``[N]``, int64, on the run's device."""
        return torch.as_tensor(self._split(split).labels, dtype=torch.int64, device=self.device)

    # Building

    def _load_data(self, root: Path | None) -> None:
        table = self.recipe.data
        if self.rank > 0:  # rank 0 goes first, and may have to fetch the data
            from_rank_0(None)
        splits = build_dataset(table, root)
        if self.rank == 0:
            from_rank_0(None)
        train, test = splits.train, splits.test
        self.image_size, self.channels = splits.image_size, splits.channels
        normalize = models.pretrained_normalization(self.recipe.model.trunk.name, self.recipe.model.trunk.settings)
        self._preprocessing = (splits.crop, normalize)
        augmented, plain = build_transforms(self.image_size, self.channels, splits.crop, normalize, **table.augment)
        self.splits: dict[str, Any] = {"test": test.with_transform(plain)}
        if self.recipe.evaluation.validation:
            train, held_out = hold_out_classes(train, self.recipe.evaluation.validation, self.seed)
            self.splits["validation"] = held_out.with_transform(plain)
        self.splits["train"] = train.with_transform(plain)
        self._training_images = train.with_transform(augmented)
        self.train_labels = sorted({int(label) for label in train.labels})

    def _build_networks(self) -> None:
        table = self.recipe.model
        self.trunk = build_trunk(table.trunk, self.channels, self.image_size)
        self._features = models.output_size(self.trunk, self.channels, self.image_size)
        self.embedder = models.embedder(self._features, table.embedding_size, table.hidden_sizes)
        if self.processes > 1:
            self.trunk = synchronize_batch_norm(self.trunk, self.device)
        self.trunk.to(self.device)
        self.embedder.to(self.device)
        self._trained = {"trunk": self._over_processes(self.trunk), "embedder": self._over_processes(self.embedder)}
        schedule, optimizer_table = self.recipe.schedule, self.recipe.optimizer
        self._optimizers: dict[str, torch.optim.Optimizer] = {}
        for key, network, factor in (("trunk", self.trunk, 1.0),
                                     ("embedder", self.embedder, optimizer_table.head_lr_factor)):  # fmt: skip
            if parameters := [parameter for parameter in network.parameters() if parameter.requires_grad]:
                self._optimizers[f"{key}_optimizer"] = build_optimizer(optimizer_table, parameters, factor)
        self._schedulers: dict[str, Any] = {}
        for key, optimizer in self._optimizers.items():
            scheduler = _scheduler(optimizer, schedule)
            if scheduler is not None:
                self._schedulers[key.replace("_optimizer", "_scheduler_by_epoch")] = scheduler

    def _over_processes(self, module: nn.Module, **settings: Any) -> nn.Module:
        """A module whose gradients are averaged over the processes, where there are several and it has some."""
        if self.processes == 1 or not any(parameter.requires_grad for parameter in module.parameters()):
            return module
        return nn.parallel.DistributedDataParallel(module, **settings)

    def _build_stages(self) -> Iterator[Stage]:
        first = 1
        for table in self.recipe.all_stages():
            assert table.sampler is not None
            loss, miner = self._build_loss(table.loss)
            sampler, iterations = self._build_sampler(table.sampler)
            own = [parameter for parameter in loss.parameters() if parameter.requires_grad]
            optimizer_table = own_optimizer(self.recipe.optimizer, table.loss)
            optimizer, scheduler = build_optimizer(optimizer_table, own) if own else None, None
            if optimizer is not None and optimizer_table.scheduled:
                scheduler = _scheduler(optimizer, self.recipe.schedule, first)
            yield Stage(
                first, first + table.epochs - 1, loss, miner, sampler, table.sampler.batch_size, iterations,
                optimizer, scheduler,
                # A batch need not reach every parameter of a loss, and its buffers are alike in all processes.
                self._over_processes(DistributedLoss(loss) if self.processes > 1 else loss,
                                     find_unused_parameters=True, broadcast_buffers=False),
                DistributedMiner(miner) if miner is not None and self.processes > 1 else miner,
                table.loss.memory.start_epoch if table.loss.memory is not None else 1,
            )  # fmt: skip
            first += table.epochs

    def _build_loss(self, table: LossTable) -> tuple[nn.Module, nn.Module | None]:
        loss, miner = build_loss(table, loss_context(self.recipe, self.train_labels))
        return loss.to(self.device), miner.to(self.device) if miner is not None else None

    def _build_sampler(self, table: SamplerTable) -> tuple[Any, int]:
        train = self._training_images
        if table.name == SHUFFLE:
            iterations = table.iterations or len(train) // table.batch_size
            if iterations * table.batch_size > len(train) or iterations == 0:
                raise ConfigError(
                    f"sampler: {max(iterations, 1)} batches of {table.batch_size} need more than the {len(train)} "
                    "training images; make batch_size or iterations smaller"
                )
            return torch.utils.data.RandomSampler(range(len(train))), iterations
        iterations = table.iterations or max(1, len(train) // table.batch_size)
        context: BuildContext = {
            "labels": np.asarray(train.labels), "batch_size": table.batch_size,
            "length_before_new_iter": iterations * table.batch_size, "seed": self.seed,
        }  # fmt: skip
        try:
            sampler = registry.build(table.name, "sampler", context, **table.settings)
        except (AssertionError, ValueError) as error:
            raise ConfigError(
                f"sampler: {table.name} refuses batches of {table.batch_size} from {len(train)} images of "
                f"{len(self.train_labels)} classes: {error}"
            ) from None
        passes = len(sampler) // (1 if isinstance(sampler, torch.utils.data.BatchSampler) else table.batch_size)
        if passes == 0:
            raise ConfigError(
                f"sampler: one pass of {table.name} gives {len(sampler)} images, fewer than {table.batch_size}"
            )
        return sampler, min(iterations, passes) if table.iterations else passes

    # Training

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
        state = self._state_to_resume() if resume else None
        test_seconds = 0.0
        if state is None:
            metrics, test_seconds = self._first_look() if self.rank == 0 else ({}, 0.0)
            for part in self.parts():
                self.call(part, "prepare")
            best: dict[str, Any] = {"epoch": None, "value": -math.inf}
        else:
            metrics, best, test_seconds = state["metrics"], state["best"], state["test_seconds"]
            with checkpoint.taking(self._checkpoint("last")):
                self._restore(state)
        hooks = None
        if self.rank == 0:
            write_json(self.folder / "network.json", self._network_json())
            keeper = records.open_records(self.folder, self._iterations_before(self.epoch + 1), self.epoch)
            hooks = HookContainer(keeper, log_freq=1, save_models=False)
        begun, trained = time.perf_counter(), self._iterations_before(self.epoch + 1)
        while self.epoch < self.recipe.schedule.epochs:
            self.epoch += 1
            started = time.perf_counter()
            for part in self.parts():
                self.call(part, "start_epoch")
            loss = self._train_epoch(hooks)
            self._check_weights()
            seconds = time.perf_counter() - started
            self.train_seconds += seconds
            if hooks is not None:
                started = time.perf_counter()
                self._note_collapse()
                self._validate(hooks, best)
                keeper.save_records()
                test_seconds += time.perf_counter() - started
                self._save(metrics, best, test_seconds)
                self._tell(loss, seconds, begun, trained)
        result = self._finish(keeper, hooks, metrics, best, test_seconds) if hooks is not None else None
        return from_rank_0(result)  # type: ignore[no-any-return]

    def _first_look(self) -> tuple[dict[str, dict[str, float]], float]:
        """The metrics of raw pixels and of the untrained network, and how long they took."""
        started = time.perf_counter()
        self.listener.step("testing raw pixels and the untrained network")
        test = self.splits["test"]
        pixels = torch.as_tensor(raw_pixels(test, self.recipe.data.workers), device=self.device)
        pixels = nn.functional.normalize(pixels)
        raw = self._calculator().get_accuracy(pixels, self.labels("test"))
        metrics = {"raw": retrieval_metrics(raw), "before": self._test("test")}
        checkpoint.save(self._checkpoint("before"), {"embeddings": self.embeddings("test").cpu()})
        return metrics, time.perf_counter() - started

    def _stage(self) -> Stage:
        return next(stage for stage in self.stages if stage.first <= self.epoch <= stage.last)

    def _iterations_before(self, epoch: int) -> int:
        """How many iterations all epochs before one have together."""
        return sum(stage.iterations * max(0, min(epoch - 1, stage.last) - stage.first + 1) for stage in self.stages)

    def _draw_batches(self, stage: Stage) -> EpochBatches:
        """The epoch's batches as rank 0 draws them; the other processes' networks have random numbers of their own."""
        drawn = draw(stage.sampler, stage.batch_size, stage.iterations) if self.rank == 0 else None
        if self.rank > 0:
            torch.manual_seed(hash((self.seed, self.epoch, self.rank)))
        return EpochBatches(from_rank_0(drawn), self.seed, self.epoch, self.rank, self.processes)

    def _train_epoch(self, hooks: HookContainer | None) -> float:
        """Trains one epoch; the mean of its losses."""
        stage = self._stage()
        if isinstance(stage.loss, CrossBatchMemory):
            stage.loss.active = self.epoch >= stage.memory_from
        self.listener.epoch(self.epoch, self.recipe.schedule.epochs, stage.iterations)
        optimizers, schedulers = dict(self._optimizers), dict(self._schedulers)
        if stage.optimizer is not None:
            optimizers["metric_loss_optimizer"] = stage.optimizer
        if stage.scheduler is not None:
            schedulers["metric_loss_scheduler_by_epoch"] = stage.scheduler
        parameters = list(self._parameters().items())
        losses: list[float] = []

        def before_step(trainer: MetricLossOnly) -> None:
            seen = {"loss": trainer.losses["total_loss"], "embeddings": self._last_embeddings}
            seen |= {f"gradient of {name}": gradient for name, gradient in gradients(parameters).items()}
            self._check_finite(seen, f"in iteration {trainer.get_global_iteration()} (epoch {self.epoch})")

        def after_iteration(trainer: MetricLossOnly) -> None:
            losses.append(float(trainer.losses["total_loss"].detach()))
            if hooks is not None:
                hooks.end_of_iteration_hook(trainer)
            self.listener.iteration(losses[-1])

        trainer = _Trainer(
            self._iterations_before,
            before_step,
            models=self._trained,
            optimizers=optimizers,
            batch_size=stage.batch_size,
            loss_funcs={"metric_loss": stage.trained},
            mining_funcs={"tuple_miner": stage.mining} if stage.mining is not None else {},
            dataset=SeededImages(self._training_images),
            iterations_per_epoch=stage.iterations,
            data_device=self.device,
            sampler=self._draw_batches(stage),
            lr_schedulers=schedulers,
            freeze_trunk_batchnorm=self.recipe.model.freeze_batch_norm,
            dataloader_num_workers=self.recipe.data.workers,
            end_of_iteration_hook=after_iteration,
        )
        handle = self.embedder.register_forward_hook(self._keep_embeddings)
        try:
            with _quiet_tqdm(), warnings.catch_warnings(), self._heard():
                # PML formats the loss, a tensor with a graph, for the progress bar that is not drawn.
                warnings.filterwarnings("ignore", message="Converting a tensor with requires_grad")
                trainer.train(start_epoch=self.epoch, num_epochs=self.epoch)
        finally:
            handle.remove()
        return float(np.mean(losses))

    def _parameters(self) -> dict[str, Tensor]:
        """The parameters that the epoch trains, by group and name."""
        groups = {"trunk": self.trunk, "embedder": self.embedder, "loss": self._stage().loss}
        return {f"{group}.{name}": parameter for group, module in groups.items()
                for name, parameter in module.named_parameters()}  # fmt: skip

    def _check_weights(self) -> None:
        """No checkpoint is replaced by weights that are not finite, nor by statistics that make NaN of every image.

        An infinite variance does not: what it divides becomes 0. Other buffers may be infinite by design, as masks are.
        """
        self._check_finite({f"weight {k}": v for k, v in self._parameters().items()}, f"in epoch {self.epoch}")
        buffers = {f"{group}.{name}": buffer for group, module in (("trunk", self.trunk), ("embedder", self.embedder))
                   for name, buffer in module.named_buffers() if buffer.is_floating_point()}  # fmt: skip
        finite = {k: v if k.endswith("running_mean") else v.nan_to_num(math.nan, 0.0, 0.0) for k, v in buffers.items()}
        self._check_finite(finite, f"in epoch {self.epoch}")
        if (bad := first_bad({k: v for k, v in buffers.items() if k.endswith("running_var")})) is not None:
            text = (
                f"{bad[0]} has become infinite: features are the same for every image there; try a lower optimizer.lr"
            )
            if text not in self.warnings:
                self._warn(text)

    def _check_finite(self, tensors: Mapping[str, Tensor], when: str) -> None:
        if (bad := first_bad(tensors)) is not None:
            name, value = bad
            raise TrainingError(f"the {name} became {value} {when}; {self._kept()}. Try a lower optimizer.lr")

    def _tell(self, loss: float, seconds: float, begun: float, trained: int) -> None:
        """What an epoch gave, and how long those that are left will take at the pace so far."""
        epochs, stage = self.recipe.schedule.epochs, self._stage()
        done, everything = self._iterations_before(self.epoch + 1), self._iterations_before(epochs + 1)
        pace = (time.perf_counter() - begun) / (done - trained)
        images = stage.iterations * stage.batch_size
        self.listener.epoch_done(self.epoch, epochs, loss, images / seconds, pace * (everything - done))

    @contextlib.contextmanager
    def _heard(self) -> Iterator[None]:
        """What losses warn of in a run belongs to the run; inside ``catch_warnings``, which undoes it."""
        shown = warnings.showwarning

        def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, TrainingWarning):
                self._warn(str(message))
            else:
                shown(message, category, *where, **more)

        warnings.showwarning = show
        warnings.filterwarnings("always", category=TrainingWarning)
        yield

    def _keep_embeddings(self, _module: nn.Module, _inputs: Any, output: Tensor) -> None:
        self._last_embeddings = output.detach()

    def _kept(self) -> str:
        if not self._checkpoint("last").exists():
            return "there is no checkpoint yet"
        return f"the checkpoint of epoch {self.epoch - 1} is kept"

    def _checkpoint(self, name: str) -> Path:
        return self.folder / "checkpoints" / f"{name}.pt"

    def _note_collapse(self) -> None:
        similarity = mean_similarity(self._last_embeddings)
        if similarity > COLLAPSED:
            self._warn(
                f"epoch {self.epoch}: the embeddings collapse to one point (mean cosine similarity of different "
                f"images {similarity:.3f}); a warm start, a lower learning rate or easier pairs may help"
            )

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
        self.listener.warn(text)

    def parts(self) -> list[Any]:
        """All modules and samplers of the stages, each once: whoever of them takes part in the run is called."""
        found: list[Any] = []
        for stage in self.stages:
            for owner in (stage.loss, stage.miner, stage.sampler):
                for part in owner.modules() if isinstance(owner, nn.Module) else [owner]:
                    if part is not None and not any(part is other for other in found):
                        found.append(part)
        return found

    def call(self, part: Any, method: str) -> Any:
        """What a part's method returns when called with the run; None if it has no such method."""
        view: RunView = self  # all that a component may use
        function = getattr(part, method, None)
        return function(view) if callable(function) else None

    def _metric(self) -> BaseDistance | None:
        """The distance that a component of the last stage declares, by which evaluation searches as well."""
        return learned_metric(self.stages[-1].loss.modules()) or learned_metric(self.parts())

    # Testing

    def _split(self, split: str) -> Any:
        if split not in self.splits:
            raise ValueError(f"no split {split!r}; splits: {', '.join(sorted(self.splits))}")
        return self.splits[split]

    def _calculator(
        self, search: NearestNeighbours | None = None, clustering: bool = True
    ) -> RetrievalAccuracyCalculator:
        """The metrics of the recipe; by a search under another metric than the Euclidean, those of retrieval alone."""
        table = self.recipe.evaluation
        retrieval = [f"recall_at_{k}" for k in table.recall_at] + [f"precision_at_{k}" for k in table.precision_at]
        retrieval += ["r_precision", "mean_average_precision_at_r"]
        clusters = ["NMI", "f1", "purity"]
        clusters += [f"{name}_{c}" for c in table.clusters_per_class if c > 1 for name in ("nmi", "f1", "purity")]
        return RetrievalAccuracyCalculator(
            include=[*retrieval, *clusters] if clustering and search is None else retrieval,
            recall_at=table.recall_at,
            precision_at=table.precision_at,
            clusters_per_class=table.clusters_per_class,
            lone_queries=table.lone_queries,
            knn_func=search,
            k="max_bin_count",
            device=self.device,
        )

    def _tester(self, calculator: RetrievalAccuracyCalculator, **settings: Any) -> _Tester:
        return _Tester(
            batch_size=self.recipe.evaluation.batch_size, dataloader_num_workers=self.recipe.data.workers,
            data_device=self.device, accuracy_calculator=calculator, **settings,
        )  # fmt: skip

    def _test(
        self,
        split: str,
        hooks: HookContainer | None = None,
        search: NearestNeighbours | None = None,
        clustering: bool = True,
    ) -> dict[str, float]:
        """The metrics of a split, each image searched among all others of it."""
        tester = self._tester(
            self._calculator(search, clustering),
            normalize_embeddings=search is None,
            end_of_testing_hook=hooks.end_of_testing_hook if hooks is not None else None,
        )
        with _quiet_tqdm():
            found = tester.test({split: self._split(split)}, self.epoch, self.trunk, self.embedder)[split]
        return retrieval_metrics({key.removesuffix("_level0"): value for key, value in found.items()})

    def _validate(self, hooks: HookContainer, best: dict[str, Any]) -> None:
        """Tests on the held-out classes, and keeps the model if it is the best so far."""
        table = self.recipe.evaluation
        if table.select is None or (self.epoch % table.every and self.epoch != self.recipe.schedule.epochs):
            return
        self.listener.step(f"validating epoch {self.epoch}")
        hooks.primary_metric = "mean_average_precision_at_r"
        value = self._test("validation", hooks)[table.select]
        if value > best["value"]:
            best |= {"epoch": self.epoch, "value": value}
            checkpoint.save(self._checkpoint("best"), self.model_state())

    def _finish(self, keeper: Any, hooks: HookContainer, metrics: dict[str, Any], best: dict[str, Any],
                test_seconds: float) -> dict[str, Any]:  # fmt: skip
        self.listener.step("testing the trained network")
        started = time.perf_counter()
        if best["epoch"] is not None:
            self._take_model("best")
        metrics = metrics | {"after": self._test("test", hooks)}
        checkpoint.save(self._checkpoint("model"), self.model_state())
        keeper.save_records()
        keeper.tensorboard_writer.close()
        metrics["training"] = self._test("train", clustering=False)
        metric = self._metric()
        if metric is not None:
            metrics["learned_metric"] = self._test("test", search=neighbours_under(metric))
            if shortlist := self.recipe.evaluation.shortlist:
                # One more than the recipe says, since the query itself is among its own nearest.
                metrics["shortlist"] = self._test("test", search=reranked_under(metric, shortlist + 1))
        if (similarity := mean_similarity(self.embeddings("test"))) > COLLAPSED:
            self._warn(f"the test embeddings have collapsed to one point (mean cosine similarity {similarity:.3f})")
        test_seconds += time.perf_counter() - started
        result = {
            "recipe": self.name,
            "seed": self.seed,
            "device": _device_name(self.device),
            "processes": self.processes,
            "versions": versions(),
            "seconds": {"train": round(self.train_seconds, 3), "test": round(test_seconds, 3)},
            "best_epoch": best["epoch"] if best["epoch"] is not None else self.epoch,
            "warnings": self.warnings,
            **metrics,
        }
        write_json(self.folder / "metrics.json", result)  # a run with this file is finished
        self._draw_report(result)
        return result

    def _draw_report(self, metrics: Mapping[str, Any]) -> None:
        self.listener.step("writing the report")
        write_run_report(self, metrics)

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

    # State

    def _network_json(self) -> dict[str, Any]:
        """What the networks were made for: with the recipe and ``model.pt`` it is enough to use them."""
        crop, normalize = self._preprocessing
        return {
            "image_size": self.image_size, "channels": self.channels, "crop": crop,
            "normalize": {"mean": normalize[0], "std": normalize[1]} if normalize else None,
            "features": self._features, "classes": self.train_labels,
        }  # fmt: skip

    def model_state(self) -> dict[str, Any]:
        """The weights of the networks and of the losses (a learned metric, say): the last stage's, and the others'."""
        *earlier, last = (stage.loss.state_dict() for stage in self.stages)
        return {"trunk": self.trunk.state_dict(), "embedder": self.embedder.state_dict(), "loss": last,
                "earlier_losses": earlier, "epoch": self.epoch}  # fmt: skip

    def load_model_state(self, state: Mapping[str, Any]) -> None:
        """Takes the weights of :meth:`model_state`."""
        self.trunk.load_state_dict(state["trunk"])
        self.embedder.load_state_dict(state["embedder"])
        losses = [*state.get("earlier_losses", ()), state["loss"]]
        for stage, loss in zip(self.stages[-len(losses) :], losses, strict=True):
            stage.loss.load_state_dict(loss)

    def _take_model(self, name: str) -> None:
        path = self._checkpoint(name)
        state = checkpoint.load(path, self.device)
        with checkpoint.taking(path):
            self.load_model_state(state)

    def _save(self, metrics: dict[str, Any], best: dict[str, Any], test_seconds: float) -> None:
        state = {
            "epoch": self.epoch,
            "networks": {"trunk": self.trunk.state_dict(), "embedder": self.embedder.state_dict()},
            "optimizers": {key: optimizer.state_dict() for key, optimizer in self._optimizers.items()},
            "schedulers": {key: scheduler.state_dict() for key, scheduler in self._schedulers.items()},
            "stages": [
                {
                    "loss": stage.loss.state_dict(),
                    "miner": stage.miner.state_dict() if stage.miner is not None else {},
                    "sampler": sampler_state(stage.sampler),
                    "optimizer": stage.optimizer.state_dict() if stage.optimizer is not None else None,
                    "scheduler": stage.scheduler.state_dict() if stage.scheduler is not None else None,
                }
                for stage in self.stages
            ],
            "random": checkpoint.random_state(),
            "processes": self.processes,
            "metrics": metrics,
            "best": best,
            "warnings": self.warnings,
            "train_seconds": self.train_seconds,
            "test_seconds": test_seconds,
        }
        checkpoint.save(self._checkpoint("last"), state)

    def _state_to_resume(self) -> dict[str, Any] | None:
        path = self._checkpoint("last")
        if not from_rank_0(path.exists()):
            return None
        state = checkpoint.load(path, self.device, trusted=True)
        if state["processes"] != self.processes:
            before = state["processes"]
            raise ConfigError(
                f"{self.folder} holds a run of {before} process{'es' * (before > 1)}, not {self.processes}; resume it "
                f"with {f'torchrun --nproc-per-node {before} -m pml_ext' if before > 1 else 'pml-ext'} train ..."
            )
        return state

    def _restore(self, state: dict[str, Any]) -> None:
        self.epoch, self.warnings, self.train_seconds = state["epoch"], state["warnings"], state["train_seconds"]
        self.trunk.load_state_dict(state["networks"]["trunk"])
        self.embedder.load_state_dict(state["networks"]["embedder"])
        for key, optimizer in self._optimizers.items():
            optimizer.load_state_dict(state["optimizers"][key])
        for key, scheduler in self._schedulers.items():
            scheduler.load_state_dict(state["schedulers"][key])
        for stage, saved in zip(self.stages, state["stages"], strict=True):
            stage.loss.load_state_dict(saved["loss"])
            if stage.miner is not None:
                stage.miner.load_state_dict(saved["miner"])
            set_sampler_state(stage.sampler, saved["sampler"])
            if stage.optimizer is not None:
                stage.optimizer.load_state_dict(saved["optimizer"])
            if stage.scheduler is not None:
                stage.scheduler.load_state_dict(saved["scheduler"])
        checkpoint.set_random_state(state["random"])


def mean_similarity(embeddings: Tensor) -> float:
    """The mean cosine similarity of different rows of ``[N, D]``: 1 when all lie on one point.

    It is ``(|sum of unit rows|^2 - N) / (N (N - 1))``, linear in N.
    """
    count = len(embeddings)
    if count < 2:
        return 0.0
    total = nn.functional.normalize(embeddings.double()).sum(dim=0)
    return float((total.square().sum() - count) / (count * (count - 1)))


def versions() -> dict[str, str]:
    """The versions of what a run depends on."""
    found = {"python": platform.python_version(), "pml-ext": __version__}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def write_json(path: Path, value: Any) -> None:
    """Writes a value as indented JSON, in one step."""
    text = json.dumps(value, indent=2) + "\n"
    checkpoint.write_atomically(path, lambda temporary: temporary.write_text(text, "utf-8"))


def write_toml(path: Path, value: dict[str, Any]) -> None:
    """Writes tables as TOML, in one step."""
    text = tomli_w.dumps(value)
    checkpoint.write_atomically(path, lambda temporary: temporary.write_text(text, "utf-8"))


def _device_name(device: torch.device) -> str:
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def _scheduler(optimizer: torch.optim.Optimizer, schedule: ScheduleTable, first: int = 1) -> Any:
    """How a learning rate falls that is stepped from an epoch of the run on; None where it does not."""
    before = first - 1
    if schedule.name == "multi-step":
        milestones = [epoch - before for epoch in schedule.milestones if epoch > before]
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, schedule.gamma)
    if schedule.name == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, schedule.epochs - before)
    return None


@contextlib.contextmanager
def _quiet_tqdm() -> Iterator[None]:
    """PML's trainer and tester draw progress bars of their own; the listener draws ours."""
    drawing = tqdm.tqdm
    tqdm.tqdm = functools.partial(drawing, disable=True)
    try:
        yield
    finally:
        tqdm.tqdm = drawing
