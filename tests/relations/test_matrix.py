"""A matrix of the batch in place of labels."""

import itertools
import math

import torch

from pml_ext import (
    CBMLLoss,
    FromMatrix,
)

from .made_up import B, points


def test_a_matrix_of_the_batch():
    x = points()
    matrix = torch.where(torch.rand(B, B, generator=torch.Generator().manual_seed(3)) < 0.3, math.nan, 0.0)
    matrix[torch.arange(B), (torch.arange(B) + 1) % B] = 1
    wanted = CBMLLoss()(x, None, (*torch.where(matrix == 1), *torch.where((matrix == 0).fill_diagonal_(False))))
    for loss, labels in itertools.product((CBMLLoss(), CBMLLoss(tile_size=5)), (None, torch.arange(B))):
        torch.testing.assert_close(loss(x, labels, relation=FromMatrix(matrix)), wanted)
