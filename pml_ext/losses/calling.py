"""Calls and capabilities of losses, for what wraps them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ..components import capabilities


class WrapperCapabilities:
    """The ``capabilities`` of a class that wraps losses, where an instance's follow from what it wraps.

    Args:
        at_most: what an instance can have; the capabilities of the class itself.
        of: gives an instance's.
    """

    def __init__(self, at_most: Iterable[str], of: Callable[[Any], Iterable[str]]) -> None:
        self._at_most, self._of = frozenset(at_most), of

    def __get__(self, instance: object | None, owner: type) -> frozenset[str]:
        return self._at_most if instance is None else frozenset(self._of(instance))


def inside(loss: torch.nn.Module) -> torch.nn.Module:
    """Return the loss inside DistributedDataParallel, or the loss itself: the one whose capabilities count."""
    return loss.module if isinstance(loss, torch.nn.parallel.DistributedDataParallel) else loss


def takes_all_pairs(loss: torch.nn.Module) -> bool:
    """Return whether a loss takes :class:`pml_ext.losses.pairs.AllButItself` for an ``indices_tuple``.

    Pair losses of ours and wrappers around them do; PML's losses want lists.
    """
    return bool(getattr(inside(loss), "takes_all_pairs", False))


def call_loss(
    loss: torch.nn.Module,
    embeddings: Tensor,
    labels: Tensor | None = None,
    indices_tuple: tuple[Tensor, ...] | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    enqueue_mask: Tensor | None = None,
) -> Any:
    """Call a loss, or a wrapper around one, with labels where it has them and the other arguments where they are given.

    Args:
        loss: a loss of PML or of ours, or a wrapper around one, DistributedDataParallel too.
        embeddings: ``[B, D]``.
        labels: ``[B]``, integers, or None.
        indices_tuple: what a miner found, or None.
        ref_emb: ``[R, D]``, or None.
        ref_labels: ``[R]``, or None.
        enqueue_mask: ``[B]``, boolean, or None; for :class:`pml_ext.CrossBatchMemory` alone.
    """
    arguments = [embeddings, labels] if "labels" in capabilities(inside(loss)) else [embeddings]
    names = ("indices_tuple", "ref_emb", "ref_labels", "enqueue_mask")
    optional = zip(names, (indices_tuple, ref_emb, ref_labels, enqueue_mask), strict=True)
    return loss(*arguments, **{name: value for name, value in optional if value is not None})
