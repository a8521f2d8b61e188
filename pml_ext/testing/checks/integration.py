"""Checks of a component in use: on another device, and in PML's trainer with its record-keeping."""

from __future__ import annotations

import functools
import math
import tempfile
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from ... import pml
from ...devices import accelerator
from ...losses import RegularizedLoss
from ..calling import close, forms, gradient, is_random, needs, seeded
from ..second_device import SecondDevice, in_words
from ..subject import Batch, SkipCheck, Subject, applies_to, batch_of, fresh


@applies_to("loss", "miner", "regularizer", "distance", slow=True)
def check_devices(subject: Subject) -> str:
    """Check that a component gives the same values and gradients on another device.

    The devices are the simulated :class:`pml_ext.testing.SecondDevice`, which needs no hardware, and a GPU if there is
    one. The text of the result names the operations that make the host wait.
    """
    expected = _outcomes(subject, subject.make().float(), torch.device("cpu"))
    try:
        with SecondDevice() as second:
            component = second.move(subject.make().float())
            actual = [tensor.cpu() for tensor in _outcomes(subject, component, second.device)]
            second.clear()
            _outcomes(subject, component, second.device, plain=True)
    except Exception as error:
        raise AssertionError(f"on another device than the CPU: {type(error).__name__}: {error}") from error
    devices = {"another device": actual}
    if (name := accelerator()) and not is_random(subject):
        devices[f"the {name} device"] = _outcomes(subject, subject.make().float().to(name), torch.device(name))
    for where, outcomes in devices.items():
        for mine, wanted in zip(outcomes, expected, strict=True):
            close(mine.cpu(), wanted, f"{where} gives a different value or gradient", rtol=1e-3, atol=1e-4)
    return f"the host waits for the device: {in_words(second.waits + second.shapes) or 'nowhere'}"


def _outcomes(subject: Subject, component: Any, device: torch.device, plain: bool = False) -> list[Tensor]:
    """Return values and gradients of each call form that the component declares, or of the ``plain`` form only."""
    batch, other = (
        Batch(fresh(each.embeddings.to(device)), each.labels.to(device))
        for each in (batch_of(subject, (4, 4), torch.float32, seed) for seed in (0, 1))
    )
    outcomes: list[Tensor] = []
    for named in [{}] if plain else forms(subject, batch, Batch(other.embeddings.detach(), other.labels)).values():
        value = seeded(component, batch, **named)
        parts = value if isinstance(value, tuple) else (value,)
        if any(part.device != batch.embeddings.device for part in parts):
            kind = "indices" if subject.kind == "miner" else "value"
            raise AssertionError(f"the {kind} of a batch elsewhere are on the CPU; make all on embeddings.device")
        outcomes += value if subject.kind == "miner" else (value.detach(), gradient(value.sum(), batch.embeddings))
    return outcomes


@applies_to("loss", "miner", "regularizer", slow=True)
def check_pml_trainer(subject: Subject) -> None:
    """Check that a component trains in PML's ``MetricLossOnly`` while a ``HookContainer`` records every iteration.

    record-keeper drops a statistic of several numbers. A parameter, buffer or attribute that it cannot write ends the
    run when the first epoch is saved.
    """
    import tqdm

    try:
        from record_keeper import RecordKeeper, RecordWriter
    except ImportError as error:
        raise SkipCheck(f"PML's records need the package record-keeper: {error}") from None
    if subject.kind == "loss":
        needs(subject, "labels")
    with mock.patch.object(pml.common_functions, "COLLECT_STATS", True):
        component = subject.make().float()
    network, batch = torch.nn.Linear(subject.size, subject.size), batch_of(subject, dtype=torch.float32)
    before = network.weight.detach().clone()
    loss = component if subject.kind == "loss" else pml.ContrastiveLoss()
    with tempfile.TemporaryDirectory() as folder:
        names = pml.common_functions.list_of_recordable_attributes_list_names()
        keeper = RecordKeeper(record_writer=RecordWriter(folder), attributes_to_search_for=names)
        trainer = pml.MetricLossOnly(
            models={"trunk": network, "embedder": torch.nn.Identity()},
            optimizers={"trunk_optimizer": torch.optim.SGD(network.parameters(), lr=0.1)},
            loss_funcs={
                "metric_loss": RegularizedLoss(loss, component, 0.5) if subject.kind == "regularizer" else loss
            },
            mining_funcs={"tuple_miner": component} if subject.kind == "miner" else {},
            dataset=torch.utils.data.TensorDataset(batch.embeddings.detach(), batch.labels),
            dataloader_num_workers=0,
            batch_size=len(batch.labels),
            iterations_per_epoch=2,
            end_of_iteration_hook=pml.HookContainer(keeper, log_freq=1).end_of_iteration_hook,
        )
        try:
            with mock.patch("tqdm.tqdm", functools.partial(tqdm.tqdm, disable=True)):
                trainer.train(num_epochs=1)
            keeper.save_records()
        except Exception as error:
            raise AssertionError(
                f"PML's trainer, with its HookContainer, stops: {type(error).__name__}: {error}. The hooks write "
                "parameters, buffers, dictionaries and recorded attributes of a module: none may be empty"
            ) from error
    if subject.kind == "loss" and torch.equal(network.weight, before):
        raise AssertionError("two iterations of PML's MetricLossOnly left the network unchanged")
    for module in component.modules():
        for name in (*getattr(module, "_record_these", ()), *getattr(module, "_record_these_stats", ())):
            value = getattr(module, name)
            if isinstance(value, Tensor) and value.numel() == 1:
                value = value.item()
            if not isinstance(value, (int, float, str, type(None))):
                raise AssertionError(f"the recorded attribute {name} is not a number, so record-keeper drops it")
            if isinstance(value, float) and not math.isfinite(value):
                raise AssertionError(f"the recorded attribute {name} is {value} after an ordinary batch")
