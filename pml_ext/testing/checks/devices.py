"""That a component runs on another device than the CPU, on a machine that has none, too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...devices import accelerator
from ..calling import all_of, call, close, is_random
from ..probes import gradient
from ..second_device import SecondDevice, in_words
from ..subject import Batch, Subject, batch_of, fresh


def check_devices(subject: Subject) -> str:
    """A component follows its batch to another device, forward and backward, and gives the same there.

    The device is :class:`pml_ext.testing.SecondDevice`, which every machine has, and a GPU where there is one. The text
    of the result says what makes the host wait.
    """
    expected = _everything(subject, subject.make().float(), torch.device("cpu"))
    try:
        with SecondDevice() as second:
            component = second.move(subject.make().float())
            actual = [tensor.cpu() for tensor in _everything(subject, component, second.device)]
            second.clear()
            _once(subject, component, *_batches(subject, second.device)[:1])
    except Exception as error:
        raise AssertionError(f"on another device than the CPU: {type(error).__name__}: {error}") from error
    _compare(actual, expected, "another device")
    if (name := accelerator()) and not is_random(subject):
        there = _everything(subject, subject.make().float().to(name), torch.device(name))
        _compare(there, expected, f"the {name} device")
    waits = in_words(second.waits + second.shapes)
    return f"the host waits for the device: {waits}" if waits else "nothing waits for the device"


def _batches(subject: Subject, device: torch.device) -> list[Batch]:
    actual = []
    for seed in (0, 1):
        batch = batch_of(subject, (4, 4), torch.float32, seed)
        actual.append(Batch(fresh(batch.embeddings.to(device)), batch.labels.to(device)))
    return actual


def _everything(subject: Subject, component: Any, device: torch.device) -> list[Tensor]:
    """Values and gradients of every form of call that the component says it takes."""
    batch, other = _batches(subject, device)
    actual = _once(subject, component, batch)
    if subject.kind == "loss" and {"labels", "indices_tuple"} <= subject.capabilities:
        actual += _once(subject, component, batch, all_of(batch))
    if subject.kind in ("loss", "miner") and {"labels", "references"} <= subject.capabilities:
        references = (other.embeddings.detach(), other.labels)
        actual += _once(subject, component, batch, *[None] * (subject.kind == "loss"), *references)
    return actual


def _once(subject: Subject, component: Any, batch: Batch, *more: Any) -> list[Tensor]:
    torch.manual_seed(0)
    if subject.kind == "miner":
        return list(call(component, batch, *more))
    value = call(component, batch, *more)
    return [value.detach(), gradient(value.sum(), batch.embeddings)]


def _compare(actual: list[Tensor], expected: list[Tensor], where: str) -> None:
    for mine, wanted in zip(actual, expected, strict=True):
        close(mine.cpu(), wanted, f"{where} gives another value or gradient", rtol=1e-3, atol=1e-4)
