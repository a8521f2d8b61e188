"""Embeddings and sets of labels that tests of relations share."""

import torch

B = 24
C = 6


def points(seed=0, rows=B, size=8):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, size, generator=generator, dtype=torch.float64).requires_grad_()


def some_sets(seed=0, rows=B, share=0.35):
    return torch.rand(rows, C, generator=torch.Generator().manual_seed(seed)) < share


def value_and_gradient(loss, x, *arguments, **named):
    value = loss(x, *arguments, **named)
    return value.detach(), torch.autograd.grad(value, x)[0]
