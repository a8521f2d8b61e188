"""What wraps losses, and how a wrapper calls one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from pytorch_metric_learning import losses as pml_losses
from torch import Tensor

from . import registry
from .pairwise import check_batch, check_indices_tuple, check_references, to_full_precision
from .settings import check_flag


def inside(loss: torch.nn.Module) -> torch.nn.Module:
    """The loss inside DistributedDataParallel, or the loss itself: whose capabilities count."""
    return loss.module if isinstance(loss, torch.nn.parallel.DistributedDataParallel) else loss


def call_loss(
    loss: torch.nn.Module,
    embeddings: Tensor,
    labels: Tensor | None = None,
    indices_tuple: tuple[Tensor, ...] | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    enqueue_mask: Tensor | None = None,
) -> Any:
    """Calls a loss with what it takes: labels where it has them, everything else where it was given.

    So PML's wrappers fit too, whose ``forward`` have fewer arguments.

    Args:
        loss: a loss of PML or of ours, or a wrapper around one, DistributedDataParallel too.
        embeddings: ``[B, D]``.
        labels: ``[B]``, integers, or None.
        indices_tuple: what a miner found, or None.
        ref_emb: ``[R, D]``, or None.
        ref_labels: ``[R]``, or None.
        enqueue_mask: ``[B]``, boolean, or None; for :class:`pml_ext.CrossBatchMemory` alone.
    """
    arguments = [embeddings, labels] if "labels" in registry.capabilities(inside(loss)) else [embeddings]
    optional = {"indices_tuple": indices_tuple, "ref_emb": ref_emb, "ref_labels": ref_labels,
                "enqueue_mask": enqueue_mask}  # fmt: skip
    return loss(*arguments, **{name: value for name, value in optional.items() if value is not None})


class _Capabilities:
    """What all the losses have; of the class itself, what they can have."""

    def __get__(self, instance: MultipleLosses | None, owner: type) -> frozenset[str]:
        if instance is None:
            return frozenset({"labels", "indices_tuple", "references"})
        each = [registry.capabilities(loss) for _, loss in instance.items()]
        return frozenset.intersection(*each) | {"labels"}


class MultipleLosses(pml_losses.MultipleLosses):  # type: ignore[misc]
    r"""PML's weighted sum of losses, with references, and never summed in half precision.

    .. math:: \mathcal{L} = \sum_i w_i \, \mathcal{L}_i

    It nests, and goes into :class:`pml_ext.CrossBatchMemory`, :class:`pml_ext.DistributedLoss` and
    :class:`pml_ext.RegularizedLoss`. Take a dictionary where PML's HookContainer records it: record-keeper names a
    table after each loss, and the number that a loss of a list has is no name of a table.

    Args:
        losses: a list or a dictionary of losses, PML's or registered ones; at least one.
        miners: a miner, or None, for each loss of a list; for some of the keys of a dictionary.
        weights: a number for each loss; 1 by default, 0 is allowed.

    Raises:
        ValueError: no loss, or weights or miners that do not belong to the losses.

    Example:
        >>> from pytorch_metric_learning.losses import ContrastiveLoss, TripletMarginLoss
        >>> loss = MultipleLosses([ContrastiveLoss(), TripletMarginLoss()], weights=[1, 0.5])
        >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1]), ref_emb=torch.eye(4), ref_labels=torch.arange(4)).shape
        torch.Size([])
    """

    capabilities = _Capabilities()

    def __init__(
        self,
        losses: Sequence[torch.nn.Module] | Mapping[str, torch.nn.Module],
        miners: Sequence[Any] | Mapping[str, Any] | None = None,
        weights: Sequence[float] | Mapping[str, float] | None = None,
    ) -> None:
        if not losses:
            raise ValueError("MultipleLosses needs at least one loss; got none")
        for name, given, whole in (("miners", miners, False), ("weights", weights, True)):
            if given is not None:
                _check_belongs(name, given, losses, whole)
        named = isinstance(losses, Mapping)
        super().__init__(
            dict(losses) if isinstance(losses, Mapping) else list(losses),
            miners if miners is None else _like(miners, named),
            weights if weights is None else _like(weights, named),
        )

    def items(self) -> Iterator[tuple[Any, torch.nn.Module]]:
        """The losses by name or number."""
        yield from self.losses.items() if self.is_dict else enumerate(self.losses)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """The weighted sum; arguments as of PML's losses.

        Raises:
            ValueError: an ``indices_tuple`` although the losses have miners of their own, or wrong shapes.
            TypeError: an argument is no tensor, or of a wrong kind.
        """
        check_batch(embeddings, labels)
        check_indices_tuple(indices_tuple)
        check_references(embeddings, ref_emb, ref_labels)
        if self.miners and indices_tuple is not None:
            raise ValueError("MultipleLosses has miners of its own; leave out either them or the indices_tuple")
        total = torch.zeros((), device=embeddings.device)
        for key, loss in self.items():
            mined = self._mined(key, embeddings, labels, ref_emb, ref_labels) if self.miners else indices_tuple
            value = call_loss(loss, embeddings, labels, mined, ref_emb, ref_labels)
            total = total + self.weights[key] * to_full_precision(value)
        return total

    def _mined(self, key: Any, *batch: Tensor | None) -> tuple[Tensor, ...] | None:
        miner = self.miners[key] if not self.is_dict or key in self.miners else None
        return None if miner is None else miner(*batch)


class SelfSupervisedLoss(pml_losses.SelfSupervisedLoss):  # type: ignore[misc]
    r"""A loss of two views of each image, for any loss that takes labels: image and view number i share label i.

    PML's has the same values, but asks for the class's name; this one asks what a loss says it takes (see
    :func:`pml_ext.registry.capabilities`), so that registered losses and wrappers fit, such as ``CBMLLoss()``.

    Args:
        loss: the loss; it has ``"labels"``, and ``"references"`` where ``symmetric`` is False.
        symmetric: whether the views are anchors too, as one batch of twice the size; else they are references.

    Raises:
        TypeError: the loss is no module, or does not fit: it takes no labels or no references, has a number of classes
            or a memory, where the number of an image in its batch means nothing, or joins processes itself.

    Example:
        >>> from pytorch_metric_learning.losses import NTXentLoss
        >>> SelfSupervisedLoss(NTXentLoss())(torch.randn(8, 4), torch.randn(8, 4)).shape
        torch.Size([])
    """

    capabilities = frozenset({"references"})

    def __init__(self, loss: torch.nn.Module, symmetric: bool = True) -> None:
        if not isinstance(loss, torch.nn.Module):
            raise TypeError(f"loss of SelfSupervisedLoss must be an object such as NTXentLoss(); got {loss!r}")
        check_flag(self, "symmetric", symmetric)
        if reason := _no_views(loss, symmetric):
            raise TypeError(f"SelfSupervisedLoss labels images by their place in the batch, and {reason}")
        super().__init__(loss, symmetric)

    @classmethod
    def check_loss_support(cls, loss_name: str) -> None:
        """Nothing: what is asked of a loss are capabilities, not its name."""

    def forward(self, embeddings: Tensor, ref_emb: Tensor) -> Any:
        """The loss of images and their views.

        Args:
            embeddings: the images', ``[B, D]``, any floating point dtype.
            ref_emb: the views', ``[B, D]``; row i is of the image of row i.

        Raises:
            TypeError: an argument is no tensor, or not floating point.
            ValueError: shapes that differ, or that are not of two dimensions.
        """
        check_batch(embeddings)
        check_batch(ref_emb, names=("ref_emb", ""))
        if embeddings.shape != ref_emb.shape:
            raise ValueError(f"SelfSupervisedLoss wants one view per image, in its row; got {tuple(embeddings.shape)} "
                             f"embeddings and {tuple(ref_emb.shape)} ref_emb")  # fmt: skip
        labels = torch.arange(len(embeddings), device=embeddings.device)
        if self.symmetric:
            return call_loss(self.loss, torch.cat([embeddings, ref_emb]), torch.cat([labels, labels]))
        return call_loss(self.loss, embeddings, labels, ref_emb=ref_emb, ref_labels=labels.clone())

    def extra_repr(self) -> str:
        """The settings."""
        return f"symmetric={self.symmetric}"


def _no_views(loss: torch.nn.Module, symmetric: bool) -> str:
    """Why a loss does not fit into SelfSupervisedLoss; nothing if it does."""
    name, has = type(inside(loss)).__name__, registry.capabilities(inside(loss))
    if "labels" not in has:
        call = (
            "; it compares embeddings with ref_emb itself: call it without this wrapper" if "references" in has else ""
        )
        return f"{name} takes no labels{call}"
    for module in loss.modules():
        part = type(module).__name__
        if getattr(module, "joins_processes", False):
            return f"{part} joins the batches of processes; it goes around: {part}(SelfSupervisedLoss(loss))"
        if "state" in registry.capabilities(module):
            return f"{part} compares with past batches, where other images have the same labels"
        if hasattr(module, "num_classes"):
            return f"{part} has a fixed number of classes; take a loss that compares embeddings with each other"
    # PML's list has NCALoss too, which takes references, if only other ones than the batch itself.
    if not (symmetric or "references" in has or name in pml_losses.SelfSupervisedLoss.supported_losses()):
        return f"{name} takes no references; type symmetric=True"
    return ""


def _check_belongs(name: str, given: Any, losses: Any, whole: bool) -> None:
    if isinstance(losses, Mapping):
        fits = isinstance(given, Mapping) and (set(given) == set(losses) if whole else set(given) <= set(losses))
        wanted = f"a dictionary with {'the' if whole else 'some of the'} keys {sorted(losses)}"
    else:
        fits = isinstance(given, (list, tuple)) and len(given) == len(losses)
        wanted = f"a list of length {len(losses)}, one for each loss"
    if not fits:
        raise ValueError(f"{name} of MultipleLosses must be {wanted}; got {given!r}")


def _like(values: Any, named: bool) -> Any:
    return dict(values) if named else list(values)
