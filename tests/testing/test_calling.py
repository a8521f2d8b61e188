"""Calls of components, counters of operators and saved bytes, and comparisons of values and indices."""

import math
import random

import numpy as np
import pytest
import torch
from pytorch_metric_learning import losses

from pml_ext import CBMLLoss, CrossBatchMemory, MultipleLosses
from pml_ext.testing import calling, comparing
from pml_ext.testing.batches import batch_of
from pml_ext.testing.subject import SkipCheck, subject_of


class Drawing(losses.ContrastiveLoss):
    def forward(self, *arguments, **named):
        return super().forward(*arguments, **named) * torch.rand(())


class Counting(losses.ContrastiveLoss):
    calls = 0

    def forward(self, *arguments, **named):
        self.calls += 1
        return super().forward(*arguments, **named) * self.calls


@pytest.mark.parametrize(
    ("component", "names", "need", "text"),
    [
        (losses.ArcFaceLoss(6, 8), ("relation", "references"), "", "it does not declare references and relation"),
        (Drawing(), (), "fixed", "its values are random"),
        (CrossBatchMemory(CBMLLoss(), 8, 64), (), "repeatable", "its values depend on earlier calls"),
        (Counting(), (), "repeatable", "its values depend on earlier calls"),
    ],
)
def test_missing_needs_of_a_check_are_named(component, names, need, text):
    calling.needs(subject_of(CBMLLoss), "labels", "references", repeatable=True)
    with pytest.raises(SkipCheck, match=text):
        calling.needs(subject_of(component), *names, **{need: True} if need else {})


def test_errors_of_the_kit_have_no_place():
    assert calling.error_summary(ValueError("by\n zero")) == "ValueError: by zero"
    with pytest.raises(SkipCheck) as caught:
        calling.compute(MultipleLosses([CBMLLoss()]), batch_of(subject_of(CBMLLoss)))
    assert calling.error_location(caught.value) == ""  # raised by the kit


def test_operators_and_saved_bytes_are_counted():
    x = torch.ones(10, 6, dtype=torch.float64, requires_grad=True)
    with calling.CountedOperations() as counted:
        y = x.exp()
        torch.mm(x, x.T)
    assert (counted.count, counted.largest) == (3, 100)  # exp, T and mm
    with calling.SavedBytes(x) as saved:
        z = (y * x).exp()
        w = z.square()
    assert saved.total == 60 * 8 * 2  # y, which the caller did not give, and z; x does not count
    saved.leave_out(z)
    assert saved.total == 60 * 8
    del w


def test_generators_that_are_seeded_are_named():
    state = torch.get_rng_state()
    assert calling.reseeded_generators(lambda: torch.rand(2)) == []
    assert calling.reseeded_generators(lambda: (random.seed(3), np.random.seed(3))) == ["Python", "NumPy"]
    assert calling.reseeded_generators(lambda: torch.manual_seed(3)) == ["torch"]
    torch.set_rng_state(state)


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
