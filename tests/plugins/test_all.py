"""What every class of ours keeps: finite values, bad values in sight, torch.func and forward mode; what is refused."""

import copy
import itertools
import math

import pytest
import torch
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
from pytorch_metric_learning.losses import TripletMarginLoss
from pytorch_metric_learning.miners import BatchHardMiner, MultiSimilarityMiner
from pytorch_metric_learning.reducers import MeanReducer
from torch import nn
from torch.autograd import forward_ad

import pml_ext
from pml_ext import (
    AnchorSwapMiner,
    AngularLoss,
    BatchAllTripletLoss,
    CBMLLoss,
    DensityRegularizer,
    HardNegativePoolSampler,
    HardQuadrupletMiner,
    NPairLoss,
    PDDMDistance,
    PDDMLoss,
    SoftmaxLoss,
    WholeClassSampler,
    registry,
)
from pml_ext.plugin import LabeledRegularizer
from pml_ext_cbml.statistics import PairStatistics

SIZE = 8


class Mined(nn.Module):
    """A loss behind a miner."""

    def __init__(self, loss, miner):
        super().__init__()
        self.loss = loss
        self.miner = miner

    def forward(self, x, y):
        return self.loss(x, y, self.miner(x, y))


class Unlabeled(nn.Module):
    """A regularizer without labels, called with them."""

    def __init__(self, regularizer):
        super().__init__()
        self.regularizer = regularizer

    def forward(self, x, y):
        return self.regularizer(x)


IN_TILES = {"tile_size": 7}
# Each setting that takes another path through the code than the defaults do.
SETTINGS = {
    "angular": [{"normalize_embeddings": False}, {"alpha": 70}],
    "angular-triplet": [{"normalize_embeddings": False}],
    "n-pair": [{"normalize_embeddings": False}],
    "n-pair-angular": [{"normalize_embeddings": False}, IN_TILES],
    "cbml": [
        *({"skip_unmined": True}, {"mining": False}, {"averaging": "sqrt", "delta": "ratio"}, IN_TILES),
        *({"averaging": "const", "mvc_weight": 0}, {"statistics": (0.7, 0.2, 0.1, 0.3)}),
    ],
    "batch-all-triplets": [
        dict(zip(("kind", "triplets", "positives"), each, strict=True))
        for each in itertools.product(
            ("hinge", "squared-hinge", "ratio", "soft"), ("violating", "all"), ("all", "local")
        )
    ],
    "loss pddm": [
        *({"per_class": True}, {"num_quadruplets": 99, "embedding_weight": 0.0}, {"detach_embeddings": True}),
        *({"normalize_scores": False, "embedding_weight": 0.0}, {"pointwise": "logistic"}),
        {"pointwise": "fisher", "embedding_weight": 0.0},
    ],
    "semi-hard-triplet": [{"negatives": "all", **IN_TILES}],
    "local-positive": [{"percentile": 30}],
    "hard-quadruplet": [{"per_class": True}, {"distance": {"name": "pddm"}}],
    **{
        f"tiled-{name}": [IN_TILES]
        for name in ("contrastive", "multi-similarity", "nt-xent", "sup-con", "triplet-margin")
    },
}


def made():
    """``(name, module)`` of everything registered but samplers, called with embeddings and labels."""
    context = {"embedding_size": SIZE, "num_classes": 400}
    for component in registry.components():
        kind = component.kind
        name = component.name
        if name.startswith("pml/") or kind == "sampler" or name == "regularized":
            continue
        inside = {"miner": {"name": "hard-quadruplet", "num_quadruplets": 99}} if name == "anchor-swap" else {}
        for settings in ({}, *SETTINGS.get(name, SETTINGS.get(f"{kind} {name}", ()))):
            part = registry.build(component.qualified_name, kind, context, **inside, **settings)
            if kind == "miner":
                part = Mined(pml_ext.BatchAllTripletLoss(), part)
            elif kind == "distance":
                part = TripletMarginLoss(distance=part, reducer=MeanReducer())
            elif kind == "regularizer" and not isinstance(part, LabeledRegularizer):
                part = Unlabeled(part)
            yield f"{kind} {name} {settings or ''}", part
    yield "regularized", pml_ext.RegularizedLoss(pml_ext.CBMLLoss(), pml_ext.EntropyRegularizer(), weight=0.1)
    parts = [pml_ext.CBMLLoss(), pml_ext.BatchAllTripletLoss(positives="local")]
    yield "two losses", pml_ext.MultipleLosses(parts, weights=[0.5, 0])


