"""What all losses keep: bad input, short rows, PML's losses by our distances; MultipleLosses and views."""

import pytest
import torch
from pytorch_metric_learning import distances, losses, miners, reducers

from pml_ext import (
    CBMLLoss,
    CrossBatchMemory,
    DensityRegularizer,
    DistributedLoss,
    MetricVarianceRegularizer,
    MultipleLosses,
    RegularizedLoss,
    SelfSupervisedLoss,
    TiledMultiSimilarityLoss,
    registry,
)
from pml_ext.distances import GramCosineSimilarity, GramDotProductSimilarity
from pml_ext.testing import SecondDevice
from pml_ext_cbml.softmax import SoftmaxLoss
from pml_ext_density.clustering import ClusteringLoss

from .registered import registered


def test_the_sum_equals_that_of_pml(batch):
    parts = [losses.ContrastiveLoss(), losses.TripletMarginLoss()]
    mined = [None, miners.BatchHardMiner()]
    for arguments in ((parts,), (parts, None, [1, 0.3]), (parts, mined, [0, 2.0])):
        torch.testing.assert_close(MultipleLosses(*arguments)(*batch), losses.MultipleLosses(*arguments)(*batch))
    named = {"a": parts[0], "b": parts[1]}
    arguments = (named, {"b": mined[1]}, {"a": 0.5, "b": 2})
    torch.testing.assert_close(MultipleLosses(*arguments)(*batch), losses.MultipleLosses(*arguments)(*batch))


def test_references_reach_losses_and_miners(batch):
    x, labels = batch
    y = x.detach() + 0.1
    others = labels.flip(0)
    miner = miners.MultiSimilarityMiner()
    found = MultipleLosses([CBMLLoss(), losses.ContrastiveLoss()], [None, miner], [1, 0.5])(x, labels, None, y, others)
    expected = CBMLLoss()(x, labels, None, y, others)
    mined = miner(x, labels, y, others)
    expected = expected + 0.5 * losses.ContrastiveLoss()(x, labels, mined, y, others)
    torch.testing.assert_close(found, expected)


# PML's losses by our distances


def test_pmls_dot_product_normalizes_and_ours_does_not(batch):
    """So that PML's N-pairs loss has another value where our dot product stands for PML's."""
    raw = losses.NPairsLoss(distance=distances.DotProductSimilarity(normalize_embeddings=False))(*batch)
    torch.testing.assert_close(losses.NPairsLoss(distance=GramDotProductSimilarity())(*batch), raw)
    torch.testing.assert_close(losses.NPairsLoss(distance=GramCosineSimilarity())(*batch), losses.NPairsLoss()(*batch))


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


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda **given: RegularizedLoss(CBMLLoss(), MetricVarianceRegularizer(), **given), "give it to the loss"),
        (lambda **given: SoftmaxLoss(num_classes=2, embedding_size=4, **given), "takes no distance"),
        (ClusteringLoss, "takes no distance"),
    ],
)
def test_a_distance_without_effect_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build(distance=distances.LpDistance())


def test_a_reducer_without_effect_is_refused():
    with pytest.raises(ValueError, match="RegularizedLoss has no reducer of its own"):
        RegularizedLoss(CBMLLoss(), MetricVarianceRegularizer(), reducer=reducers.MeanReducer())


class Warmer(distances.CosineSimilarity):
    """A similarity whose class has a forward of its own."""

    def forward(self, query_emb, ref_emb=None):
        return super().forward(query_emb, ref_emb) / 2


@pytest.mark.parametrize("references", [False, True])
def test_a_distance_with_its_own_forward_in_tiles(batch, references):
    x, labels = batch
    given = (None, x.detach() + 0.1, labels.flip(0)) if references else ()
    whole, tiled = (TiledMultiSimilarityLoss(distance=Warmer(), tile_size=size) for size in (len(x), 3))
    torch.testing.assert_close(tiled(x, labels, *given), whole(x, labels, *given))
    wanted = losses.MultiSimilarityLoss(distance=Warmer())(x, labels, *given)
    torch.testing.assert_close(whole(x, labels, *given), wanted)
