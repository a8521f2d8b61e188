"""A training step and an epoch of steps, in plain PyTorch.

A step equals one of PML 2.9's ``MetricLossOnly`` to the last digit, and adds precision, compilation, clipping, and a
check of the loss and all gradients. It waits for the device once.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pml_ext.distributed import max_over_ranks, num_processes
from pml_ext.distributed.devices import autocast, check_precision
from pml_ext.errors import TrainingError
from pml_ext.losses import MicroBatched, unwrapped
from pml_ext.pairwise import to_full_precision

from ..networks.modes import is_batch_norm
from ..recipe.schema import EngineTable
from .batches import Batch
from .devices import read_numbers

MOST_SKIPPED = 30  # steps in a row; a loss scale that is halved as often is below 1e-4


class NotFiniteError(TrainingError):
    """The loss, an embedding or a gradient is not finite; no step was taken."""


@dataclass
class Objective:
    """The loss to minimize, with its miner and the optimizers."""

    loss: nn.Module  # called as loss(embeddings, labels, indices_tuple); returns one value
    optimizers: Mapping[str, torch.optim.Optimizer]  # of trunk, embedder and loss, in the order in which they step
    miner: nn.Module | None = None  # called as miner(embeddings, labels) for the indices_tuple
    schedulers: Sequence[Any] = ()  # stepped at the end of every epoch
    recorded: Callable[[], Sequence[Any]] = field(default=tuple)  # values to record, once the loss is computed
    warm_up: Callable[[], AbstractContextManager[None]] = nullcontext  # around each update, see WarmUp


@dataclass(frozen=True)
class Step:
    """The result of a training step."""

    loss: float
    embeddings: Tensor  # of its batch, [B, D], float32 or float64, without gradient
    recorded: list[Any]  # values that the objective records of the step, as Python numbers
    skipped: bool = False  # a value was not finite, so no parameter changed


class NonFinite(NamedTuple):
    """A tensor's name, and a value in it that is NaN or infinite."""

    name: str
    value: float


