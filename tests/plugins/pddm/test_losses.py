"""The joint objective: equal to Eq. 3 and 4, and what the readings settle."""

import copy

import pytest
import torch
from pytorch_metric_learning.losses import TripletMarginLoss
from pytorch_metric_learning.reducers import MeanReducer

from pml_ext import HardQuadrupletMiner, PDDMDistance, PDDMLoss
from pml_ext.testing import SkipCheck, check_component

from . import loops

LABELS = torch.tensor([0, 1, 0, 2, 1, 1, 0, 2, 0, 1, 2, 2])


def embeddings(seed=0, size=5):
    return torch.randn(len(LABELS), size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(seed=0, *, dropout=0.0, position=True, hidden_size=None, **settings):
    torch.manual_seed(seed)
    return PDDMLoss(PDDMDistance(5, hidden_size, dropout, position).double(), **settings)


def reference(embeddings, labels, component, distance, indices_tuple=None, pointwise=None, **settings):
    others = [settings.pop(name, None) for name in ("detach_scaling", "detach_embeddings", "embedding_loss")]
    if any(others) or (pointwise and indices_tuple is not None):
        raise SkipCheck("tests below: what is detached, and another loss in the place of the feature term")
    metric, embedding = loops.objective(component.distance, embeddings, labels.tolist(), indices_tuple, **settings)
    if pointwise is not None:
        metric = loops.pointwise(component.distance, embeddings, labels.tolist(), pointwise)
    return metric + embedding


def test_pddm_loss_equals_a_slow_loop():
    torch.manual_seed(0)
    whole, lmdm = (PDDMDistance(8, dropout=0.0, position=position) for position in (True, False))
    settings = [
        {"distance": [whole], "num_quadruplets": [1, 4, 1000], "per_class": [False, True]},
        {"distance": [lmdm]},
        {"distance": [whole], "score_margin": [0.1], "embedding_margin": [0.3], "embedding_weight": [2.0, 0.0]},
        {"distance": [whole], "pointwise": ["logistic", "fisher"], "squared": [False, True]},
        {"distance": [whole], "embedding_loss": [None, TripletMarginLoss()]},
    ]
    check_component(PDDMLoss, reference=reference, settings=settings, checks=["check_reference", "check_settings"])


def test_the_gradient_flows_through_the_scale_or_not():
    """By finite differences of a loss whose scale is held where it is."""
    x = embeddings().requires_grad_()
    loss = build(embedding_weight=0.0)
    matrix = loss.distance(x)
    off = matrix[~torch.eye(len(x), dtype=torch.bool)]
    a, p, n = HardQuadrupletMiner(loss.distance)(x, LABELS)

    def value(low, high):
        return (0.5 + (matrix[a, n] - matrix[a, p]) / (high - low)).clamp(min=0).sum()

    free = value(off.min(), off.max())
    fixed = value(off.min().detach(), off.max().detach())
    for expected, settings in ((free, {}), (fixed, {"detach_scaling": True})):
        found = build(embedding_weight=0.0, **settings)(x, LABELS)
        torch.testing.assert_close(found, expected)
        one, other = (torch.autograd.grad(each, x, retain_graph=True)[0] for each in (found, expected))
        torch.testing.assert_close(one, other)


def test_score_term_kept_from_the_embedding():
    x = embeddings().requires_grad_()
    loss = build(detach_embeddings=True)
    without = build(score_margin=0.0, normalize_scores=False)
    loss(x, LABELS).backward()
    trained = {name for name, parameter in loss.named_parameters() if parameter.grad.abs().sum() > 0}
    assert trained == {name for name, _ in loss.named_parameters()} - {"distance.score.bias"}  # differences lack it
    triplets = HardQuadrupletMiner(without.distance)(x, LABELS)
    a, p, n = (torch.nn.functional.normalize(x)[index] for index in triplets)
    feature_term = 0.5 * (1 + (a - p).norm(dim=1) - (a - n).norm(dim=1)).clamp(min=0).sum()
    torch.testing.assert_close(x.grad, torch.autograd.grad(feature_term, x)[0])
    alone = build(detach_embeddings=True, embedding_weight=0.0)
    assert torch.autograd.grad(alone(x, LABELS), x)[0].abs().max() == 0


def test_one_mask_for_the_whole_step():
    """Mining, scaling and hinges see the same head; without that, scaled scores leave [0, 1]."""
    loss = build(dropout=0.5, hidden_size=32)
    x = embeddings()  # of fewer units all may be 0, which makes ties
    for seed in range(10):
        torch.manual_seed(seed)
        found = loss.compute_loss(x, LABELS, None, x, LABELS)["score"]
        torch.manual_seed(seed)
        head = loss.distance.head()
        twin = copy.deepcopy(loss.distance)
        twin.dropout = 0.0
        with torch.no_grad():
            layers = (twin.difference, twin.position, twin.combine)
            for layer, weight, bias in zip(layers, head[0:6:2], head[1:6:2], strict=True):
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)
        metric, _ = loops.objective(twin, x, LABELS.tolist())
        assert found["losses"].sum().item() == pytest.approx(metric.item(), rel=1e-9)
        assert ((found["losses"] >= 0) & (found["losses"] <= 1.5)).all()
    loss.eval()
    assert loss(x, LABELS) == loss(x, LABELS)


def test_equal_scores_are_scaled_to_zero():
    loss = build()
    x = embeddings().requires_grad_()
    with torch.no_grad():
        loss.distance.score.weight.zero_()
    found = loss.compute_loss(x, LABELS, None, x, LABELS)["score"]["losses"]
    assert found.tolist() == [0.5, 0.5]
    loss(x, LABELS).backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in loss.parameters())


def test_embedding_loss_of_pml_replaces_the_term():
    x = embeddings().requires_grad_()
    triplet = TripletMarginLoss(margin=0.2)
    loss = build(embedding_loss=triplet, embedding_weight=3.0, num_quadruplets=3, collect_stats=True)
    triplets = HardQuadrupletMiner(loss.distance, num_quadruplets=3)(x, LABELS)
    metric, _ = loops.objective(loss.distance, x, LABELS.tolist(), num_quadruplets=3)
    expected = (metric + 3 * triplet(x, LABELS, triplets)).item()
    assert loss(x, LABELS).item() == pytest.approx(expected, rel=1e-9)
    assert loss.feature_loss.item() == pytest.approx(triplet(x, LABELS, triplets).item(), rel=1e-9)


@pytest.mark.parametrize("settings", [{}, {"pointwise": "logistic"}])
@pytest.mark.parametrize("labels", [torch.arange(6), torch.zeros(6, dtype=torch.long)])
def test_without_quadruplets_the_loss_is_always_0(settings, labels):
    """PML's MeanReducer gives NaN for no triplet."""
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    loss = PDDMLoss(PDDMDistance(8), reducer=MeanReducer(), **settings)
    value = loss(x, labels)
    assert value.isfinite()
    value.backward()
    assert x.grad.isfinite().all()
