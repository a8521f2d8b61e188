"""Points around the centers of classes."""

import torch


def data(count=60, classes=7, size=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    return torch.randn(count, size, generator=generator) + 0.8 * labels[:, None], labels
