"""Points around the centers of classes, and their neighbors by a loop."""

import torch


def data(count=60, classes=7, size=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    return torch.randn(count, size, generator=generator) + 0.8 * labels[:, None], labels


def ranked(query, reference, itself):
    """Indices of the references from near to far, the query left out, by a loop."""
    rows = []
    for i, point in enumerate(query.double()):
        distances = [(float((point - other).square().sum()), j) for j, other in enumerate(reference.double())]
        rows.append([j for _, j in sorted(distances) if not (itself and j == i)])
    return rows


def never(*_):
    """Stand in for a function that must not be called."""
    raise AssertionError("called")
