"""LabeledRegularizer and RegularizedLoss, with losses, wrappers and regularizers of PML inside."""

import pytest
import torch
from pytorch_metric_learning import losses, miners, reducers
from pytorch_metric_learning.regularizers import LpRegularizer, ZeroMeanRegularizer

from pml_ext import MetricVarianceRegularizer, RegularizedLoss, registry
from pml_ext.plugin import LabeledRegularizer


class Spy(LabeledRegularizer):
    def compute_loss(self, embeddings, labels):
        self.seen = (embeddings, labels)
        return {"loss": {"losses": embeddings.sum() * 0 + 1, "indices": None, "reduction_type": "already_reduced"}}


X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
Y = torch.arange(12) % 4


LOSSES = [
    losses.ContrastiveLoss(),
    losses.ProxyAnchorLoss(4, 4),
    losses.NTXentLoss(reducer=reducers.SumReducer()),
    losses.ArcFaceLoss(4, 4),
]
REGULARIZERS = [MetricVarianceRegularizer(), LpRegularizer(), ZeroMeanRegularizer()]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("regularizer", REGULARIZERS, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("weight", [0.5, 0])
def test_regularized_loss_is_the_weighted_sum(loss, regularizer, weight):
    second = regularizer(X, Y) if isinstance(regularizer, MetricVarianceRegularizer) else regularizer(X)
    wrapped = RegularizedLoss(loss, regularizer, weight=weight, collect_stats=True)
    found = wrapped(X, Y)
    torch.testing.assert_close(found, loss(X, Y) + weight * second, rtol=1e-12, atol=1e-12)
    assert found.dtype == torch.float64
    assert wrapped._record_these_stats[-2:] == ["loss_value", "regularizer_value"]
    recorded = wrapped.loss_value, wrapped.regularizer_value
    torch.testing.assert_close(recorded, (loss(X, Y).detach(), second.detach()))
    assert not any(value.requires_grad for value in recorded)


def test_tuples_and_references_are_passed_on():
    wrapped = RegularizedLoss(losses.ContrastiveLoss(), Spy(), weight=1)
    indices = miners.MultiSimilarityMiner()(X, Y)
    torch.testing.assert_close(wrapped(X, Y, indices), losses.ContrastiveLoss()(X, Y, indices) + 1)
    references = torch.randn(20, 4, dtype=torch.float64)
    ref_labels = torch.arange(20) % 4
    found = wrapped(X, Y, ref_emb=references, ref_labels=ref_labels)
    torch.testing.assert_close(found, losses.ContrastiveLoss()(X, Y, None, references, ref_labels) + 1)
    assert wrapped.regularizer.seen[0] is X
    assert torch.equal(wrapped.regularizer.seen[1], Y)


def test_regularized_loss_may_contain_a_memory():
    wrapped = RegularizedLoss(losses.CrossBatchMemory(losses.ContrastiveLoss(), 4, 24), LpRegularizer(), weight=0.1)
    alone = losses.CrossBatchMemory(losses.ContrastiveLoss(), 4, 24)
    for _ in range(3):
        torch.testing.assert_close(wrapped(X, Y), alone(X, Y) + 0.1 * LpRegularizer()(X))
    assert "state" in wrapped.capabilities
    with pytest.raises(TypeError, match="ref_emb"):
        wrapped(X, Y, ref_emb=X.detach().clone(), ref_labels=Y)


@pytest.mark.parametrize(
    ("component", "wanted"),
    [
        (RegularizedLoss(losses.ContrastiveLoss(), LpRegularizer()), {"labels", "indices_tuple", "references"}),
        (RegularizedLoss(losses.VICRegLoss(), LpRegularizer()), {"references"}),
        (RegularizedLoss(losses.VICRegLoss(), MetricVarianceRegularizer()), {"references", "labels"}),
        (RegularizedLoss, {"labels", "indices_tuple", "references"}),
        (MetricVarianceRegularizer, {"labels"}),
    ],
)
def test_capabilities_follow_the_regularized_loss(component, wanted):
    assert registry.capabilities(component) == wanted


def test_regularizer_with_labels_suggests_the_wrapper():
    with pytest.raises(TypeError, match=r"Type: RegularizedLoss\(your_loss, MetricVarianceRegularizer\(\.\.\.\)"):
        losses.ContrastiveLoss(embedding_regularizer=MetricVarianceRegularizer())(X, Y)
