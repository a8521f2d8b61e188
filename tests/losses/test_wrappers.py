"""What all losses keep: bad input, short rows, PML's losses by our distances; MultipleLosses and views."""

import pytest
import torch
from pytorch_metric_learning import distances, losses, miners

from pml_ext import (
    CBMLLoss,
    CrossBatchMemory,
    DensityRegularizer,
    DistributedLoss,
    HardPairMiner,
    MetricVarianceRegularizer,
    MultipleLosses,
    NegativesOnly,
    RegularizedLoss,
    SelfSupervisedLoss,
    WithRelation,
    registry,
)
from pml_ext.distances import GramCosineSimilarity, GramDotProductSimilarity
from pml_ext.testing import SecondDevice


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(12, 4, generator=generator).requires_grad_(), torch.arange(12) % 4


def test_is_pmls_sum(batch):
    parts = [losses.ContrastiveLoss(), losses.TripletMarginLoss()]
    mined = [None, miners.BatchHardMiner()]
    for arguments in ((parts,), (parts, None, [1, 0.3]), (parts, mined, [0, 2.0])):
        torch.testing.assert_close(MultipleLosses(*arguments)(*batch), losses.MultipleLosses(*arguments)(*batch))
    named = {"a": parts[0], "b": parts[1]}
    arguments = (named, {"b": mined[1]}, {"a": 0.5, "b": 2})
    torch.testing.assert_close(MultipleLosses(*arguments)(*batch), losses.MultipleLosses(*arguments)(*batch))


def test_references_reach_losses_and_miners(batch):
    x, labels = batch
    y, others = x.detach() + 0.1, labels.flip(0)
    miner = miners.MultiSimilarityMiner()
    found = MultipleLosses([CBMLLoss(), losses.ContrastiveLoss()], [None, miner], [1, 0.5])(x, labels, None, y, others)
    expected = CBMLLoss()(x, labels, None, y, others)
    mined = miner(x, labels, y, others)
    expected = expected + 0.5 * losses.ContrastiveLoss()(x, labels, mined, y, others)
    torch.testing.assert_close(found, expected)


def test_never_sums_in_half_precision(batch):
    x, labels = batch
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = MultipleLosses([losses.MultiSimilarityLoss(), CBMLLoss()])(x, labels)
    assert value.dtype == torch.float32


WRAPPED = [
    CBMLLoss(),
    MultipleLosses([CBMLLoss()]),
    DistributedLoss(CBMLLoss()),
    CrossBatchMemory(CBMLLoss(), 4),
    RegularizedLoss(CBMLLoss(), MetricVarianceRegularizer()),
]


@pytest.mark.parametrize("loss", WRAPPED, ids=lambda loss: type(loss).__name__)
def test_arguments_in_pmls_order(loss, batch):
    """A loss has the tuple before the references, a miner has none; who mixes the two up is told."""
    x, labels = batch
    y, others = x.detach() + 0.1, labels.flip(0)
    mined = HardPairMiner()(x, labels, y, others)
    if not isinstance(loss, CrossBatchMemory):
        by_name = loss(x, labels, indices_tuple=mined, ref_emb=y, ref_labels=others)
        torch.testing.assert_close(loss(x, labels, mined, y, others), by_name)
    text = r"indices_tuple, the third argument .* \(12, 4\).* type ref_emb=..., ref_labels="
    with pytest.raises(TypeError, match=text):
        loss(x, labels, y, others)


# Every registered loss


def registered():
    """``{name: loss}`` of ours, for embeddings of size 4 and 6 classes."""
    context = {"embedding_size": 4, "num_classes": 6}
    found = [c for c in registry.components("loss") if not c.name.startswith("pml/") and c.cls is not RegularizedLoss]
    return {c.name: registry.build(c.qualified_name, "loss", context) for c in found}


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


# PML's losses by our distances


def test_pmls_dot_product_normalizes_and_ours_does_not(batch):
    """So that PML's N-pairs loss has another value where our dot product stands for PML's."""
    raw = losses.NPairsLoss(distance=distances.DotProductSimilarity(normalize_embeddings=False))(*batch)
    torch.testing.assert_close(losses.NPairsLoss(distance=GramDotProductSimilarity())(*batch), raw)
    torch.testing.assert_close(losses.NPairsLoss(distance=GramCosineSimilarity())(*batch), losses.NPairsLoss()(*batch))


@pytest.mark.parametrize("name", sorted(set(registered()) - {"clustering", "softmax"}))
def test_a_tuple_without_labels(name, batch):
    """Our angular and N-pair losses take one, where PML's need labels all the same."""
    (x, labels), loss = batch, registered()[name].eval()
    mined = miners.BatchHardMiner()(x, labels)
    torch.testing.assert_close(loss(x, indices_tuple=mined), loss(x, labels, mined))


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
def test_a_tuple_of_arrays_or_lists(name, form, batch):
    x, labels = batch
    loss = listing()[name].eval()
    if isinstance(loss, CrossBatchMemory):
        loss.train()
    for miner in (miners.BatchHardMiner(), HardPairMiner()):
        mined = miner(x, labels)
        torch.testing.assert_close(loss(x, labels, LISTED[form](mined)), loss(x, labels, mined))


def test_a_tuple_of_something_else(batch):
    x, labels = batch
    for loss in (CBMLLoss(), CrossBatchMemory(losses.NTXentLoss(), 4, 12), MultipleLosses([losses.NTXentLoss()])):
        with pytest.raises(TypeError, match="must hold tensors, arrays or lists of integers; got 'a' .str., "):
            loss(x, labels, ("a", [1], [2]))


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
    loss, labels = fitting()[name].eval(), torch.arange(10)
    both = torch.cat([labels, labels])
    torch.testing.assert_close(SelfSupervisedLoss(loss)(x, y), loss(torch.cat([x, y]), both))
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


def test_views_that_do_not_fit():
    x, y = views()
    with pytest.raises(ValueError, match=r"one view per image, in its row; got \(10, 4\) embeddings and \(9, 4\)"):
        SelfSupervisedLoss(CBMLLoss())(x, y[:9])
    for given in ((x, [y, y]), ([x, y, y], x), ((x, y), None)):
        with pytest.raises(TypeError, match=r"two views, .* as one tensor each; got .* V views.*repeat\(V\)"):
            SelfSupervisedLoss(CBMLLoss())(*given)


@pytest.mark.parametrize("name", ["cbml", "tiled-multi-similarity"])
def test_a_step_waits_for_no_result(name):
    """The others list positive pairs once, unless they are compiled; see docs/scale.md."""
    with SecondDevice() as second:
        loss = second.move(registry.build(name, "loss"))
        embeddings, labels = torch.randn(24, 8).to(second.device).requires_grad_(), torch.arange(24).to(second.device)
        loss(embeddings, labels // 4).backward()
        second.clear()
        loss(embeddings, labels // 4).backward()
        assert not second.waits
        assert not second.shapes
        embeddings.nonzero()
        assert second.shapes
