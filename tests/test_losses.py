"""MultipleLosses and call_loss."""

import pytest
import torch
from pytorch_metric_learning import losses, miners

from pml_ext import (
    CBMLLoss,
    CrossBatchMemory,
    DensityRegularizer,
    DistributedLoss,
    HardPairMiner,
    MetricVarianceRegularizer,
    MultipleLosses,
    RegularizedLoss,
    SelfSupervisedLoss,
    SoftmaxLoss,
    registry,
)
from pml_ext.losses import call_loss


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


def test_nests(batch):
    inner = MultipleLosses([CBMLLoss(), losses.ContrastiveLoss()])
    outer = MultipleLosses([inner, RegularizedLoss(losses.CircleLoss(), torch.nn.Flatten(0).to("cpu"), weight=0)])
    outer.losses[1].regularizer.forward = lambda x: x.square().mean()
    expected = CBMLLoss()(*batch) + losses.ContrastiveLoss()(*batch) + losses.CircleLoss()(*batch)
    torch.testing.assert_close(outer(*batch), expected)
    assert outer.state_dict().keys() == inner.state_dict().keys()


def test_capabilities_are_what_all_have():
    both = MultipleLosses([losses.ContrastiveLoss(), CBMLLoss()])
    assert registry.capabilities(both) == {"labels", "indices_tuple", "references"}
    with_proxies = MultipleLosses([losses.ContrastiveLoss(), losses.ProxyAnchorLoss(4, 4)])
    assert "references" not in registry.capabilities(with_proxies)


def test_never_sums_in_half_precision(batch):
    x, labels = batch
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = MultipleLosses([losses.MultiSimilarityLoss(), CBMLLoss()])(x, labels)
    assert value.dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([],), "at least one loss"),
        (([losses.ContrastiveLoss()], None, [1, 2]), "weights .* a list of length 1"),
        (({"a": losses.ContrastiveLoss()}, {"b": None}), r"miners .* some of the keys \['a'\]"),
        (({"a": losses.ContrastiveLoss()}, None, [1]), r"weights .* the keys \['a'\]"),
    ],
)
def test_what_does_not_belong_together(arguments, text):
    with pytest.raises(ValueError, match=text):
        MultipleLosses(*arguments)


def test_a_tuple_beside_own_miners_is_refused(batch):
    miner = miners.BatchHardMiner()
    with pytest.raises(ValueError, match="miners of its own"):
        MultipleLosses([losses.ContrastiveLoss()], [miner])(*batch, miner(*batch))


def test_call_loss_passes_what_was_given(batch):
    x, labels = batch
    vicreg = losses.VICRegLoss()
    torch.testing.assert_close(call_loss(vicreg, x, labels, ref_emb=x + 1), vicreg(x, ref_emb=x + 1))
    contrastive = losses.ContrastiveLoss()
    torch.testing.assert_close(call_loss(contrastive, x, labels), contrastive(x, labels))


@pytest.mark.parametrize(
    "loss",
    [
        CBMLLoss(),
        MultipleLosses([CBMLLoss()]),
        DistributedLoss(CBMLLoss()),
        CrossBatchMemory(CBMLLoss(), 4),
        RegularizedLoss(CBMLLoss(), MetricVarianceRegularizer()),
    ],
)
def test_arguments_in_pmls_order(loss, batch):
    """A loss has the tuple before the references, a miner has none; who mixes the two up is told."""
    x, labels = batch
    y, others = x.detach() + 0.1, labels.flip(0)
    mined = HardPairMiner()(x, labels, y, others)
    torch.testing.assert_close(mined, HardPairMiner()(x, labels, ref_emb=y, ref_labels=others))
    if not isinstance(loss, CrossBatchMemory):
        by_name = loss(x, labels, indices_tuple=mined, ref_emb=y, ref_labels=others)
        torch.testing.assert_close(loss(x, labels, mined, y, others), by_name)
    with pytest.raises(
        TypeError, match=r"indices_tuple, the third argument .* \(12, 4\).* type ref_emb=..., ref_labels="
    ):
        loss(x, labels, y, others)


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


def with_labels():
    other = (RegularizedLoss, SoftmaxLoss)  # a wrapper, and one with classes of its own
    ours = [c for c in registry.components("loss") if not c.name.startswith("pml/") and c.cls not in other]
    built = {c.name: registry.build(c.qualified_name, "loss", {"embedding_size": 4}) for c in ours}
    memory = RegularizedLoss(CBMLLoss(), MetricVarianceRegularizer(), weight=0.5)
    return built | {"regularized": memory, "two": MultipleLosses([CBMLLoss(), losses.ContrastiveLoss()])}


@pytest.mark.filterwarnings("ignore:a class of the batch has 2 images")
@pytest.mark.parametrize("name", list(with_labels()))
def test_views_under_registered_losses_and_wrappers(name):
    x, y = views()
    loss, labels = with_labels()[name].eval(), torch.arange(10)
    both = torch.cat([labels, labels])
    torch.testing.assert_close(SelfSupervisedLoss(loss)(x, y), loss(torch.cat([x, y]), both))
    if "references" in registry.capabilities(loss):
        one_sided = SelfSupervisedLoss(loss, symmetric=False)
        torch.testing.assert_close(one_sided(x, y), loss(x, labels, None, y, labels.clone()))
    else:
        with pytest.raises(TypeError, match="takes no references; type symmetric=True"):
            SelfSupervisedLoss(loss, symmetric=False)


def test_views_inside_other_wrappers():
    x, y = views()
    loss = SelfSupervisedLoss(CBMLLoss())
    assert torch.equal(DistributedLoss(loss)(x, ref_emb=y), loss(x, y))
    penalty = RegularizedLoss(loss, MetricVarianceRegularizer(), weight=0)
    torch.testing.assert_close(penalty(x, torch.arange(10), ref_emb=y), loss(x, y))


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (losses.NTXentLoss, r"must be an object such as NTXentLoss\(\)"),
        (losses.VICRegLoss(), "takes no labels; .* call it without this wrapper"),
        (losses.ManifoldLoss(l=4), "takes no labels$"),
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
    with pytest.raises(TypeError, match="ref_emb must be a floating point tensor"):
        SelfSupervisedLoss(CBMLLoss())(x, torch.arange(10))
    with pytest.raises(TypeError, match="symmetric of SelfSupervisedLoss must be True or False"):
        SelfSupervisedLoss(CBMLLoss(), symmetric=2)
