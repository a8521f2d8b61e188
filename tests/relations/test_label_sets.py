"""Sets of labels that are shared, against float64 loops."""

import itertools
import math

import pytest
import torch

from pml_ext import (
    SharedLabel,
)

from .made_up import B, C, some_sets


def jaccard(first, second):
    shared = len(first & second)
    return shared, shared / len(first | second) if first | second else 0.0


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("threshold", [0.0, 1 / 3, 0.5, 1.0])
def test_shared_labels_equal_a_slow_loop(threshold, graded):
    first = some_sets(0)
    second = some_sets(1, 17)
    relation = SharedLabel(threshold, graded)
    found = relation.matrix(relation.tensor(first.float(), B), second)
    one_by_one = relation.weights(first[:, None], second[None])
    lists = [{label for label in range(C) if row[label]} for row in first]
    of_lists = relation.matrix(SharedLabel(num_labels=C).tensor([sorted(each) for each in lists], B), second)
    for i, j in itertools.product(range(B), range(17)):
        shared, index = jaccard(lists[i], {label for label in range(C) if second[j, label]})
        wanted = 0.0 if not shared else index if graded else 1.0
        if shared and index < threshold:
            wanted = math.nan
        for each in (found, one_by_one, of_lists):
            assert each[i, j].item() == pytest.approx(wanted, rel=1e-6, nan_ok=True)


def test_missing_label_of_a_table_raises():
    table = torch.tensor([[1.0, 0.0], [float("nan"), 1.0], [0.0, float("nan")]])
    with pytest.raises(ValueError, match="multi-hot labels of SharedLabel have 2 NaN; wanted 0"):
        SharedLabel().tensor(table, 3)
