"""Ragged batches, and the density of a class by a loop."""

import torch


def slow_density(points):
    """Eq. 5 for the embeddings of one class."""
    points = [x / x.norm().clamp(min=1e-12) for x in points]
    mean = sum(points) / len(points)
    return sum(((x - mean) ** 2).sum() for x in points) / len(points)


def batch(labels, size=5, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(labels), size, generator=generator, dtype=torch.float64).to(dtype)
    return x.requires_grad_(), torch.tensor(labels)


RAGGED = [3, 0, 3, 0, 0, 1, 3, 3, 0]  # unsorted, with a class of one
