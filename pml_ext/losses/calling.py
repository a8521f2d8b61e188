"""Calls and capabilities of losses inside wrappers."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..pairwise import check_batch, check_indices_tuple, check_references
from ..registry.components import capabilities
from ..relations import Relation
from ..relations.base import counted


class WrapperCapabilities:
    """Capabilities of a wrapper: ``at_most`` for the class, ``of(self)`` for an instance."""

    def __init__(self, at_most: Iterable[str], of: Callable[[Any], Iterable[str]]) -> None:
        self._at_most = frozenset(at_most)
        self._of = of

    def __get__(self, instance: object | None, owner: type) -> frozenset[str]:
        if instance is None:
            return self._at_most
        return frozenset(self._of(instance)) - ({"relation"} - self._at_most)


class WrapsLoss:
    """Mixin of wrappers around a ``loss``, chosen by capability."""

    loss: torch.nn.Module

    @classmethod
    def check_loss_support(cls, loss_name: str) -> None:
        """Accept any name, unlike PML."""

    @property
    def relation(self) -> Relation | None:
        """The relation of the loss."""
        return relation_of(self.loss)


class PassesPairs(WrapsLoss):
    """Mixin of wrappers whose ``loss`` gets their ``indices_tuple`` unchanged."""

    @property
    def takes_all_pairs(self) -> bool:
        """Whether the loss accepts AllPairsExceptSelf."""
        return takes_all_pairs(self.loss)

    @property
    def counts_repeats(self) -> bool:
        """Whether the loss counts a pair as often as it is listed."""
        return counts_repeats(self.loss)


def check_module(owner: object, name: str, module: Any, example: str) -> None:
    """Raise TypeError unless a setting is a module."""
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"{name} of {type(owner).__name__} must be an object such as {example}; got {module!r}")


def unwrapped(loss: torch.nn.Module) -> torch.nn.Module:
    """The loss inside DistributedDataParallel, if any."""
    if isinstance(loss, torch.nn.parallel.DistributedDataParallel):
        return loss.module  # type: ignore[no-any-return]
    return loss


def takes_all_pairs(loss: torch.nn.Module) -> bool:
    """Whether a loss or miner accepts ``AllPairsExceptSelf`` as ``indices_tuple``."""
    return bool(getattr(unwrapped(loss), "takes_all_pairs", False))


def counts_repeats(loss: torch.nn.Module) -> bool:
    """Whether a loss may count a pair as often as it is listed; True for PML's losses."""
    return bool(getattr(unwrapped(loss), "counts_repeats", True))


def relation_of(module: torch.nn.Module | None) -> Relation | None:
    """The relation of a loss, wrapper or miner, or None."""
    if module is not None:
        return getattr(unwrapped(module), "relation", None)
    return None


def check_call(
    relation: Relation | None, embeddings: Tensor, labels: Any, indices_tuple: Any, ref_emb: Any, ref_labels: Any
) -> tuple[Any, Any]:
    """Check a wrapper's arguments and return both labels."""
    check_indices_tuple(indices_tuple)
    check_batch(embeddings, labels if relation is None else None)
    # a relation checks labels itself; labels of references that are missing are a mistake in any case
    checked_by_relation = relation is not None and ref_emb is not None
    check_references(embeddings, ref_emb, None if checked_by_relation else ref_labels)
    if relation is not None and labels is not None and not isinstance(labels, Tensor):
        labels = relation.tensor(labels, len(embeddings), embeddings.device)
    if relation is not None and ref_labels is not None and not isinstance(ref_labels, Tensor):
        ref_labels = relation.tensor(ref_labels, len(ref_emb), embeddings.device, 1)
    if relation is not None and labels is not None:
        counted(labels, len(embeddings))
    if relation is not None and ref_labels is not None:
        counted(ref_labels, len(ref_emb))
    return labels, ref_labels


def call_loss(
    loss: torch.nn.Module,
    embeddings: Tensor,
    labels: Tensor | None = None,
    indices_tuple: tuple[Tensor, ...] | None = None,
    ref_emb: Tensor | Sequence[Tensor] | None = None,
    ref_labels: Tensor | None = None,
    enqueue_mask: Tensor | None = None,
) -> Any:
    """Call a loss or wrapper with the arguments that it accepts."""
    indices_tuple = check_indices_tuple(indices_tuple)
    arguments: list[Tensor | None] = [embeddings]
    if "labels" in capabilities(unwrapped(loss)):
        arguments = [embeddings, labels]
    named = {"indices_tuple": indices_tuple, "ref_emb": ref_emb, "ref_labels": ref_labels, "enqueue_mask": enqueue_mask}
    given = {name: value for name, value in named.items() if value is not None}
    return loss(*arguments, **given)


def shift_indices(
    indices_tuple: tuple[Tensor, ...], places: Tensor | None = None, first: int = 0
) -> tuple[Tensor, ...]:
    """Add ``first`` to anchors, and replace each partner i by ``places[i]``."""
    anchors = {0} if len(indices_tuple) == 3 else {0, 2}
    shifted = []
    for number, index in enumerate(indices_tuple):
        if places is not None:
            index = index.to(places.device)
        if number in anchors:
            shifted.append(index + first)
        elif places is not None:
            shifted.append(places[index])
        else:
            shifted.append(index)
    return tuple(shifted)
