"""MetricVarianceRegularizer against Eq. (28) and (29)."""

import copy
import pickle

import pytest
import torch
from pytorch_metric_learning import distances, reducers
from pytorch_metric_learning.losses import ContrastiveLoss, MultiSimilarityLoss
from torch.autograd import gradcheck

from pml_ext import RegularizedLoss
from pml_ext_cbml import CBMLLoss, MetricVarianceRegularizer

TIGHT = {"rtol": 1e-9, "atol": 1e-9}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("gamma", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("detach_target", [False, True])
def test_value_and_gradient(slow, reduction, gamma, detach_target):
    x, labels = slow.batch(rows=12, classes=4)
    regularizer = MetricVarianceRegularizer(gamma, reduction, detach_target)
    settings = {"mvc_gamma": gamma, "mvc_reduction": reduction, "detach_target": detach_target}
    found = regularizer(x, labels)
    expected = sum(v for _, _, v in slow.terms(x, slow.pairs(labels), **settings)) / 12
    torch.testing.assert_close(found, expected, **TIGHT)
    found, expected = (torch.autograd.grad(value, x)[0] for value in (found, expected))
    torch.testing.assert_close(found, expected, **TIGHT)
    if not detach_target:
        assert gradcheck(lambda e: regularizer(e, labels), x)


def test_is_the_third_term_of_the_loss(slow):
    x, labels = slow.batch()
    with_it = CBMLLoss(mvc_weight=0.7, mvc_gamma=0.3)(x, labels)
    parts = RegularizedLoss(CBMLLoss(mvc_weight=0), MetricVarianceRegularizer(gamma=0.3), weight=0.7)(x, labels)
    torch.testing.assert_close(with_it, parts, **TIGHT)


def test_ms_with_mvc(slow):
    x, labels = slow.batch()
    value = RegularizedLoss(MultiSimilarityLoss(), MetricVarianceRegularizer(), weight=1)(x, labels)
    expected = MultiSimilarityLoss()(x, labels) + MetricVarianceRegularizer()(x, labels)
    torch.testing.assert_close(value, expected, **TIGHT)


def test_the_slot_of_pml_raises_with_the_line_to_type(slow):
    x, labels = slow.batch()
    loss = ContrastiveLoss(embedding_regularizer=MetricVarianceRegularizer())
    with pytest.raises(
        TypeError, match=r"Type: RegularizedLoss\(your_loss, MetricVarianceRegularizer\(\.\.\.\), weight=1"
    ):
        loss(x, labels)


@pytest.mark.parametrize("labels", [[], [3], [0, 0, 0], [0, 1, 2]])
def test_degenerate_batches(labels):
    x = torch.randn(len(labels), 3).half().requires_grad_()
    value = MetricVarianceRegularizer()(x, torch.tensor(labels, dtype=torch.long))
    assert value.item() == 0
    assert value.dtype == torch.float32
    value.backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


def test_reducers_dtypes_and_autocast(slow):
    x, labels = slow.batch()
    terms = torch.stack([v for _, _, v in slow.terms(x, slow.pairs(labels))])
    found = MetricVarianceRegularizer(reducer=reducers.SumReducer())(x, labels)
    torch.testing.assert_close(found, terms.sum(), **TIGHT)
    low = x.detach().bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = MetricVarianceRegularizer()(low, labels)
    assert value.dtype == torch.float32
    assert torch.equal(value, MetricVarianceRegularizer()(low.float(), labels))


def test_module(slow):
    x, labels = slow.batch()
    regularizer = MetricVarianceRegularizer(gamma=0.4)
    value = regularizer(x, labels)
    for twin in (pickle.loads(pickle.dumps(regularizer)), copy.deepcopy(regularizer)):
        assert torch.equal(twin(x, labels), value)
    assert "gamma=0.4" in repr(regularizer)


@pytest.mark.skipif(torch.__version__ < "2.5", reason="torch 2.4 breaks the graph at PML's shape check")
def test_compiles_into_one_graph(slow):
    x, labels = slow.batch()
    regularizer = MetricVarianceRegularizer(gamma=0.4)
    value = regularizer(x, labels)
    compiled = torch.compile(regularizer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, labels), value)
    both = RegularizedLoss(CBMLLoss(mvc_weight=0), regularizer, weight=0.5)
    compiled = torch.compile(both, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, labels), both(x, labels))


def test_bad_input(slow):
    x, labels = slow.batch()
    with pytest.raises(ValueError, match=r"gamma of MetricVarianceRegularizer must be .* at most 1, not 2"):
        MetricVarianceRegularizer(gamma=2)
    with pytest.raises(ValueError, match="reduction of MetricVarianceRegularizer must be 'mean' or 'sum', not 'max'"):
        MetricVarianceRegularizer(reduction="max")
    with pytest.raises(ValueError, match="MetricVarianceRegularizer needs a similarity"):
        MetricVarianceRegularizer(distance=distances.LpDistance())
    with pytest.raises(ValueError, match=r"labels must have shape \(10,\)"):
        MetricVarianceRegularizer()(x, labels[:9])
