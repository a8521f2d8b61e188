"""Comparisons of values, gradients and indices."""

import math

import pytest
import torch

from pml_ext.testing import comparing

LABELS = torch.tensor([0, 0, 1, 1])


def indices(*lists):
    return tuple(torch.tensor(each, dtype=torch.long) for each in lists)


def test_nan_equals_nan_and_shapes_count():
    one = torch.tensor([1.0, math.nan])
    others = [torch.tensor([1.0 + 1e-9, math.nan]).double(), torch.tensor([1.1, math.nan]), one[None]]
    assert [comparing.all_close([one], [other]) for other in others] == [True, False, False]
    assert not comparing.all_close([one], [])
    pairs = [(one, one.clone()), (torch.tensor(1.0), torch.tensor(1.0 + 1e-7)), ((LABELS, LABELS), (LABELS,))]
    assert [comparing.equal(*pair) for pair in pairs] == [True, False, False]


def test_a_difference_has_both_values():
    comparing.close(torch.tensor(1.0), torch.tensor(1.0 + 1e-7), "equal")
    with pytest.raises(AssertionError, match=r"^the loss: 2 instead of 3 at \[1\]$"):
        comparing.close([torch.ones(1), torch.tensor([1.0, 2])], [torch.ones(1), torch.tensor([1.0, 3])], "the loss")
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        comparing.close([torch.ones(1)] * 2, torch.ones(1), "x")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([torch.zeros(2)], "must return a tuple of three or four index tensors; got list"),
        (indices([0], [1]), "must return a tuple of three or four index tensors; got tuple"),
        ((torch.zeros(1), *indices([1], [2])), "index tensor 0 must be int64 .N.; got torch.float32, 1"),
        (indices([0], [1], [4]), "index tensor 3 is outside of 0 to 3 of the batch"),
        (indices([0], [-1], [2]), "index tensor 1 is outside of 0 to 3"),
        (indices([0, 0], [1], [2, 3]), r"paired index tensors differ in length: \[2, 1, 2\]"),
        (indices([0], [2], [3]), "a positive is not of its anchor's class, or a negative is"),
        (indices([0], [1], [1]), "a positive is not of its anchor's class, or a negative is"),
        (indices([0], [0], [2]), "an anchor is its own positive, at distance 0"),
        (indices([0, 0], [1, 1], [2, 2]), "is listed twice of the batch, and counts twice"),
    ],
)
def test_invalid_index_tuples_are_named_clearly(given, text):
    with pytest.raises(AssertionError, match=text):
        comparing.check_tuple(given, LABELS, LABELS, " of the batch")
