"""What every class of ours keeps: bad values in sight, boolean labels, torch.func and forward mode."""

import copy
import math

import pytest
import torch
from pytorch_metric_learning.losses import TripletMarginLoss
from pytorch_metric_learning.reducers import MeanReducer
from torch import nn
from torch.autograd import forward_ad

from pml_ext import (
    AnchorSwapMiner,
    AngularLoss,
    AngularTripletLoss,
    BatchAllTripletLoss,
    CBMLLoss,
    ClusteringLoss,
    DensityRegularizer,
    EntropyRegularizer,
    GlobalOrthogonalRegularizer,
    HardPairMiner,
    HardQuadrupletMiner,
    LocalPositiveMiner,
    MahalanobisDistance,
    MetricVarianceRegularizer,
    MultipleLosses,
    NPairAngularLoss,
    NPairLoss,
    PDDMDistance,
    PDDMLoss,
    RegularizedLoss,
    SemiHardTripletMiner,
    SoftmaxLoss,
    TiledContrastiveLoss,
    TiledMultiSimilarityLoss,
    TiledNTXentLoss,
    TiledSupConLoss,
    TiledTripletMarginLoss,
    registry,
)

SIZE = 8


class Mined(nn.Module):
    """A loss behind a miner."""

    def __init__(self, loss, miner):
        super().__init__()
        self.loss, self.miner = loss, miner

    def forward(self, x, y):
        return self.loss(x, y, self.miner(x, y))


class Unlabeled(nn.Module):
    """A regularizer without labels, called with them."""

    def __init__(self, regularizer):
        super().__init__()
        self.regularizer = regularizer

    def forward(self, x, y):
        return self.regularizer(x)


def pddm(**settings):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return PDDMLoss(PDDMDistance(SIZE), **settings)


# One of each, and each setting that takes another path through the code.
COMPONENTS = {
    **{
        f"{c.__name__}{'' if normalized else ', raw'}": c(normalize_embeddings=normalized)
        for c in (AngularLoss, AngularTripletLoss, NPairLoss, NPairAngularLoss)
        for normalized in (True, False)
    },
    "AngularLoss, gathered rows": AngularLoss(alpha=70),
    **{
        f"CBMLLoss, {settings}": CBMLLoss(**settings)
        for settings in (
            {},
            {"skip_unmined": True},
            {"mining": False},
            {"averaging": "sqrt", "delta": "ratio"},
            {"averaging": "const", "mvc_weight": 0},
        )
    },
    "CBMLLoss, quadratic": CBMLLoss(statistics=(0.7, 0.2, 0.1, 0.3)),
    "SoftmaxLoss": SoftmaxLoss(400, SIZE),
    "ClusteringLoss": ClusteringLoss(),
    **{
        f"BatchAllTripletLoss, {kind}, {triplets}, {positives}": BatchAllTripletLoss(0.2, kind, triplets, positives)
        for kind in ("hinge", "squared-hinge", "ratio", "soft")
        for triplets in ("violating", "all")
        for positives in ("all", "local")
    },
    **{
        f"PDDMLoss, {settings}": pddm(**settings)
        for settings in (
            {},
            {"per_class": True},
            {"num_quadruplets": 99, "embedding_weight": 0.0},
            {"normalize_scores": False, "embedding_weight": 0.0},
            {"detach_embeddings": True},
            {"pointwise": "logistic"},
            {"pointwise": "fisher", "embedding_weight": 0.0},
        )
    },
    "EntropyRegularizer": Unlabeled(EntropyRegularizer()),
    "DensityRegularizer": DensityRegularizer(400),
    "GlobalOrthogonalRegularizer": GlobalOrthogonalRegularizer(),
    "MetricVarianceRegularizer": MetricVarianceRegularizer(),
    "HardPairMiner": Mined(CBMLLoss(mining=False), HardPairMiner()),
    "SemiHardTripletMiner": Mined(BatchAllTripletLoss(), SemiHardTripletMiner()),
    "SemiHardTripletMiner, all": Mined(BatchAllTripletLoss(), SemiHardTripletMiner(negatives="all", tile_size=7)),
    "LocalPositiveMiner": Mined(BatchAllTripletLoss(), LocalPositiveMiner(percentile=30)),
    "HardQuadrupletMiner": Mined(AngularTripletLoss(), HardQuadrupletMiner()),
    "HardQuadrupletMiner, per class": Mined(pddm(normalize_scores=False), HardQuadrupletMiner(per_class=True)),
    "AnchorSwapMiner": Mined(AngularTripletLoss(), AnchorSwapMiner(HardQuadrupletMiner(num_quadruplets=99))),
    "MahalanobisDistance": TripletMarginLoss(distance=MahalanobisDistance(SIZE), reducer=MeanReducer()),
    "PDDMDistance": Mined(AngularTripletLoss(), HardQuadrupletMiner(PDDMDistance(SIZE))),
    **{
        f"{c.__name__}, {size}": c(tile_size=size)
        for size in (None, 7)
        for c in (
            TiledContrastiveLoss,
            TiledMultiSimilarityLoss,
            TiledNTXentLoss,
            TiledSupConLoss,
            TiledTripletMarginLoss,
        )
    },
    "CBMLLoss, in tiles": CBMLLoss(tile_size=7),
    "NPairAngularLoss, in tiles": NPairAngularLoss(tile_size=7),
    "RegularizedLoss": RegularizedLoss(CBMLLoss(), EntropyRegularizer(), weight=0.1),
    "MultipleLosses": MultipleLosses([CBMLLoss(), BatchAllTripletLoss(positives="local")], weights=[0.5, 0]),
}


