"""What all losses and wrappers keep: the order of arguments, full precision, PML's values; sums, slices and views."""

import functools

import pytest
import torch
from pytorch_metric_learning import distances, losses, miners, reducers
from pytorch_metric_learning.losses import BaseMetricLossFunction
from pytorch_metric_learning.regularizers import CenterInvariantRegularizer, LpRegularizer

from pml_ext import (
    CBMLLoss,
    CrossBatchMemory,
    DensityRegularizer,
    DistributedLoss,
    HardPairMiner,
    MetricVarianceRegularizer,
    MultipleLosses,
    NegativesOnly,
    NestedLoss,
    NPairLoss,
    PDDMDistance,
    PDDMLoss,
    RegularizedLoss,
    SelfSupervisedLoss,
    SharedLabel,
    TiledMultiSimilarityLoss,
    WithRelation,
    registry,
)
from pml_ext.distances import GramCosineSimilarity, GramDotProductSimilarity
from pml_ext.losses.calling import WrapperCapabilities, call_loss, check_module
from pml_ext.losses.full_precision import FullPrecisionForward
from pml_ext.testing import SecondDevice
from pml_ext_cbml.softmax import SoftmaxLoss
from pml_ext_density.clustering import ClusteringLoss

from .registered import registered

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
LABELS = torch.arange(12) % 4


def test_the_sum_equals_that_of_pml():
    parts = [losses.ContrastiveLoss(), losses.TripletMarginLoss()]
    mined = [None, miners.BatchHardMiner()]
    named = {"a": parts[0], "b": parts[1]}, {"b": mined[1]}, {"a": 0.5, "b": 2}
    for arguments in ((parts,), (parts, None, [1, 0.3]), (parts, mined, [0, 2.0]), named):
        torch.testing.assert_close(MultipleLosses(*arguments)(X, LABELS), losses.MultipleLosses(*arguments)(X, LABELS))


def test_references_reach_losses_and_miners():
    y = X.detach() + 0.1
    others = LABELS.flip(0)
    miner = miners.MultiSimilarityMiner()
    found = MultipleLosses([CBMLLoss(), losses.ContrastiveLoss()], [None, miner], [1, 0.5])(X, LABELS, None, y, others)
    expected = CBMLLoss()(X, LABELS, None, y, others)
    expected = expected + 0.5 * losses.ContrastiveLoss()(X, LABELS, miner(X, LABELS, y, others), y, others)
    torch.testing.assert_close(found, expected)


# PML's losses by our distances


def test_pmls_dot_product_normalizes_and_ours_does_not():
    """So that PML's N-pairs loss has another value where our dot product stands for PML's."""
    raw = losses.NPairsLoss(distance=distances.DotProductSimilarity(normalize_embeddings=False))(X, LABELS)
    torch.testing.assert_close(losses.NPairsLoss(distance=GramDotProductSimilarity())(X, LABELS), raw)
    torch.testing.assert_close(
        losses.NPairsLoss(distance=GramCosineSimilarity())(X, LABELS), losses.NPairsLoss()(X, LABELS)
    )


# Two views of each image


def views():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(10, 4, generator=generator)
    return x.requires_grad_(), (x + 0.1 * torch.randn(10, 4, generator=generator)).detach()


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("name", losses.SelfSupervisedLoss.supported_losses())
def test_views_under_pmls_losses_have_pmls_values(name, symmetric):
    loss = getattr(losses, name)()
    found, expected = (kind(loss, symmetric)(*views()) for kind in (SelfSupervisedLoss, losses.SelfSupervisedLoss))
    assert found.requires_grad
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def fitting():
    """Losses of ours that views fit, with wrappers; ``softmax`` has classes of its own."""
    built = {name: loss for name, loss in registered().items() if name != "softmax"}
    regularized = RegularizedLoss(CBMLLoss(), MetricVarianceRegularizer(), weight=0.5)
    return built | {"regularized": regularized, "two": MultipleLosses([CBMLLoss(), losses.ContrastiveLoss()])}