class Engine:
    """Trains a trunk and an embedder; gradients are averaged over the processes.

    Save and load the modules that were passed in; compiled or wrapped ones share their parameters.
    ``freeze_batch_norm`` keeps the statistics of the trunk's batch norms. ``skip_nonfinite`` skips at most 30
    non-finite steps in a row.
    """

    def __init__(
        self,
        trunk: nn.Module,
        embedder: nn.Module,
        device: torch.device,
        settings: EngineTable | None = None,
        freeze_batch_norm: bool = False,
        skip_nonfinite: bool = False,
    ) -> None:
        self.frozen: Sequence[nn.Module] = ()  # parts of the trunk that stay in evaluation mode
        self._skips = skip_nonfinite
        self._undo: Callable[[], None] = lambda: None
        self.settings = settings or EngineTable()
        self.device = device
        self._freeze_batch_norm = freeze_batch_norm
        check_precision(device, self.settings.precision)
        self.networks = {"trunk": trunk, "embedder": embedder}
        self._parts = self._trained_parts()
        self._trainable = _trainable(trunk)  # when the parts were wrapped
        self._scaler = torch.amp.GradScaler(device.type, enabled=self.settings.precision == "float16")
        self._overflows = 0  # consecutive skipped steps

    def _trained_parts(self) -> list[nn.Module]:
        parts: list[Any] = list(self.networks.values())
        if self.settings.compile:
            parts = [torch.compile(part) for part in parts]
        if self.settings.micro_batch is not None:
            parts = [MicroBatched(nn.Sequential(*parts), self.settings.micro_batch)]
        return [data_parallel(module) for module in parts]

    def use_trunk(self, trunk: nn.Module) -> None:
        """Train the trunk itself, or the rest after a cut.

        It is wrapped again if other parameters are frozen, since processes wait for the gradients of trainable ones.
        """
        trainable = _trainable(trunk)
        if trunk is not self.networks["trunk"] or trainable != self._trainable:
            self.networks["trunk"] = trunk
            self._parts = self._trained_parts()
            self._trainable = trainable

    def epoch(self, batches: Iterable[Batch], objective: Objective) -> Iterator[Step]:
        """Train on batches and yield each step after it was taken.

        Raises NotFiniteError for a non-finite loss, embedding or gradient, and TrainingError for an unusable loss.
        """
        for module in (*self._parts, objective.loss):
            module.train()
        kept = [*self.frozen]
        if self._freeze_batch_norm:
            kept += filter(is_batch_norm, self.networks["trunk"].modules())
        for module in kept:
            module.eval()
        modules = nn.ModuleDict(self.networks | {"loss": unwrapped(objective.loss)})
        parameters = dict(modules.named_parameters())
        reads_ahead = self.device.type != "cpu"  # the next batch is read while the device works
        reading = iter(batches)
        batch = next(reading, None)
        while batch is not None:
            if self._skips:
                self._undo = self._make_undo(objective, len(batch.images))
            for parameter in parameters.values():
                parameter.grad = None
            pending = self._forward_and_backward(batch, objective)
            batch = None  # its memory is free while the next one is read
            if reads_ahead:
                batch = next(reading, None)
            with objective.warm_up():
                step = self._update(*pending, objective, parameters)
            yield step
            if not reads_ahead:
                batch = next(reading, None)
        for scheduler in objective.schedulers:
            scheduler.step()

    def _forward_and_backward(self, batch: Batch, objective: Objective) -> tuple[Tensor, Tensor]:
        with autocast(self.device, self.settings.precision):
            embeddings = batch.images
            for module in self._parts:
                embeddings = module(embeddings)
        embeddings = to_full_precision(embeddings)
        indices_tuple = batch.indices_tuple
        if objective.miner is not None:
            indices_tuple = objective.miner(embeddings, batch.labels)
        loss = objective.loss(embeddings, batch.labels, indices_tuple)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            given = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            raise TrainingError(f"the loss gave {given} instead of one value; its reducer should give a mean or a sum")
        if not loss.requires_grad:
            raise TrainingError("the loss does not depend on any trained parameter, so nothing can be learned")
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach(), embeddings.detach()

    def _check_that_the_trunk_learns(self, parameters: Mapping[str, nn.Parameter]) -> None:
        trunk = [value for name, value in parameters.items() if name.startswith("trunk.") and value.requires_grad]
        if trunk and all(parameter.grad is None for parameter in trunk):
            raise TrainingError(
                f"no parameter of the trunk {type(self.networks['trunk']).__name__} has a gradient; look for detach(), "
                "torch.no_grad() and .data in it, or freeze it: --set model.freeze=trunk"
            )

    def _update(
        self, loss: Tensor, embeddings: Tensor, objective: Objective, parameters: Mapping[str, nn.Parameter]
    ) -> Step:
        """Take a step, or skip it if a value is not finite."""
        self._check_that_the_trunk_learns(parameters)
        optimizers = objective.optimizers.values()
        for optimizer in optimizers:
            self._scaler.unscale_(optimizer)
        gradients: dict[str, Tensor] = {
            f"gradient of {name}": stored_values(parameter.grad)
            for name, parameter in parameters.items()
            if parameter.grad is not None
        }

        norms = torch.stack(torch._foreach_norm([embeddings, *gradients.values()])).sum()
        value, total, *recorded = read_numbers([loss, norms, *objective.recorded()])
        nonfinite = None
        if not math.isfinite(value):
            nonfinite = first_nonfinite({"embeddings": embeddings}) or NonFinite("loss", value)
        elif not math.isfinite(total):  # a norm above 1e19 overflows although every value is finite
            nonfinite = first_nonfinite({"embeddings": embeddings} | gradients)
        if self._skips and max_over_ranks(int(nonfinite is not None)):
            nonfinite = nonfinite or NonFinite("loss of another process", math.nan)

        if nonfinite is None:
            self._step(optimizers)
        else:
            self._skip(nonfinite)
        self._scaler.update()
        return Step(value, embeddings, recorded, skipped=nonfinite is not None)

    def _step(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self._overflows = 0
        if self.settings.clip_gradient is not None:
            trained = nn.ModuleDict(self.networks).parameters()
            nn.utils.clip_grad_norm_(trained, self.settings.clip_gradient)
        for optimizer in optimizers:
            optimizer.step()

    def _skip(self, nonfinite: NonFinite) -> None:
        """Skip a step after an overflow in float16 or with ``skip_nonfinite``; otherwise raise."""
        text = f"the {nonfinite.name} became {nonfinite.value}"
        self._overflows += 1
        if not self._skips and (not self._scaler.is_enabled() or nonfinite.name in ("embeddings", "loss")):
            raise NotFiniteError(text)
        if self._overflows > MOST_SKIPPED:
            text += f" in {self._overflows} iterations in a row"
            if not self._skips:
                text += "; set engine.precision = 'bfloat16', which has a wider range than float16"
            raise NotFiniteError(text)
        self._undo()

    def _make_undo(self, objective: Objective, batch_size: int) -> Callable[[], None]:
        """Return a function that restores buffers and memory queues."""
        buffers = [(buffer, buffer.clone()) for buffer in nn.ModuleDict(self.networks).buffers()]
        loss = unwrapped(objective.loss)
        entering = num_processes() * (batch_size + 1)  # parts of a joined batch differ by one at most
        undo_queues = {}  # of the loss's memories, by their names
        for name, module in loss.named_modules():
            if hasattr(module, "snapshot"):
                undo_queues[name] = module.snapshot(entering)
        kept_elsewhere = {name for name, _ in loss.named_parameters()}
        state = {}
        for name, value in loss.state_dict().items():
            if name not in kept_elsewhere and name.rpartition(".")[0] not in undo_queues:
                state[name] = copy.deepcopy(value)

        def undo() -> None:
            for buffer, before in buffers:
                buffer.copy_(before)
            loss.load_state_dict(state, strict=False)
            for undo_queue in undo_queues.values():
                undo_queue()

        return undo

    def state_dict(self) -> dict[str, Any]:
        """Return the loss scale and the number of consecutive skipped steps."""
        return {"scaler": self._scaler.state_dict(), "overflows": self._overflows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of an engine of the same precision."""
        self._scaler.load_state_dict(state["scaler"])
        self._overflows = state["overflows"]


def data_parallel(module: nn.Module, **settings: Any) -> nn.Module:
    """Average a module's gradients over the processes, if there are several."""
    if num_processes() == 1 or not any(parameter.requires_grad for parameter in module.parameters()):
        return module
    return nn.parallel.DistributedDataParallel(module, **settings)


def _trainable(module: nn.Module) -> list[bool]:
    return [parameter.requires_grad for parameter in module.parameters()]


def first_nonfinite(tensors: Mapping[str, Tensor]) -> NonFinite | None:
    """Return the first tensor that is not finite, or None."""
    filled = {name: stored_values(tensor) for name, tensor in tensors.items() if tensor.numel()}
    if not filled:
        return None
    # maximum absolute value of each: NaN stays NaN, and squares, which could overflow, are avoided
    greatest = torch.stack(torch._foreach_norm(list(filled.values()), math.inf)).tolist()
    for name, value in zip(filled, greatest, strict=True):
        if not math.isfinite(value):
            return NonFinite(name, value)
    return None


def stored_values(tensor: Tensor) -> Tensor:
    """Detached values of a tensor, or the entries of a sparse one."""
    tensor = tensor.detach()
    return tensor.coalesce().values() if tensor.is_sparse else tensor


def first_nonfinite_weight(networks: Mapping[str, nn.Module], loss: nn.Module) -> NonFinite | None:
    """Return the first non-finite parameter, or buffer that turns every image into NaN.

    A running variance may be infinite (it divides), and so may masks and other buffers.
    """
    modules = nn.ModuleDict({**networks, "loss": loss})
    parameters = {f"weight {name}": parameter for name, parameter in modules.named_parameters()}
    buffers: dict[str, Tensor] = {}
    for name, buffer in nn.ModuleDict(networks).named_buffers():
        if name.endswith("running_mean"):
            buffers[name] = buffer
        elif buffer.is_floating_point():
            buffers[name] = buffer.nan_to_num(math.nan, 0.0, 0.0)
    return first_nonfinite(parameters) or first_nonfinite(buffers)
