"""NestedLoss: a sum over slices of the embeddings, with miners, references and a memory."""

import pytest
import torch
from pytorch_metric_learning import losses, miners

from pml_ext import (
    CBMLLoss,
    CrossBatchMemory,
    MultipleLosses,
    NestedLoss,
    PDDMDistance,
    PDDMLoss,
    SharedLabel,
    TiledMultiSimilarityLoss,
    WithRelation,
)


def batch(size=8, count=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(count, size, dtype=torch.float64, generator=generator)
    return points.requires_grad_(), torch.arange(count) // 3


def slices(loss, sizes, weights, x, *arguments, ref_emb=None, **named):
    total = 0
    for size, weight in zip(sizes, weights, strict=True):
        if ref_emb is not None:
            named["ref_emb"] = ref_emb[:, :size]
        total = total + weight * loss(x[:, :size], *arguments, **named)
    return total


@pytest.mark.parametrize(
    "loss", [CBMLLoss(), TiledMultiSimilarityLoss(), losses.NTXentLoss(), losses.TripletMarginLoss()]
)
@pytest.mark.parametrize("weights", [None, (0.5, 2.0, 1.0)])
def test_values_and_gradients_equal_a_loop(loss, weights):
    x, labels = batch()
    references, ref_labels = batch(count=9, seed=1)
    mined = miners.MultiSimilarityMiner()(x, labels)
    nested = NestedLoss(loss, (2, 4, 8), weights)
    for named in ({}, {"indices_tuple": mined}, {"ref_emb": references.detach(), "ref_labels": ref_labels}):
        expected = slices(loss, (2, 4, 8), weights or (1, 1, 1), x, labels, **named)
        found = nested(x, labels, **named)
        assert found.item() == pytest.approx(expected.item(), abs=1e-12)
        gradients = [torch.autograd.grad(value, x, retain_graph=True)[0] for value in (found, expected)]
        assert torch.allclose(*gradients, atol=1e-12, rtol=0)


def test_wrappers_go_around_and_inside():
    x, labels = batch()
    inside = NestedLoss(MultipleLosses([CBMLLoss(), losses.ContrastiveLoss()], weights=[1, 0.5]), (4, 8))
    expected = NestedLoss(CBMLLoss(), (4, 8))(x, labels) + 0.5 * NestedLoss(losses.ContrastiveLoss(), (4, 8))(x, labels)
    assert inside(x, labels).item() == pytest.approx(expected.item())
    memory = CrossBatchMemory(NestedLoss(losses.ContrastiveLoss(), (4, 8)), embedding_size=8, memory_size=24)
    memory(x.float(), labels)
    assert torch.isfinite(memory(x.float(), labels))
    related = NestedLoss(WithRelation(CBMLLoss(), SharedLabel()), (8,))
    classes = torch.nn.functional.one_hot(labels)
    assert related(x, classes).item() == pytest.approx(WithRelation(CBMLLoss(), SharedLabel())(x, classes).item())


@pytest.mark.parametrize(
    ("build", "error", "text"),
    [
        (lambda: NestedLoss(CBMLLoss, (8,)), TypeError, "must be an object"),
        (lambda: NestedLoss(CBMLLoss(), ()), ValueError, "ascending"),
        (lambda: NestedLoss(CBMLLoss(), (8, 4)), ValueError, "ascending"),
        (lambda: NestedLoss(CBMLLoss(), (4, 8), (1,)), ValueError, "1 for 2 sizes"),
        (lambda: NestedLoss(losses.ProxyNCALoss(4, 8), (4, 8)), TypeError, "which fit one embedding size"),
        (lambda: NestedLoss(PDDMLoss(PDDMDistance(8)), (4, 8)), TypeError, "which fit one embedding size"),
        (
            lambda: NestedLoss(CrossBatchMemory(losses.ContrastiveLoss(), 8, 24), (4, 8)),
            TypeError,
            r"CrossBatchMemory\(NestedLoss\(loss, sizes\)\)",
        ),
        (lambda: NestedLoss(CBMLLoss(), (2, 4))(*batch()), ValueError, "got 4 for embeddings of 8"),
    ],
)
def test_what_does_not_fit_is_refused(build, error, text):
    with pytest.raises(error, match=text):
        build()