@pytest.mark.filterwarnings("ignore:a class of the batch has 2 images")
@pytest.mark.parametrize("name", list(fitting()))
def test_views_under_registered_losses_and_wrappers(name):
    x, y = views()
    loss = fitting()[name].eval()
    labels = torch.arange(10)
    torch.testing.assert_close(SelfSupervisedLoss(loss)(x, y), loss(torch.cat([x, y]), torch.cat([labels, labels])))
    if "references" in registry.capabilities(loss):
        one_sided = SelfSupervisedLoss(loss, symmetric=False)
        torch.testing.assert_close(one_sided(x, y), loss(x, labels, None, y, labels.clone()))
    else:
        with pytest.raises(TypeError, match="takes no references; type symmetric=True"):
            SelfSupervisedLoss(loss, symmetric=False)


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (losses.VICRegLoss(), "takes no labels$"),
        (losses.ProxyAnchorLoss(3, 4), "ProxyAnchorLoss has a fixed number of classes"),
        (RegularizedLoss(CBMLLoss(), DensityRegularizer(3)), "DensityRegularizer has a fixed number of classes"),
        (MultipleLosses([CBMLLoss(), CrossBatchMemory(CBMLLoss(), 4)]), "CrossBatchMemory compares with past batches"),
        (DistributedLoss(CBMLLoss()), r"it goes around: DistributedLoss\(SelfSupervisedLoss\(loss\)\)"),
    ],
)
def test_losses_that_views_do_not_fit(loss, text):
    with pytest.raises(TypeError, match=text):
        SelfSupervisedLoss(loss)


def loop_over_views(views, anchors, temperature=0.1):
    """NT-Xent with the views of one image as positives: its pairs one after the other, from the equation."""
    rows = [(image, view) for view in range(len(views)) for image in range(len(views[0]))]
    unit = {(image, view): views[view][image] / views[view][image].norm() for image, view in rows}
    terms = []
    for anchor in rows:
        if anchor[1] not in anchors:
            continue
        compared = [row for row in rows if (row[1] > 0 if anchors == [0] else row != anchor)]
        exponents = {row: (unit[anchor] @ unit[row] / temperature).exp() for row in compared}
        negatives = sum(exponents[row] for row in compared if row[0] != anchor[0])
        for row in compared:
            if row[0] == anchor[0]:
                terms.append(-(exponents[row] / (exponents[row] + negatives)).log())
    return sum(terms) / len(terms)


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("kind", [list, tuple])
def test_several_views_have_the_values_of_a_loop(count, symmetric, kind):
    generator = torch.Generator().manual_seed(count)
    views = torch.randn(count, 6, 4, generator=generator, dtype=torch.float64).requires_grad_()
    loss = SelfSupervisedLoss(losses.NTXentLoss(temperature=0.1), symmetric)(views[0], kind(views[1:]))
    expected = loop_over_views(views, list(range(count)) if symmetric else [0])
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    found, wanted = (torch.autograd.grad(value, views)[0] for value in (loss, expected))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    if count == 2:
        torch.testing.assert_close(SelfSupervisedLoss(losses.NTXentLoss(0.1), symmetric)(*views), loss, rtol=0, atol=0)


def test_views_that_do_not_fit():
    x, y = views()
    for given in (y[:9], [y, y[:9]]):
        with pytest.raises(ValueError, match=r"each view .* in its row; got \(10, 4\) embeddings and \(9, 4\)"):
            SelfSupervisedLoss(CBMLLoss())(x, given)
    for given in (([x, y, y], x), ((x, y), None), (x, [])):
        with pytest.raises(TypeError, match=r"needs one view as embeddings.* type loss\(views\[0\], views\[1:\]\)"):
            SelfSupervisedLoss(CBMLLoss())(*given)
    with pytest.raises(TypeError, match="ref_emb must be a floating point tensor"):
        SelfSupervisedLoss(CBMLLoss())(x, None)
    with pytest.raises(TypeError, match="ref_emb of CBMLLoss must be one tensor"):
        DistributedLoss(CBMLLoss())(x, torch.arange(10), ref_emb=[y, y])


