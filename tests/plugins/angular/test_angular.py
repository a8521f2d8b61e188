"""The angular losses against loops written from the equations, and against PML's."""

import functools
import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import normalize

from pml_ext import AngularLoss, AngularTripletLoss, NPairAngularLoss, NPairLoss
from pml_ext.losses.classes import class_members
from pml_ext.pairwise import pair_masks
from pml_ext.testing import check_component
from pml_ext_angular import functional

from ..cbml import loops

ALL = [AngularLoss, AngularTripletLoss, NPairLoss, NPairAngularLoss]
LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 3, 4, 4, 4, 4])


def points(count=12, size=5, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(count, size, generator=generator, dtype=torch.float64)).requires_grad_()


def pair_sets(labels, ref_labels=None, indices_tuple=None):
    """{(a, p)} and {a: {n}}."""
    pairs = loops.pairs_from_labels(labels, ref_labels) if indices_tuple is None else loops.pairs_of(indices_tuple)
    return pairs[0], {i: [j for k, j in pairs[1] if k == i] for i in range(len(labels))}


def slow(
    kind,
    x,
    labels,
    *,
    alpha=45.0,
    angular_weight=2.0,
    normalize_embeddings=True,
    indices_tuple=None,
    ref_emb=None,
    ref_labels=None,
):
    """Eq. (6), (8), (9), (10), one term after the other."""
    r = x if ref_emb is None else ref_emb
    if normalize_embeddings:
        x = x / x.norm(dim=1, keepdim=True)
        r = r / r.norm(dim=1, keepdim=True)
    positives, negatives = pair_sets(labels, ref_labels, indices_tuple)
    t = math.tan(math.radians(alpha)) ** 2

    def log_one_plus_sum(exponents):
        return torch.stack([0 * x.sum(), *exponents]).logsumexp(0)

    def angular(a, p):
        return log_one_plus_sum(4 * t * (x[a] + r[p]) @ r[n] - 2 * (1 + t) * x[a] @ r[p] for n in negatives[a])

    def n_pair(a, p):
        return log_one_plus_sum(x[a] @ r[n] - x[a] @ r[p] for n in negatives[a])

    def hinge(a, p, n):
        center = (x[a] + r[p]) / 2
        return ((x[a] - r[p]).square().sum() - 4 * t * (r[n] - center).square().sum()).clamp(min=0)

    if kind is AngularTripletLoss:
        if indices_tuple is not None and len(indices_tuple) == 3:
            triplets = list(zip(*(index.tolist() for index in indices_tuple), strict=True))
        else:
            triplets = [(a, p, n) for a, p in positives for n in negatives[a]]
        values = [hinge(*triplet) for triplet in triplets]
    elif kind is AngularLoss:
        values = [angular(a, p) for a, p in positives]
    elif kind is NPairLoss:
        values = [n_pair(a, p) for a, p in positives]
    else:
        values = [n_pair(a, p) + angular_weight * angular(a, p) for a, p in positives]
    return torch.stack(values).mean() if values else 0 * x.sum()


@pytest.mark.parametrize("kind", ALL)
def test_each_loss_equals_a_slow_loop(kind):
    """With a miner's pairs and triplets, and with references, too."""
    angles = {} if kind is NPairLoss else {"alpha": [45.0, 20.0, 70.0]}
    check_component(
        kind,
        reference=functools.partial(slow, kind),
        settings={"normalize_embeddings": [True, False], **angles},
        checks=["check_reference", "check_settings"],
    )


def test_statistics_equal_a_slow_loop():
    x = points().detach()
    loss = AngularLoss(alpha=35, collect_stats=True)
    loss(x, LABELS)
    unit = x / x.norm(dim=1, keepdim=True)
    positives, negatives = pair_sets(LABELS)
    angles = [
        math.degrees(math.atan2((unit[a] - unit[p]).norm(), 2 * (unit[n] - (unit[a] + unit[p]) / 2).norm()))
        for a, p in positives
        for n in negatives[a]
    ]
    assert loss.average_angle.item() == pytest.approx(sum(angles) / len(angles), rel=1e-9)
    assert loss.over_alpha.item() == pytest.approx(sum(angle > 35 for angle in angles) / len(angles))
    assert not loss.average_angle.requires_grad
    both = NPairAngularLoss(collect_stats=True)
    assert both(x, LABELS).item() == pytest.approx((both.n_pair_loss + 2 * both.angular_loss).item(), rel=1e-9)


