"""A batch that several files share."""

import pytest
import torch


@pytest.fixture
def batch():
    """12 embeddings of 4 numbers, 3 of each of 4 classes."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(12, 4, generator=generator).requires_grad_(), torch.arange(12) % 4
