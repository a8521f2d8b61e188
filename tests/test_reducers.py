"""Reducers that PML lacks."""

import pytest
import torch
from pytorch_metric_learning.reducers import DivisorReducer

from pml_ext.reducers import SumOverDivisorReducer


def reduced(losses, embeddings, divisor, reducer=SumOverDivisorReducer):
    terms = {"losses": losses, "indices": torch.arange(len(losses)), "reduction_type": "element", "divisor": divisor}
    return reducer()({"loss": terms}, embeddings, torch.arange(len(embeddings)))


DIVISORS = (0, 2, 0.5, torch.tensor(0), torch.tensor(0.0), torch.tensor(3), torch.tensor(0.25))


@pytest.mark.parametrize("divisor", DIVISORS)
def test_sum_over_divisor_equals_pmls_or_0(divisor):
    losses, twin = (torch.tensor([1.0, 2.0, 4.0], requires_grad=True) for _ in range(2))
    embeddings = torch.randn(3, 2, requires_grad=True)
    found = reduced(losses, embeddings, divisor)
    torch.testing.assert_close(found, reduced(twin, embeddings, divisor, DivisorReducer))
    found.backward()  # attached to the graph where it is 0
    assert torch.equal(losses.grad, torch.full((3,), 1 / divisor if divisor else 0.0))


def test_sum_over_divisor_hides_nothing():
    for divisor in (0, torch.tensor(0), torch.tensor(torch.nan)):
        assert reduced(torch.tensor([1.0, torch.nan]), torch.zeros(2, 2), divisor).isnan()
    assert reduced(torch.zeros(0), torch.tensor([[torch.inf, 1.0]]), 0).isnan()


def test_a_batch_without_values_has_gradient_0():
    embeddings = torch.full((2, 2), 1e30, requires_grad=True)
    value = reduced(torch.zeros(0), embeddings, 0)
    value.backward()
    assert value.item() == 0
    assert torch.equal(embeddings.grad, torch.zeros(2, 2))
