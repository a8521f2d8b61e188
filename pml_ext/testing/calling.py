"""How checks call a component, and compare what it gives."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .. import registry
from .subject import Batch, SkipCheck, Subject, batch_of


def needs(subject: Subject, *capabilities: str) -> None:
    """Skips a check of what a component does not say it can do."""
    if missing := set(capabilities) - subject.capabilities:
        raise SkipCheck(f"it does not say that it has {' and '.join(sorted(missing))}")


def takes_labels(component: Any) -> bool:
    """Whether labels are passed to it: PML's regularizers take none, and all of its losses but a few do."""
    kind = registry.kind_of(type(component))
    if kind in ("loss", "miner"):
        return kind == "miner" or "labels" in registry.capabilities(component)
    return "labels" in getattr(component, "capabilities", ())


def call(component: Any, batch: Batch, *more: Any, **named: Any) -> Any:
    """The value of a loss or a regularizer, the matrix of a distance, what a miner finds."""
    if more or takes_labels(component):
        return component(batch.embeddings, batch.labels, *more, **named)
    return component(batch.embeddings, **named)


def compute(component: Any, batch: Batch) -> dict[str, Any]:
    """The unreduced values of a loss or a regularizer.

    Raises:
        SkipCheck: it has none, since it wraps what has.
    """
    if not hasattr(component, "compute_loss"):
        raise SkipCheck("a wrapper: what it wraps is checked by itself")
    labels = batch.labels if takes_labels(component) else None
    if registry.kind_of(type(component)) == "regularizer":
        return component.compute_loss(batch.embeddings, *[] if labels is None else [labels])  # type: ignore[no-any-return]
    return component.compute_loss(batch.embeddings, labels, None, batch.embeddings, labels)  # type: ignore[no-any-return]


def all_of(batch: Batch, triplets: bool = False) -> tuple[Tensor, ...]:
    """All pairs, or all triplets, of a batch, as a miner gives them."""
    same = batch.labels[:, None] == batch.labels
    different = ~same
    same.fill_diagonal_(False)
    if triplets:
        return tuple(torch.where(same[:, :, None] & different[:, None]))
    return (*torch.where(same), *torch.where(different))


def some_of(indices: tuple[Tensor, ...], share: float, generator: torch.Generator) -> tuple[Tensor, ...]:
    """A random part of index tensors that belong together, at least one entry."""
    kept = torch.randperm(len(indices[0]), generator=generator)[: max(1, int(share * len(indices[0])))].sort().values
    return tuple(index[kept] for index in indices)


def close(actual: Tensor, expected: Tensor, text: str, rtol: float = 1e-6, atol: float = 1e-8) -> None:
    """Fails, with a text, where two tensors differ."""
    same = actual.shape == expected.shape
    # that neither is NaN is what other checks say
    if not same or not torch.allclose(actual.double(), expected.double(), rtol=rtol, atol=atol, equal_nan=True):
        raise AssertionError(
            f"{text}: {actual.detach().flatten()[:4].tolist()} instead of {expected.detach().flatten()[:4].tolist()}"
        )


def is_random(subject: Subject) -> bool:
    """Whether two seeds give two values."""
    if "random" not in subject.cache:
        batch, values = batch_of(subject), []
        for seed in (0, 1):
            torch.manual_seed(seed)
            values.append(call(subject.make(), batch))
        subject.cache["random"] = not equal(*values)
    return bool(subject.cache["random"])


def has_state(subject: Subject) -> bool:
    """Whether an instance's second call gives something else than its first."""
    batch, component = batch_of(subject), subject.make()
    values = []
    for _ in range(2):
        torch.manual_seed(0)
        values.append(call(component, batch))
    return not equal(*values)


def equal(one: Any, other: Any) -> bool:
    """Whether two values, or what two miners gave, are the same."""
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(torch.equal, one, other))
    return torch.equal(one, other) or bool(one.isnan().all() and other.isnan().all())


@contextlib.contextmanager
def quiet(logger: str) -> Iterator[None]:
    """Without warnings, and without what a logger says below an error."""
    log = logging.getLogger(logger)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