with torch.random.fork_rng():
    torch.manual_seed(0)
    COMPONENTS = dict(made())


def batch(sizes, lone=False):
    """Labels of (classes, images per class); the image that is spoilt may have a class of its own."""
    labels = torch.arange(sizes[0]).repeat_interleave(sizes[1])
    if lone:
        labels[5] = 399
    return torch.randn(len(labels), SIZE, generator=torch.Generator().manual_seed(1)), labels


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
        assert not torch.autograd.grad(found, x)[0].isfinite().all(), (sizes, lone, place, value)
    assert not component(torch.full((1, SIZE), math.nan), torch.tensor([0])).isfinite()  # without a pair


SHAPES = {
    "tiny": lambda x: 1e-20 * x,
    "large": lambda x: 1e4 * nn.functional.normalize(x),
    "zeros": torch.zeros_like,
    "same": lambda x: x[:1].expand_as(x),
    "opposite": lambda x: x * torch.tensor([1, -1]).repeat(len(x) // 2)[:, None],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", COMPONENTS)
def test_finite_batches_give_finite_values_and_gradients(name, shape):
    """Of any size, of one class, of pairs, and of as many classes as images."""
    component = COMPONENTS[name].eval()
    x, labels = batch((6, 4))
    x = SHAPES[shape](x)
    for y, count in itertools.product((labels, 0 * labels, torch.arange(24) // 2, torch.arange(24)), (0, 1, 3, 24)):
        points = x[:count].clone().requires_grad_()
        value = component(points, y[:count])
        value.sum().backward()
        assert value.isfinite().all(), count
        assert points.grad is None or points.grad.isfinite().all(), count


TAKES_MORE = [n for n, each in COMPONENTS.items() if "indices_tuple" in getattr(each, "capabilities", ())]


@pytest.mark.parametrize("name", TAKES_MORE)
def test_bad_rows_without_partners_show_too(name):
    """Beside a tuple that leaves the row out, beside references, and among references, of a class of its own."""
    component = COMPONENTS[name].eval()
    (x, labels) = batch((6, 4))
    (others, lone) = batch((6, 4), lone=True)
    references = x.flip(0)
    spoilt = x.clone()
    spoilt[23, 1] = others[5, 2] = math.nan
    calls = [(spoilt, labels, tuple(index[:2] for index in BatchHardMiner()(x, labels)))]
    if "references" in component.capabilities:
        calls += [(spoilt, labels, None, references, labels.flip(0)), (x, labels, None, others, lone)]
    for call in calls:
        assert not component(*call).isfinite()


@pytest.mark.parametrize("name", COMPONENTS)
def test_boolean_labels_are_two_classes(name):
    x, labels = batch((2, 6))
    component = COMPONENTS[name].eval()
    torch.testing.assert_close(component(x, labels.bool()), component(x, labels), rtol=0, atol=0)
    if "references" in registry.capabilities(component):
        references = x.flip(0) * 1.1
        of_references = labels.flip(0)
        found = component(x, labels.bool(), None, references, of_references.bool())
        torch.testing.assert_close(found, component(x, labels, None, references, of_references), rtol=0, atol=0)
    miner = getattr(component, "miner", None)
    if "references" in registry.capabilities(miner):
        one, other = (miner(x, y, x.flip(0), y.flip(0)) for y in (labels, labels.bool()))
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# torch.func and forward mode


@pytest.mark.parametrize("name", COMPONENTS)
def test_torch_func_and_forward_mode_agree_with_backward(name):
    if name.startswith("distance pddm"):
        pytest.skip("torch has no forward mode over the gradient of a mask's assignment; losses and miners avoid it")
    in_classes = name in ("loss n-pair-angular {'tile_size': 7}", "loss tiled-triplet-margin {'tile_size': 7}")
    if in_classes and torch.__version__.startswith("2.6."):
        pytest.skip("torch 2.6 cannot list the values of a tensor under torch.func, as tiles by class need")
    component = copy.deepcopy(COMPONENTS[name]).eval().double()
    (x, labels) = batch((4, 3))
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
        pml_ext.AngularLoss(alpha=70),
        pml_ext.AngularTripletLoss(),
        pml_ext.NPairAngularLoss(alpha=70),
        TripletMarginLoss(distance=pml_ext.PDDMDistance(SIZE, 8, 0.0, True, 3000)),
    ],
)
def test_parts_change_nothing_and_torch_func_keeps_them(loss, monkeypatch):
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


X = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) // 3
KNOWN = PairStatistics(mean_pos=0.7, std_pos=0.15, mean_neg=0.2, std_neg=0.12, num_pos=7, num_neg=112)


def pddm(**settings):
    return PDDMLoss(PDDMDistance(5), **settings)


def pool(labels=tuple(range(4)) * 5, batch_size=12, length=120, **settings):
    return HardNegativePoolSampler(labels, batch_size, length, **settings)


ANGLE = "alpha of AngularLoss must be a finite number above 0 and below 90, not"
CALLS = ("forward", "compute_mat", "pairwise_distance")
QUERY = r"query_emb must have embedding_size=6 columns; got shape \(12, 5\)"
REFERENCE = r"ref_emb must have embedding_size=5 columns; got shape \(12, 4\)"
VALUES = [
    *((lambda alpha=alpha: AngularLoss(alpha=alpha), ANGLE) for alpha in (0.0, 90.0, math.nan)),
    (lambda: NPairLoss(distance=LpDistance()), "takes no distance; normalize_embeddings=False"),
    (lambda: AngularLoss()(X, Y[:5]), r"labels must be a tensor of integers of shape \(12,\)"),
    (lambda: CBMLLoss(delta="rate"), "delta of CBMLLoss must be a finite number at least 0 or 'ratio', not 'rate'"),
    (lambda: CBMLLoss(distance=LpDistance()), "CBMLLoss needs a similarity.*got distance=LpDistance"),
    (lambda: CBMLLoss(statistics=(0.7, 0.1, 0.2, 0.1), beta_neg=0.1), "leave those out"),
    (lambda: CBMLLoss.from_statistics(PairStatistics(0.2, 0.9, 0.1, 0.9, 90, 1)), "gives beta_pos"),
    (lambda: CBMLLoss.from_statistics(KNOWN, delta="ratio"), "has delta in the exponents"),
    (lambda: PairStatistics(0.2, 0.1, 0.7, 0.1), "mean_pos of PairStatistics must be above mean_neg"),
    (lambda: PairStatistics.of(X, torch.arange(12)), "needs at least one positive and one negative pair"),
    (lambda: SoftmaxLoss(2, 5, class_labels=[7, 9])(X, Y + 7), r"have no class: SoftmaxLoss .* with labels 7 to 9"),
    (lambda: SoftmaxLoss(4, 5)(X, Y, (Y[:1],) * 3), "no indices_tuple"),
    (lambda: DensityRegularizer(3, base_density=[0.1]), "base_density must have one value for each of the 3 classes"),
    *((lambda call=call: getattr(PDDMDistance(6), call)(X, X[:, :4]), QUERY) for call in CALLS),
    *((lambda call=call: getattr(PDDMDistance(5), call)(X, X[:, :4]), REFERENCE) for call in CALLS),
    (lambda: pddm()(X, Y, ref_emb=X.clone(), ref_labels=Y), "takes no references"),
    (lambda: pddm(per_class=True)(X, None, (Y[:0],) * 4), "needs labels"),
    (lambda: HardQuadrupletMiner(num_quadruplets=0), "num_quadruplets of HardQuadrupletMiner must be a whole number"),
    (lambda: BatchAllTripletLoss(distance=CosineSimilarity()), "needs a distance, where smaller means nearer"),
    (lambda: AnchorSwapMiner(MultiSimilarityMiner())(X, Y), "MultiSimilarityMiner gives pairs"),
    (lambda: pool(batch_size=10), "multiple of 3"),
    (lambda: pool([0, 0, 0]), "two classes"),
    (lambda: pool([0, 1, 2]), "two images"),
    (lambda: WholeClassSampler([0, 1] + [3] * 7, 7), "class 3 has 7 images and would fill a batch of 7 alone"),
    (lambda: WholeClassSampler([0, 0, 1], 40), "between 1 and the 3 images"),
]
TYPES = [
    (lambda: CBMLLoss(distance="cosine"), "distance of CBMLLoss must be a distance of pytorch-metric-learning"),
    (lambda: PDDMLoss(LpDistance()), r"must be a PDDMDistance, for example PDDMDistance\("),
]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [(call, error, text) for error, rows in ((ValueError, VALUES), (TypeError, TYPES)) for call, text in rows],
)
def test_what_is_refused_is_named(call, error, text):
    with pytest.raises(error, match=text):
        call()
