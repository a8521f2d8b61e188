"""A component in use: on another device, in PML's trainer and its records, in a memory, in several processes."""

from __future__ import annotations

import functools
import math
import pickle
import tempfile
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from ... import pml
from ...devices import accelerator
from ...losses import CrossBatchMemory, RegularizedLoss
from ..batches import Batch, all_pairs, batch_of, fresh, shuffle
from ..calling import close, gradient, is_random, needs, quiet, seeded
from ..processes import in_two_processes
from ..second_device import SecondDevice, in_words
from ..subject import SkipCheck, Subject
from .registered import applies_to


@applies_to("loss", "miner", "regularizer")
def check_devices(subject: Subject) -> str:
    """A component follows its batch to another device, forward and backward, and gives the same there.

    The device is :class:`pml_ext.testing.SecondDevice`, which every machine has, and a GPU where there is one. The text
    of the result says what makes the host wait.
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
            close(mine.cpu(), wanted, f"{where} gives another value or gradient", rtol=1e-3, atol=1e-4)
    waits = in_words(second.waits + second.shapes)
    return f"the host waits for the device: {waits}" if waits else "nothing waits for the device"


def _outcomes(subject: Subject, component: Any, device: torch.device, plain: bool = False) -> list[Tensor]:
    """Values and gradients of every form of call that the component says it takes; of the plain one alone."""
    batch, other = (
        Batch(fresh(each.embeddings.to(device)), each.labels.to(device))
        for each in (batch_of(subject, (4, 4), torch.float32, seed) for seed in (0, 1))
    )
    forms: list[tuple[Any, ...]] = [()]
    if subject.kind == "loss" and {"labels", "indices_tuple"} <= subject.capabilities and not plain:
        forms.append((all_pairs(batch),))
    if subject.kind in ("loss", "miner") and {"labels", "references"} <= subject.capabilities and not plain:
        forms.append((*[None] * (subject.kind == "loss"), other.embeddings.detach(), other.labels))
    outcomes: list[Tensor] = []
    for form in forms:
        value = seeded(component, batch, *form)
        outcomes += value if subject.kind == "miner" else (value.detach(), gradient(value.sum(), batch.embeddings))
    return outcomes


@applies_to("loss")
def check_pml_trainer(subject: Subject) -> None:
    """It trains in PML's ``MetricLossOnly``."""
    needs(subject, "labels")
    network = torch.nn.Linear(subject.size, subject.size)
    before = network.weight.detach().clone()
    _train(subject, subject.make().float(), network)
    if torch.equal(network.weight, before):
        raise AssertionError("an iteration of PML's MetricLossOnly has changed nothing in the network")


def _train(
    subject: Subject,
    component: Any,
    network: torch.nn.Module,
    hook: Callable[[Any], None] | None = None,
    iterations: int = 1,
) -> None:
    """Some iterations of PML's trainer, with a component in its place, without its progress bar."""
    import tqdm

    batch = batch_of(subject, dtype=torch.float32)
    loss = component if subject.kind == "loss" else pml.ContrastiveLoss()
    if subject.kind == "regularizer":
        loss = RegularizedLoss(loss, component, weight=0.5)
    with quiet("PML"), mock.patch("tqdm.tqdm", functools.partial(tqdm.tqdm, disable=True)):
        pml.MetricLossOnly(
            models={"trunk": network, "embedder": torch.nn.Identity()},
            optimizers={"trunk_optimizer": torch.optim.SGD(network.parameters(), lr=0.1)},
            loss_funcs={"metric_loss": loss},
            mining_funcs={"tuple_miner": component} if subject.kind == "miner" else {},
            dataset=torch.utils.data.TensorDataset(batch.embeddings.detach(), batch.labels),
            dataloader_num_workers=0,
            batch_size=len(batch.labels),
            iterations_per_epoch=iterations,
            end_of_iteration_hook=hook,
        ).train(num_epochs=1)