@pytest.mark.parametrize("name", ["cbml", "tiled-multi-similarity"])
def test_a_step_waits_for_no_result(name):
    """The others list positive pairs once, unless they are compiled; see docs/scale.md."""
    with SecondDevice() as second:
        loss = second.move(registry.build(name, "loss"))
        embeddings = torch.randn(24, 8).to(second.device).requires_grad_()
        labels = torch.arange(24).to(second.device)
        loss(embeddings, labels // 4).backward()
        second.clear()
        loss(embeddings, labels // 4).backward()
        assert not second.waits
        assert not second.shapes
        embeddings.nonzero()
        assert second.shapes


REGULARIZED = functools.partial(RegularizedLoss, CBMLLoss(), MetricVarianceRegularizer())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: REGULARIZED(distance=distances.LpDistance()), "give it to the loss"),
        (lambda: SoftmaxLoss(2, 4, distance=distances.LpDistance()), "takes no distance"),
        (lambda: ClusteringLoss(distance=distances.LpDistance()), "takes no distance"),
        (lambda: REGULARIZED(reducer=reducers.MeanReducer()), "RegularizedLoss has no reducer of its own"),
    ],
)
def test_distances_and_reducers_without_effect_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


class Warmer(distances.CosineSimilarity):
    """A similarity whose class has a forward of its own."""

    def forward(self, query_emb, ref_emb=None):
        return super().forward(query_emb, ref_emb) / 2


@pytest.mark.parametrize("references", [False, True])
def test_a_distance_with_its_own_forward_in_tiles(references):
    given = (None, X.detach() + 0.1, LABELS.flip(0)) if references else ()
    whole, tiled = (TiledMultiSimilarityLoss(distance=Warmer(), tile_size=size) for size in (len(X), 3))
    torch.testing.assert_close(tiled(X, LABELS, *given), whole(X, LABELS, *given))
    wanted = losses.MultiSimilarityLoss(distance=Warmer())(X, LABELS, *given)
    torch.testing.assert_close(whole(X, LABELS, *given), wanted)


WRAPPED = [
    CBMLLoss(),
    MultipleLosses([CBMLLoss()]),
    DistributedLoss(CBMLLoss()),
    CrossBatchMemory(CBMLLoss(), 4),
    RegularizedLoss(CBMLLoss(), MetricVarianceRegularizer()),
]


@pytest.mark.parametrize("loss", WRAPPED, ids=lambda loss: type(loss).__name__)
def test_arguments_have_the_order_of_pml(loss):
    """A loss has the tuple before the references, a miner has none; who mixes the two up is told."""
    y = X.detach() + 0.1
    others = LABELS.flip(0)
    mined = HardPairMiner()(X, LABELS, y, others)
    if not isinstance(loss, CrossBatchMemory):
        by_name = loss(X, LABELS, indices_tuple=mined, ref_emb=y, ref_labels=others)
        torch.testing.assert_close(loss(X, LABELS, mined, y, others), by_name)
    text = r"indices_tuple, the third argument .* \(12, 4\).* type ref_emb=..., ref_labels="
    with pytest.raises(TypeError, match=text):
        loss(X, LABELS, y, others)


@pytest.mark.parametrize("name", sorted(set(registered()) - {"clustering", "softmax"}))
def test_a_tuple_replaces_the_labels(name):
    """Our angular and N-pair losses take one, where PML's need labels all the same."""
    loss = registered()[name].eval()
    mined = miners.BatchHardMiner()(X, LABELS)
    torch.testing.assert_close(loss(X, indices_tuple=mined), loss(X, LABELS, mined))


LISTED = {
    "arrays": lambda mined: tuple(index.numpy() for index in mined),
    "int32": lambda mined: [index.numpy().astype("int32") for index in mined],
    "lists": lambda mined: tuple(index.tolist() for index in mined),
}


