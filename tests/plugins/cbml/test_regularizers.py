"""MetricVarianceRegularizer against Eq. (28) and (29)."""

import pytest
import torch
from torch.autograd import gradcheck

from pml_ext_cbml import MetricVarianceRegularizer

from . import loops

TIGHT = {"rtol": 1e-9, "atol": 1e-9}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("gamma", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("detach_target", [False, True])
def test_value_and_gradient(reduction, gamma, detach_target):
    x, labels = loops.batch(rows=12, classes=4)
    regularizer = MetricVarianceRegularizer(gamma, reduction, detach_target)
    settings = {"mvc_gamma": gamma, "mvc_reduction": reduction, "detach_target": detach_target}
    found = regularizer(x, labels)
    expected = sum(v for _, _, v in loops.anchor_terms(x, loops.pairs_from_labels(labels), **settings)) / 12
    torch.testing.assert_close(found, expected, **TIGHT)
    found, expected = (torch.autograd.grad(value, x)[0] for value in (found, expected))
    torch.testing.assert_close(found, expected, **TIGHT)
    if not detach_target:
        assert gradcheck(lambda e: regularizer(e, labels), x)
