"""A component where it is used: PML's trainer and its records, our memory, several processes."""

from __future__ import annotations

import contextlib
import functools
import math
import pickle
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ... import pml
from ...losses import CrossBatchMemory, RegularizedLoss
from ...pml import ContrastiveLoss
from ..calling import close, is_random, needs, quiet
from ..probes import gradient
from ..processes import in_two_processes
from ..subject import SkipCheck, Subject, batch_of


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
    """Some iterations of PML's trainer, with a component in its place."""
    batch = batch_of(subject, dtype=torch.float32)
    mines, loss = subject.kind == "miner", component if subject.kind == "loss" else ContrastiveLoss()
    if subject.kind == "regularizer":
        loss = RegularizedLoss(loss, component, weight=0.5)
    with quiet("PML"), _no_bar():
        pml.MetricLossOnly(
            models={"trunk": network, "embedder": torch.nn.Identity()},
            optimizers={"trunk_optimizer": torch.optim.SGD(network.parameters(), lr=0.1)},
            loss_funcs={"metric_loss": loss},
            mining_funcs={"tuple_miner": component} if mines else {},
            dataset=torch.utils.data.TensorDataset(batch.embeddings.detach(), batch.labels),
            dataloader_num_workers=0,
            batch_size=len(batch.labels),
            iterations_per_epoch=iterations,
            end_of_iteration_hook=hook,
        ).train(num_epochs=1)


@contextlib.contextmanager
def _no_bar() -> Iterator[None]:
    """Without the bar that PML draws."""
    import tqdm

    drawing = tqdm.tqdm
    tqdm.tqdm = functools.partial(drawing, disable=True)
    try:
        yield
    finally:
        tqdm.tqdm = drawing


def check_hook_container(subject: Subject) -> None:
    """PML's ``HookContainer`` writes a component's records in every iteration: its attributes, parameters and buffers.

    What it cannot write ends a run when the first epoch is saved; a statistic that is no single number it drops.
    """
    try:
        from record_keeper import RecordKeeper, RecordWriter
    except ImportError as error:
        raise SkipCheck(f"PML's records need the package record-keeper: {error}") from None

    if subject.kind == "loss":
        needs(subject, "labels")
    component = _with_statistics(subject).float()
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
                f"PML's HookContainer ends the run: {type(error).__name__}: {error}. It writes "
                "parameters, buffers, dictionaries and recorded attributes of a module: none may be "
                "empty, and names are words"
            ) from error
    for module in component.modules():
        for name in (*getattr(module, "_record_these", ()), *getattr(module, "_record_these_stats", ())):
            value = getattr(module, name)
            if isinstance(value, Tensor) and value.numel() == 1:
                value = value.item()
            if not isinstance(value, (int, float, str, type(None))):
                raise AssertionError(
                    f"the recorded attribute {name} is {type(value).__name__} of several values, "
                    "which record-keeper drops; record one number"
                )
            if isinstance(value, float) and not math.isfinite(value):
                raise AssertionError(f"the recorded attribute {name} is {value} after a batch like any other")


def _with_statistics(subject: Subject) -> Any:
    """An instance that collects statistics, as PML's switch for all of them makes it."""
    before = pml.common_functions.COLLECT_STATS
    pml.common_functions.COLLECT_STATS = True
    try:
        return subject.make()
    finally:
        pml.common_functions.COLLECT_STATS = before


def check_cross_batch_memory(subject: Subject) -> None:
    """In a memory exactly as large as the batch it is the plain loss."""
    needs(subject, "labels", "indices_tuple", "references")
    batch = batch_of(subject)
    twin = batch.ordered(torch.arange(len(batch.labels)))
    torch.manual_seed(0)
    expected = subject.make().double()(batch.embeddings, batch.labels)
    torch.manual_seed(0)
    actual = CrossBatchMemory(subject.make().double(), subject.size, len(batch.labels))(twin.embeddings, twin.labels)
    if is_random(subject):
        return
    close(actual, expected, "in a memory as large as the batch it is another loss", rtol=1e-7)
    close(
        gradient(actual, twin.embeddings),
        gradient(expected, batch.embeddings),
        "in a memory as large as the batch it has another gradient",
    )


def check_two_processes(subject: Subject) -> None:
    """Two processes with half of the batch each give the value and the gradients of one."""
    needs(subject, "labels")
    batch, loss = batch_of(subject), subject.make().double()
    order = torch.randperm(len(batch.labels), generator=torch.Generator().manual_seed(4))
    batch = batch.ordered(order)
    try:
        answers = in_two_processes(loss, batch.embeddings, batch.labels)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise SkipCheck(f"it cannot be sent to another process: {error}") from None
    torch.manual_seed(0)
    expected = loss(batch.embeddings, batch.labels)
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