def listing():
    """Losses and wrappers that take an ``indices_tuple``."""
    found = {name: loss for name, loss in registered().items() if "indices_tuple" in registry.capabilities(loss)}
    found["relation"] = CBMLLoss(relation=NegativesOnly())
    found["relation around PML"] = WithRelation(losses.ContrastiveLoss(), NegativesOnly())
    parts = {"of two": MultipleLosses([losses.NTXentLoss(), CBMLLoss()]), "distributed": DistributedLoss(CBMLLoss())}
    parts["regularized"] = RegularizedLoss(losses.NTXentLoss(), MetricVarianceRegularizer())
    parts["memory"] = CrossBatchMemory(losses.NTXentLoss(), 4, 12)
    return found | parts


@pytest.mark.parametrize("form", LISTED)
@pytest.mark.parametrize("name", listing())
def test_a_tuple_of_arrays_or_lists(name, form):
    loss = listing()[name].eval()
    if isinstance(loss, CrossBatchMemory):
        loss.train()
    for miner in (miners.BatchHardMiner(), HardPairMiner()):
        mined = miner(X, LABELS)
        torch.testing.assert_close(loss(X, LABELS, LISTED[form](mined)), loss(X, LABELS, mined))


def test_a_tuple_of_something_else():
    for loss in (CBMLLoss(), CrossBatchMemory(losses.NTXentLoss(), 4, 12), MultipleLosses([losses.NTXentLoss()])):
        with pytest.raises(TypeError, match="must hold tensors, arrays or lists of integers; got 'a' .str., "):
            loss(X, LABELS, ("a", [1], [2]))


def test_a_class_is_no_module():
    with pytest.raises(TypeError, match="loss of CrossBatchMemory must be an object such as .*; got <class .*CBML"):
        CrossBatchMemory(CBMLLoss, 4)
    with pytest.raises(TypeError, match=r"miner of int must be an object such as HardPairMiner\(\); got None"):
        check_module(3, "miner", None, "HardPairMiner()")


def test_an_instance_has_its_loss_relation_alone():
    class Wrapper:
        capabilities = WrapperCapabilities({"labels", "references"}, lambda self: self.of)
        of = ("labels", "relation")

    assert Wrapper.capabilities == {"labels", "references"}
    assert Wrapper().capabilities == {"labels"}  # a wrapper that takes no relation has none
    relation = NegativesOnly()
    assert MultipleLosses([CBMLLoss(relation=relation)]).relation is relation
    assert RegularizedLoss(losses.ContrastiveLoss(), CenterInvariantRegularizer()).relation is None


def test_arguments_that_a_loss_lacks_are_omitted():
    pairs = losses.VICRegLoss()
    torch.testing.assert_close(call_loss(pairs, X, ref_emb=X + 0.1), pairs(X, ref_emb=X + 0.1))
    with pytest.raises(TypeError, match="enqueue_mask"):
        call_loss(losses.ContrastiveLoss(), X, torch.arange(12), enqueue_mask=torch.ones(12, dtype=torch.bool))


def test_never_sums_in_half_precision():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = MultipleLosses([losses.MultiSimilarityLoss(), CBMLLoss()])(X, LABELS)
    assert value.dtype == torch.float32


