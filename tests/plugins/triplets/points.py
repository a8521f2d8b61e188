"""Clusters that overlap."""

import torch


def batch(labels, size=4, seed=0, dtype=torch.float64, spread=0.6):
    """Clusters that overlap."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor(labels)
    centers = torch.randn(10, size, generator=generator, dtype=torch.float64)
    x = centers[labels % 10] + spread * torch.randn(len(labels), size, generator=generator, dtype=torch.float64)
    return x.to(dtype).requires_grad_(), labels


LABELS = [0, 1, 0, 2, 1, 0, 2, 1, 0, 3, 1]  # ragged, unsorted, a class of one
