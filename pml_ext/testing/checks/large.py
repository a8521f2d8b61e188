"""A component in large batches: tiles of anchors, and a network in micro-batches."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from ...errors import TrainingWarning
from ...losses import CachedGradients
from ..calling import call, close, is_random, needs
from ..subject import Batch, SkipCheck, Subject, batch_of, fresh, labels_of

MICRO_BATCH = 5  # which does not divide the batch


def check_tiles(subject: Subject) -> None:
    """In tiles of anchors, of whatever size, it gives what it gives of the whole matrix: value, gradient, indices.

    A class that says ``tiles = "rows"`` promises that what an anchor gives follows from its own row.
    """
    if getattr(subject.make(), "tile_size", 0) == 0 or getattr(subject.make(), "tiles", "rows") is None:
        raise SkipCheck("it has no tiles: no attribute tile_size")
    ragged = torch.repeat_interleave(torch.arange(subject.classes), torch.arange(subject.classes) % 4 + 1)
    for labels in (labels_of((subject.classes, 4)), ragged):
        batch = batch_of(subject, labels)
        expected = _in_tiles(subject, batch, len(labels))
        for size in (1, 3, 7):
            actual, text = _in_tiles(subject, batch, size), f"in tiles of {size} it"
            for one, other, what in zip(actual, expected, ("gives other values", "has another gradient"), strict=False):
                close(
                    one,
                    other,
                    f"{text} {what}; an equation that looks at other anchors' rows has tiles = None",
                    rtol=1e-6,
                    atol=1e-9,
                )


def _in_tiles(subject: Subject, batch: Batch, size: int) -> list[Tensor]:
    """Value and gradient; or the indices of a miner, one tensor of each."""
    component = subject.make().double()
    component.tile_size = size
    if subject.kind == "miner":
        return [torch.cat([index.double() for index in call(component, batch)])]
    batch = Batch(fresh(batch.embeddings), batch.labels)
    torch.manual_seed(0)
    value = call(component, batch)
    (gradient,) = torch.autograd.grad(value, batch.embeddings)
    return [value.detach(), gradient]


def check_gradient_caching(subject: Subject) -> None:
    """A network in micro-batches (``CachedGradients``) gets the gradients of the whole batch."""
    needs(subject, "labels")
    if is_random(subject):
        raise SkipCheck("its values are random")
    batch = batch_of(subject)
    inputs, labels = batch.embeddings, batch.labels
    torch.manual_seed(0)
    network = torch.nn.Linear(subject.size, subject.size).double()
    loss = subject.make().double()
    call(loss, Batch(network(inputs), labels)).backward()
    modules = {"network": network, "loss": loss}
    expected = {
        f"{module}.{name}": parameter.grad
        for module, owner in modules.items()
        for name, parameter in owner.named_parameters()
    }
    network.zero_grad(set_to_none=True)
    modules["loss"] = loss = subject.make().double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        CachedGradients(network, loss, MICRO_BATCH)(inputs.detach(), labels).backward()
    for module, owner in modules.items():
        for name, parameter in owner.named_parameters():
            wanted = expected[f"{module}.{name}"]
            if wanted is not None and parameter.grad is not None:
                close(
                    parameter.grad,
                    wanted,
                    f"in micro-batches {module}.{name} gets another gradient",
                    rtol=1e-6,
                    atol=1e-9,
                )
            elif (wanted is None) != (parameter.grad is None):
                raise AssertionError(f"{module}.{name} gets a gradient in the whole batch alone, or in micro-batches")
