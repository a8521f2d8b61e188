"""What is not finite is found and named, by its first."""

import math

import pytest
import torch

from pml_ext.experiment.finite import first_bad


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_first_bad_tensor_is_named(value):
    tensors = {
        "empty": torch.zeros(0),
        "huge": torch.full((3, 4), 3e38),
        "small": torch.tensor(1.0, dtype=torch.float64),
        "bad": torch.tensor([[0.0, value], [1.0, 2.0]], requires_grad=True),
        "worse": torch.full((2,), math.nan),
    }
    name, found = first_bad(tensors)
    assert name == "bad"
    assert math.isnan(found) if math.isnan(value) else found == math.inf
    del tensors["bad"], tensors["worse"]
    assert first_bad(tensors) is None
    assert first_bad({}) is None


def test_infinity_does_not_hide_nan():
    assert math.isnan(first_bad({"both": torch.tensor([math.inf, math.nan, math.inf])})[1])


def test_sparse_gradients_too():
    embedding = torch.nn.Embedding(5, 2, sparse=True)
    (embedding(torch.tensor([1, 1])) * math.inf).sum().backward()
    assert embedding.weight.grad.is_sparse
    assert first_bad({"sparse": embedding.weight.grad}) == ("sparse", math.inf)