def short_rows(seed):
    """16 rows of float16 whose lengths are between 1e-8 and 1, and labels."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.nn.functional.normalize(torch.randn(16, 4, generator=generator))
    rows = rows * 10 ** (-8 * torch.rand(16, 1, generator=generator))
    return rows.half().requires_grad_(), torch.randint(0, 6, (16,), generator=generator)


@pytest.mark.filterwarnings("ignore:a class of the batch has")
@pytest.mark.parametrize("inside_memory", [False, True])
@pytest.mark.parametrize("name", list(registered()))
def test_short_rows_of_float16_have_finite_gradients(name, inside_memory):
    loss = registered()[name]
    if inside_memory and "references" not in registry.capabilities(loss):
        pytest.skip("takes no references")
    loss = CrossBatchMemory(loss, 4, 32) if inside_memory else loss
    for seed in range(20):
        x, labels = short_rows(seed)
        (gradient,) = torch.autograd.grad(loss(x, labels), x)
        assert gradient.isfinite().all()


class Labeled(FullPrecisionForward, BaseMetricLossFunction):
    """A loss that takes labels alone, and keeps what it was given."""

    capabilities = frozenset({"labels"})

    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        self.given = embeddings, labels, torch.is_autocast_enabled("cpu")
        value = embeddings.square().sum(1)
        return {"loss": {"losses": value, "indices": torch.arange(len(value)), "reduction_type": "element"}}

    def _sub_loss_names(self):
        return ["loss"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_loss_gets_full_precision_without_autocast(dtype):
    loss = Labeled()
    x = torch.tensor([[300.0, 1.0], [200.0, 2.0]], dtype=dtype)  # float16 ends at 65,504
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(x, torch.tensor([True, False]))
    embeddings, labels, autocast = loss.given
    assert embeddings.dtype == value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert (labels.dtype, autocast) == (torch.int64, False)
    assert value == (300**2 + 1 + 200**2 + 4) / 2


def test_what_a_loss_does_not_take_is_refused():
    for given in ((X,), (X, LABELS, (LABELS, LABELS, LABELS)), (X, LABELS, None, X, LABELS)):
        with pytest.raises(ValueError, match="Labeled takes embeddings and labels, no indices_tuple and no references"):
            Labeled()(*given)
    with pytest.raises(TypeError, match=r"labels must be a tensor of integers .* type labels.long\(\)"):
        Labeled()(X, LABELS.float())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_bad_number_anywhere_shows_in_the_value(bad):
    x = X.detach().clone()
    x[5, 2] = bad
    loss = RegularizedLoss(losses.TripletMarginLoss(), MetricVarianceRegularizer())
    assert loss(x, torch.arange(12)).isnan()  # no row has a partner
    assert loss(x.nan_to_num(0, 0, 0), torch.arange(12), None, x, LABELS).isnan()


def test_short_float16_embeddings_keep_their_gradients():
    """The least length of a row is for losses that normalize; a wrapper asks the loss inside."""
    x = torch.zeros(8, 4).half()
    x[:, 0] = torch.arange(8) * 2.0**-10
    x.requires_grad_()
    labels = torch.arange(8) // 2
    raw = NPairLoss(normalize_embeddings=False)
    regularizer = LpRegularizer()
    wanted = torch.autograd.grad(raw(x.float(), labels) + regularizer(x.float()), x)[0]
    found = torch.autograd.grad(RegularizedLoss(raw, regularizer)(x, labels), x)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-4)


def float64_batch(size=8, count=12, seed=0):
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
    x, labels = float64_batch()
    references, ref_labels = float64_batch(count=9, seed=1)
    mined = miners.MultiSimilarityMiner()(x, labels)
    nested = NestedLoss(loss, (2, 4, 8), weights)
    for named in ({}, {"indices_tuple": mined}, {"ref_emb": references.detach(), "ref_labels": ref_labels}):
        expected = slices(loss, (2, 4, 8), weights or (1, 1, 1), x, labels, **named)
        found = nested(x, labels, **named)
        assert found.item() == pytest.approx(expected.item(), abs=1e-12)
        gradients = [torch.autograd.grad(value, x, retain_graph=True)[0] for value in (found, expected)]
        assert torch.allclose(*gradients, atol=1e-12, rtol=0)


def test_wrappers_go_around_and_inside():
    x, labels = float64_batch()
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
        (lambda: NestedLoss(CBMLLoss(), (2, 4))(*float64_batch()), ValueError, "got 4 for embeddings of 8"),
    ],
)
def test_what_does_not_fit_is_refused(build, error, text):
    with pytest.raises(error, match=text):
        build()
