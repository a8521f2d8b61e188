"""The peers of :class:`~pml_ext_cbml.CBMLLoss` in ``pml-ext bench``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pml_ext.plugin import build


def multi_similarity() -> Callable[[Tensor, Tensor], Tensor]:
    """PML's multi-similarity loss with its miner, which finds the same hard pairs."""
    loss, miner = (build("pml/multi-similarity", kind) for kind in ("loss", "miner"))

    def compute(embeddings: Tensor, labels: Tensor) -> Tensor:
        return loss(embeddings, labels, miner(embeddings, labels))  # type: ignore[no-any-return]

    return compute


def loop_over_anchors() -> Callable[[Tensor, Tensor], Tensor]:
    """The value of ``CBMLLoss()``, Eq. (30), one anchor after the other, as the paper's Algorithm 1 walks a batch."""
    return _loop_over_anchors


def _loop_over_anchors(embeddings: Tensor, labels: Tensor) -> Tensor:
    embeddings = torch.nn.functional.normalize(embeddings)
    similarity = embeddings @ embeddings.T
    others = torch.arange(len(labels), device=labels.device)
    losses = []
    for i, row in enumerate(similarity):
        same = labels == labels[i]
        positives, negatives = row[same & (others != i)], row[~same]
        if len(positives) == 0 or len(negatives) == 0:
            continue
        target = 0.2 * positives.mean() + 0.8 * negatives.mean()
        variance = (negatives - target).square().mean()
        hard_positives = positives[positives < negatives.max() + 0.1]
        hard_negatives = negatives[negatives > positives.min() - 0.1]
        positive = (1 + ((0.5 - hard_positives) / 0.5).exp().sum()).log()
        negative = (1 + ((hard_negatives - 1.0) / 0.01).exp().sum()).log()
        losses.append(positive + negative + variance)
    return torch.stack(losses).sum() / len(labels) if losses else 0 * embeddings.sum()
