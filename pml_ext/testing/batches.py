"""The batches that components are checked with."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from .subject import CLASSES, Subject

# Batches in which different pairs contribute, for losses with a small margin: plain, close together, far apart, mixed.
CLOSE: tuple[dict[str, Any], ...] = (
    {},
    {"common": 8.0},
    {"common": 80.0},
    {"scale": 0.05},
    {"spread": 4.0, "common": 20.0},
    {"scale": 20.0},
    {"spread": 0.1},
)


@dataclasses.dataclass
class Batch:
    """Embeddings ``[B, D]`` of overlapping clusters, and their labels ``[B]``."""

    embeddings: Tensor
    labels: Tensor

    def ordered(self, order: Tensor) -> "Batch":
        """The batch in another order, with the embeddings as a new leaf."""
        embeddings = new_leaf(self.embeddings[order]).requires_grad_(self.embeddings.requires_grad)
        return Batch(embeddings, self.labels[order])


def new_leaf(x: Tensor) -> Tensor:
    """A leaf with gradient."""
    return x.detach().clone().requires_grad_()


def shuffle(length: int, seed: int) -> Tensor:
    """A random permutation, drawn from a separate generator."""
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed))


def batch_of(
    subject: Subject,
    labels: Tensor | tuple[int, int] = (CLASSES, 4),
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    spread: float = 1.2,
    common: float = 0,
    scale: float = 1,
) -> Batch:
    """A batch of a subject's embedding size.

    ``labels`` are ``[B]``, or (number of classes, images per class), limited to the subject's classes. ``spread`` is
    the standard deviation around class centers, where 1 separates centers; a shift of length ``common`` makes angles
    small.
    """
    if isinstance(labels, tuple):
        labels = torch.arange(min(labels[0], subject.classes)).repeat_interleave(labels[1])
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(subject.classes, subject.size, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(labels), subject.size, generator=generator, dtype=torch.float64)
    shift = common / subject.size**0.5 * (-1) ** torch.arange(subject.size)
    points = scale * (centers[labels] + spread * noise + shift)
    return Batch(new_leaf(points.to(dtype)), labels)


def sample_pairs(indices: tuple[Tensor, ...], share: float, generator: torch.Generator) -> tuple[Tensor, ...]:
    """A random subset of parallel index tensors, at least one entry."""
    chosen = torch.randperm(len(indices[0]), generator=generator)[: max(1, int(share * len(indices[0])))].sort().values
    return tuple(index[chosen] for index in indices)
