"""Pairs of one group do not count, against a loop."""

import itertools
import math

import pytest
import torch

import pml_ext

from .made_up import B


def test_different_groups_equal_a_slow_loop():
    classes = torch.randint(3, (B,), generator=torch.Generator().manual_seed(0))
    groups = torch.randint(-1, 4, (B,), generator=torch.Generator().manual_seed(1))
    relation = pml_ext.DifferentGroups()
    labels = relation.tensor(torch.stack([classes, groups], 1), B)
    found = relation.matrix(labels, labels)
    for i, j in itertools.product(range(B), repeat=2):
        expected = float(classes[i] == classes[j])
        if groups[i] >= 0 and groups[i] == groups[j]:
            expected = math.nan
        assert found[i, j].item() == pytest.approx(expected, nan_ok=True)