def test_every_registered_class_is_here():
    """A new one cannot be left out of the tests below."""
    ours = {c.cls.__name__ for c in registry.components() if not c.name.startswith("pml/") and c.kind != "sampler"}
    assert ours <= {name.partition(",")[0] for name in COMPONENTS}


def batch(sizes, lone=False):
    """Labels of (classes, images per class); the image that is spoilt may have a class of its own."""
    labels = torch.arange(sizes[0]).repeat_interleave(sizes[1])
    if lone:
        labels[5] = 399
    x = torch.randn(len(labels), SIZE, generator=torch.Generator().manual_seed(1))
    return x, labels


BAD = [  # (classes, images per class), whether the image has a class of its own, where, what
    ((6, 4), False, 5, math.nan),
    ((6, 4), False, (5, 3), math.nan),
    ((6, 4), False, slice(None), math.nan),
    ((6, 4), False, 5, math.inf),
    ((6, 4), False, (5, 0), -math.inf),
    ((6, 4), True, 5, math.nan),
    ((50, 4), True, 5, math.nan),
    ((3, 26), True, 5, math.nan),
    *(((2, 4), False, row, math.nan) for row in (0, 3, 4, 7)),
]


@pytest.mark.parametrize("name", COMPONENTS)
def test_what_is_not_finite_is_never_hidden(name):
    """Neither in the value nor in the gradient: small batches and large ones, few and many images per class."""
    component = COMPONENTS[name].eval()
    for sizes, lone, place, value in BAD:
        x, labels = batch(sizes, lone)
        x[place] = value
        found = component(x.requires_grad_(), labels)
        assert not found.isfinite(), (sizes, lone, place, value)
        (gradient,) = torch.autograd.grad(found, x)
        assert not gradient.isfinite().all(), (sizes, lone, place, value)


@pytest.mark.parametrize("name", COMPONENTS)
def test_boolean_labels_are_two_classes(name):
    x, labels = batch((2, 6))
    component = COMPONENTS[name].eval()
    torch.testing.assert_close(component(x, labels.bool()), component(x, labels), rtol=0, atol=0)
    if "references" in registry.capabilities(component):
        references, of_references = x.flip(0) * 1.1, labels.flip(0)
        found = component(x, labels.bool(), None, references, of_references.bool())
        torch.testing.assert_close(found, component(x, labels, None, references, of_references), rtol=0, atol=0)
    miner = getattr(component, "miner", None)
    if "references" in registry.capabilities(miner):
        one, other = (miner(x, y, x.flip(0), y.flip(0)) for y in (labels, labels.bool()))
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# torch.func and forward mode


@pytest.mark.parametrize("name", COMPONENTS)
def test_torch_func_and_forward_mode_agree_with_backward(name):
    component, (x, labels) = copy.deepcopy(COMPONENTS[name]).eval().double(), batch((4, 3))
    x = x.double().requires_grad_()
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def call(z):
        return component(z, labels)

    value = call(x)
    (gradient,) = torch.autograd.grad(value, x, create_graph=True)
    slope = (gradient.detach() * direction).sum()
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(call(forward_ad.make_dual(x.detach(), direction)))
    torch.testing.assert_close(tuple(found), (value.detach(), slope), rtol=1e-9, atol=1e-12)
    # Both ways to a product with the Hessian: the backward of the backward, and forward over torch.func's gradient.
    curved = (gradient * direction).sum()
    twice = torch.autograd.grad(curved, x)[0] if curved.requires_grad else torch.zeros_like(x)
    _, found = torch.func.jvp(torch.func.grad(call), (x.detach(),), (direction,))
    torch.testing.assert_close(found, twice, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    "loss",
    [
        AngularLoss(alpha=70),
        AngularTripletLoss(),
        NPairAngularLoss(alpha=70),
        TripletMarginLoss(distance=PDDMDistance(SIZE, 8, 0.0, True, 3000)),
    ],
)
def test_parts_change_nothing_and_torch_func_keeps_those_that_backward_computes_again(loss, monkeypatch):
    x, labels = batch((4, 3))
    x = x.double().requires_grad_()
    value = loss.double()(x, labels)
    (gradient,) = torch.autograd.grad(value, x)
    monkeypatch.setattr("pml_ext_angular.functional.MAX_ENTRIES", 100)
    in_parts = loss(x, labels)
    torch.testing.assert_close(in_parts, value, rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.autograd.grad(in_parts, x)[0], gradient, rtol=1e-9, atol=1e-12)
    found = torch.func.grad(lambda z: loss(z, labels))(x.detach())
    torch.testing.assert_close(found, gradient, rtol=1e-9, atol=1e-12)
