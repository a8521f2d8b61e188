"""Calls of losses and wrappers: the order of their arguments, and tuples of any form."""

import pytest
import torch
from pytorch_metric_learning import losses, miners
from pytorch_metric_learning.regularizers import CenterInvariantRegularizer

from pml_ext import (
    CBMLLoss,
    CrossBatchMemory,
    DistributedLoss,
    HardPairMiner,
    MetricVarianceRegularizer,
    MultipleLosses,
    NegativesOnly,
    RegularizedLoss,
    WithRelation,
    registry,
)
from pml_ext.losses.calling import WrapperCapabilities, call_loss, check_module

from .registered import registered

WRAPPED = [
    CBMLLoss(),
    MultipleLosses([CBMLLoss()]),
    DistributedLoss(CBMLLoss()),
    CrossBatchMemory(CBMLLoss(), 4),
    RegularizedLoss(CBMLLoss(), MetricVarianceRegularizer()),
]


@pytest.mark.parametrize("loss", WRAPPED, ids=lambda loss: type(loss).__name__)
def test_arguments_have_the_order_of_pml(loss, batch):
    """A loss has the tuple before the references, a miner has none; who mixes the two up is told."""
    x, labels = batch
    y = x.detach() + 0.1
    others = labels.flip(0)
    mined = HardPairMiner()(x, labels, y, others)
    if not isinstance(loss, CrossBatchMemory):
        by_name = loss(x, labels, indices_tuple=mined, ref_emb=y, ref_labels=others)
        torch.testing.assert_close(loss(x, labels, mined, y, others), by_name)
    text = r"indices_tuple, the third argument .* \(12, 4\).* type ref_emb=..., ref_labels="
    with pytest.raises(TypeError, match=text):
        loss(x, labels, y, others)


@pytest.mark.parametrize("name", sorted(set(registered()) - {"clustering", "softmax"}))
def test_a_tuple_replaces_the_labels(name, batch):
    """Our angular and N-pair losses take one, where PML's need labels all the same."""
    (x, labels) = batch
    loss = registered()[name].eval()
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


def test_arguments_that_a_loss_lacks_are_omitted(batch):
    x, _ = batch
    pairs = losses.VICRegLoss()
    torch.testing.assert_close(call_loss(pairs, x, ref_emb=x + 0.1), pairs(x, ref_emb=x + 0.1))
    with pytest.raises(TypeError, match="enqueue_mask"):
        call_loss(losses.ContrastiveLoss(), x, torch.arange(12), enqueue_mask=torch.ones(12, dtype=torch.bool))
