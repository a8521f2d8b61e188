"""Any loss on two views of each image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import pml
from ..components import capabilities
from ..pairwise import check_batch
from ..settings import check_flag
from .calling import call_loss, inside


class SelfSupervisedLoss(pml.SelfSupervisedLoss):  # type: ignore[misc]
    r"""A loss of two views of each image, for any loss that takes labels: image and view number i share label i.

    PML's has the same values, but refuses our losses by name; this one asks what a loss says it takes (see
    :func:`pml_ext.components.capabilities`), so that registered losses and wrappers fit, such as ``CBMLLoss()``.

    Args:
        loss: the loss; it has ``"labels"``, and ``"references"`` where ``symmetric`` is False, and no memory, number of
            classes or processes.
        symmetric: whether the views are anchors too, as one batch of twice the size; else they are references.
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
        """Accept any name: capabilities decide, in the constructor."""

    def forward(self, embeddings: Tensor, ref_emb: Tensor) -> Any:
        """Return the loss of images ``[B, D]`` and their views, ``ref_emb``, row by row."""
        check_batch(embeddings)
        check_batch(ref_emb, names=("ref_emb", ""))
        if embeddings.shape != ref_emb.shape:
            raise ValueError(
                f"SelfSupervisedLoss wants one view per image, in its row; got {tuple(embeddings.shape)} "
                f"embeddings and {tuple(ref_emb.shape)} ref_emb"
            )
        labels = torch.arange(len(embeddings), device=embeddings.device)
        if self.symmetric:
            return call_loss(self.loss, torch.cat([embeddings, ref_emb]), torch.cat([labels, labels]))
        return call_loss(self.loss, embeddings, labels, ref_emb=ref_emb, ref_labels=labels.clone())

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"symmetric={self.symmetric}"


def _no_views(loss: torch.nn.Module, symmetric: bool) -> str:
    """Return the reason why a loss does not fit into SelfSupervisedLoss, or nothing."""
    name, has = type(inside(loss)).__name__, capabilities(inside(loss))
    if "labels" not in has:
        return f"{name} takes no labels"
    for module in loss.modules():
        part = type(module).__name__
        if getattr(module, "joins_processes", False):
            return f"{part} joins the batches of processes; it goes around: {part}(SelfSupervisedLoss(loss))"
        if "state" in capabilities(module):
            return f"{part} compares with past batches, where other images have the same labels"
        if hasattr(module, "num_classes"):
            return f"{part} has a fixed number of classes; take a loss that compares embeddings with each other"
    # PML's list has NCALoss too, which takes references, if only other ones than the batch itself.
    fits = symmetric or "references" in has or name in pml.SelfSupervisedLoss.supported_losses()
    return "" if fits else f"{name} takes no references; type symmetric=True"
