"""Unknown items are nobody's positives."""

import itertools
import math

import pytest
import torch

from pml_ext import (
    NegativesOnly,
)


def test_unknown_items_are_nobodys_positive():
    labels = torch.tensor([0, 0, 1, -1, -1])
    weights = NegativesOnly().matrix(labels, labels)
    for i, j in itertools.product(range(5), repeat=2):
        both = labels[i] == -1 and labels[j] == -1
        assert weights[i, j].item() == pytest.approx(math.nan if both else float(labels[i] == labels[j]), nan_ok=True)