@pytest.mark.parametrize(
    ("labels", "by_class"),
    [
        (LABELS, True),
        (torch.cat([torch.zeros(12), torch.arange(1, 29)]), False),  # of very different size
        (torch.arange(40) % 10, True),
        (torch.randint(6, (40,), generator=torch.Generator().manual_seed(0)), True),
    ],
)
@pytest.mark.parametrize("kind", [AngularLoss, NPairAngularLoss])
def test_products_by_class_equal_the_loop(kind, labels, by_class, monkeypatch):
    labels = labels.long()
    classes = class_members(labels, small=0)
    assert class_members(labels) is None
    assert (classes is not None) == by_class
    if classes is not None:
        assert torch.equal(classes.members[classes.class_of, classes.place], torch.arange(len(labels)))
    monkeypatch.setattr("pml_ext_angular.losses.class_members", lambda labels: class_members(labels, small=0))
    x = points(len(labels), 6)
    value = kind()(x, labels)
    wanted = slow(kind, x, labels)
    torch.testing.assert_close(value, wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(*(torch.autograd.grad(each, x)[0] for each in (value, wanted)), rtol=1e-9, atol=1e-9)


FEW = torch.tensor([0, 0, 1, 1, 1, 2])
UNIT = normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
PAIRS = torch.tensor([0, 1, 2, 3, 4, 4]), torch.tensor([1, 0, 4, 2, 2, 3])


def between_of(similarity):
    """The products of distinct partners, and each partner's row in them."""

    def between(partners):
        used, rows = torch.unique(partners, return_inverse=True)
        return similarity[used], rows

    return between


@pytest.mark.parametrize("with_n_pair", [False, True])
@pytest.mark.parametrize("small", [0, 100])
def test_products_have_derivatives_of_any_order_and_mode(small, with_n_pair):
    similarity = (UNIT @ UNIT.T).requires_grad_()
    mask = FEW[:, None] != FEW
    classes = class_members(FEW, small=small)

    def compute(matrix):
        return functional.log_sums_of_products(matrix, mask, classes, *PAIRS, 0.5, with_n_pair=with_n_pair)

    assert gradcheck(compute, similarity, check_forward_ad=True)
    assert gradgradcheck(compute, similarity)


SUMS = {
    "pairs": lambda matrix, mask: functional.log_sums_of_pairs(matrix, mask, *PAIRS),
    "rows": lambda matrix, mask: functional.log_sums_of_rows(matrix, between_of(matrix), mask, *PAIRS, 1.0),
    "products": lambda matrix, mask: functional.log_sums_of_products(matrix, mask, None, *PAIRS, 4.0),
    "products by class": lambda matrix, mask: functional.log_sums_of_products(
        matrix, mask, class_members(FEW, small=0), *PAIRS, 0.125
    ),
    "products with N-pair": lambda matrix, mask: functional.log_sums_of_products(
        matrix, mask, None, *PAIRS, 1.0, with_n_pair=True
    ),
}


@pytest.mark.parametrize("sums", SUMS.values(), ids=SUMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pairs_without_negatives_have_no_gradient(sums, dtype):
    """Neither a first nor a second one; the loss is the logarithm of 1."""
    similarity = (UNIT @ UNIT.T).to(dtype).requires_grad_()
    found = sums(similarity, torch.zeros(6, 6, dtype=torch.bool))
    assert (found < -1e36).all()
    loss = torch.nn.functional.softplus(found).sum()
    assert loss == 0
    (gradient,) = torch.autograd.grad(loss, similarity, create_graph=True)
    assert gradient.tolist() == torch.zeros(6, 6).tolist()
    assert not torch.autograd.grad(gradient.square().sum() + gradient.sum(), similarity)[0].any()


GROUPED = {
    "in order": (torch.tensor([3, 3, 3, 0, 0, 0, 2**40, 2**40, 2**40, -1, -1, -1]), 3),
    "in turns": (torch.arange(12) % 3, 12),
    "of different size": (LABELS, 12),
    "of different size, the smallest first": (torch.tensor([0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]), 12),
    "a class twice": (torch.tensor([0, 0, 1, 1, 0, 0, 2, 2, 3, 3, 4, 4]), 12),
    "one class": (torch.zeros(12, dtype=torch.long), 12),
    "two classes": (LABELS.clamp(max=1), 12),
}


@pytest.mark.parametrize(("labels", "size"), [*GROUPED.values(), (torch.arange(12), 1)])
def test_classes_of_equal_size_are_found(labels, size):
    assert functional.rows_of_each_class(labels) == size


@pytest.mark.parametrize("kind", [NPairLoss, AngularLoss, NPairAngularLoss])
def test_a_small_batch_needs_no_values_of_labels(kind):
    with FakeTensorMode():
        x = torch.randn(12, 5, requires_grad=True)
        kind()(x, torch.arange(12) // 3).backward()
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("labels", [labels for labels, _ in GROUPED.values()], ids=GROUPED)
@pytest.mark.parametrize("weights", [(1, 0), (0, 1), (1, 0.7)])
def test_a_sum_of_cosines_has_derivatives_of_any_order_and_mode(labels, weights):
    unit = normalize(points().detach())
    similarity = (unit @ unit.T).requires_grad_()
    masks = pair_masks(similarity, labels).double()

    def compute(similarity):
        return functional.sums_of_cosines((similarity + similarity.T) / 2, masks, labels, 0.5, weights).sum()

    assert gradcheck(compute, similarity, check_forward_ad=True)
    assert gradgradcheck(compute, similarity)


@pytest.mark.parametrize("loss", [NPairLoss(), AngularLoss(alpha=36), NPairAngularLoss(alpha=36, angular_weight=0.7)])
@pytest.mark.parametrize("labels", [labels for labels, _ in GROUPED.values()], ids=GROUPED)
def test_a_sum_of_cosines_equals_its_pairs(loss, labels):
    x = points()
    found = loss(x, labels)
    loss.collect_stats = True  # which needs the pairs
    expected = loss(x, labels)
    loss.collect_stats = False
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-14)
    (gradient,) = torch.autograd.grad(found, x, retain_graph=True)  # as it was computed
    slopes = [torch.autograd.grad(each, x, create_graph=True)[0] for each in (found, expected)]
    torch.testing.assert_close(gradient, slopes[1], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-14)
    curvatures = [torch.autograd.grad(each.square().sum(), x)[0] for each in slopes]
    torch.testing.assert_close(*curvatures, rtol=1e-10, atol=1e-13)
