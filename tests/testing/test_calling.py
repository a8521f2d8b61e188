"""Calls of components, and counters of operators and of saved bytes."""

import random

import numpy as np
import pytest
import torch
from pytorch_metric_learning import losses

from pml_ext import CBMLLoss, CrossBatchMemory, MultipleLosses
from pml_ext.testing import calling
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
