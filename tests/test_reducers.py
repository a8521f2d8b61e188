"""Reducers that PML lacks."""

import pytest
import torch
from pytorch_metric_learning.reducers import DivisorReducer

from pml_ext.reducers import SumOverDivisorReducer

DIVISORS = (0, 2, 0.5, torch.tensor(0), torch.tensor(0.0), torch.tensor(3), torch.tensor(0.25))


@pytest.mark.parametrize("divisor", DIVISORS)
def test_sum_over_divisor_is_pmls_and_0_where_the_divisor_is_0(divisor):
    losses, twin = (torch.tensor([1.0, 2.0, 4.0], requires_grad=True) for _ in range(2))
    embeddings, kept = torch.randn(3, 2, requires_grad=True), torch.arange(3)

    def reduced(reducer, values):
        terms = {"losses": values, "indices": kept, "reduction_type": "element", "divisor": divisor}
        return reducer({"loss": terms}, embeddings, kept)

    found, expected = reduced(SumOverDivisorReducer(), losses), reduced(DivisorReducer(), twin)
    torch.testing.assert_close(found, expected)
    found.backward()  # attached to the graph where it is 0
    assert torch.equal(losses.grad, torch.full((3,), 1 / divisor if divisor else 0.0))


@pytest.mark.parametrize("divisor", [0, torch.tensor(0), torch.tensor(torch.nan)])
def test_sum_over_divisor_hides_nothing(divisor):
    terms = {"losses": torch.tensor([1.0, torch.nan]), "indices": torch.arange(2), "reduction_type": "element"}
    value = SumOverDivisorReducer()({"loss": terms | {"divisor": divisor}}, torch.zeros(2, 2), torch.arange(2))
    assert value.isnan()


def test_a_batch_without_values_hides_no_nan_and_has_gradient_0():
    terms = {"losses": torch.zeros(0), "indices": torch.zeros(0, dtype=torch.long), "reduction_type": "element"}
    embeddings = torch.full((2, 2), 1e30, requires_grad=True)
    value = SumOverDivisorReducer()({"loss": terms | {"divisor": 0}}, embeddings, torch.arange(2))
    value.backward()
    assert value.item() == 0
    assert torch.equal(embeddings.grad, torch.zeros(2, 2))
    bad = torch.tensor([[torch.inf, 1.0]])
    assert SumOverDivisorReducer()({"loss": terms | {"divisor": 0}}, bad, torch.arange(1)).isnan()