@applies_to("loss", "miner", "regularizer")
def check_hook_container(subject: Subject) -> None:
    """PML's ``HookContainer`` writes a component's records in every iteration: its attributes, parameters and buffers.

    A value that it cannot write ends a run when the first epoch is saved; a statistic of several numbers it drops.
    """
    try:
        from record_keeper import RecordKeeper, RecordWriter
    except ImportError as error:
        raise SkipCheck(f"PML's records need the package record-keeper: {error}") from None

    if subject.kind == "loss":
        needs(subject, "labels")
    with mock.patch.object(pml.common_functions, "COLLECT_STATS", True):
        component = subject.make().float()
    with tempfile.TemporaryDirectory() as folder:
        keeper = RecordKeeper(
            record_writer=RecordWriter(folder),
            attributes_to_search_for=pml.common_functions.list_of_recordable_attributes_list_names(),
        )
        hook = pml.HookContainer(keeper, log_freq=1).end_of_iteration_hook
        try:
            _train(subject, component, torch.nn.Linear(subject.size, subject.size), hook, iterations=2)
            keeper.save_records()
        except Exception as error:
            raise AssertionError(
                f"PML's HookContainer ends the run: {type(error).__name__}: {error}. It writes parameters, buffers, "
                "dictionaries and recorded attributes of a module: none may be empty, and names are words"
            ) from error
    for module in component.modules():
        for name in (*getattr(module, "_record_these", ()), *getattr(module, "_record_these_stats", ())):
            value = getattr(module, name)
            if isinstance(value, Tensor) and value.numel() == 1:
                value = value.item()
            if not isinstance(value, (int, float, str, type(None))):
                raise AssertionError(
                    f"the recorded attribute {name} is {type(value).__name__} of several values, which record-keeper "
                    "drops; record one number"
                )
            if isinstance(value, float) and not math.isfinite(value):
                raise AssertionError(f"the recorded attribute {name} is {value} after a batch like any other")


@applies_to("loss")
def check_cross_batch_memory(subject: Subject) -> None:
    """In a memory exactly as large as the batch it is the plain loss."""
    needs(subject, "labels", "indices_tuple", "references")
    batch = batch_of(subject)
    twin = batch.ordered(torch.arange(len(batch.labels)))
    expected = seeded(subject.make(), batch)
    torch.manual_seed(0)
    actual = CrossBatchMemory(subject.make(), subject.size, len(batch.labels))(twin.embeddings, twin.labels)
    if is_random(subject):
        return
    where = "in a memory as large as the batch it"
    close(actual, expected, f"{where} is another loss", rtol=1e-7)
    close(gradient(actual, twin.embeddings), gradient(expected, batch.embeddings), f"{where} has another gradient")


@applies_to("loss")
def check_two_processes(subject: Subject) -> None:
    """Two processes with half of the batch each give the value and the gradients of one."""
    needs(subject, "labels")
    batch, loss = batch_of(subject), subject.make()
    batch = batch.ordered(shuffle(len(batch.labels), 4))
    try:
        answers = in_two_processes(loss, batch.embeddings, batch.labels)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise SkipCheck(f"it cannot be sent to another process: {error}") from None
    expected = seeded(loss, batch)
    expected.backward()
    for answer in answers:
        if "error" in answer:
            if answer["error"].startswith(("ModuleNotFoundError", "AttributeError")):
                raise SkipCheck(f"another process cannot import it: {answer['error']}")
            raise AssertionError(f"in two processes: {answer['error']}")
        close(answer["value"], expected, "two processes give another loss than one on the joined batch", rtol=1e-9)
        for mine, whole in zip(answer["parameters"], loss.parameters(), strict=True):
            if mine is not None and whole.grad is not None:
                close(mine, whole.grad, "two processes give its parameters another gradient than one")
    joined = torch.cat([answer["embeddings"] for answer in answers]) / 2
    assert batch.embeddings.grad is not None
    close(joined, batch.embeddings.grad, "two processes give the embeddings another gradient than one")
