"""Losses and miners of PML with a relation, against the pairs that it names."""

import pytest
import torch
from pytorch_metric_learning import losses, miners

from pml_ext import SharedLabel, WithRelation, registry

from ..relations.made_up import B, points, some_sets, value_and_gradient


def as_set(mined):
    return set(zip(*(index.tolist() for index in mined[:2]), strict=True)), set(
        zip(*(index.tolist() for index in mined[-2:]), strict=True)
    )


@pytest.mark.parametrize("miner", [miners.MultiSimilarityMiner(), miners.BatchHardMiner(), miners.TripletMarginMiner()])
def test_pmls_miners_mine_for_each_anchor(miner):
    x = points().detach()
    labels = torch.arange(B) // 4
    sets = some_sets()
    wrapped = WithRelation(miner, SharedLabel())
    assert as_set(wrapped(x, torch.nn.functional.one_hot(labels))) == as_set(miner(x, labels))
    mined = wrapped(x, sets)
    weights = SharedLabel().matrix(sets, sets)
    (a, p) = mined[:2]
    (b, n) = (mined[0], mined[2]) if len(mined) == 3 else mined[2:]
    assert (weights[a, p] > 0).all()
    assert (weights[b, n] == 0).all()
    assert (a != p).all()
    assert len(a) > 10


@pytest.mark.parametrize("loss", [losses.ContrastiveLoss, losses.TripletMarginLoss, losses.SupConLoss])
def test_pmls_losses_get_pairs_without_labels(loss):
    x = points()
    labels = torch.arange(B) // 4
    sets = some_sets()
    wrapped = WithRelation(loss(), SharedLabel())
    found = value_and_gradient(wrapped, x, torch.nn.functional.one_hot(labels))
    torch.testing.assert_close(found, value_and_gradient(loss(), x, labels), rtol=1e-12, atol=1e-12)
    ours = {"ContrastiveLoss": "tiled-contrastive", "TripletMarginLoss": "tiled-triplet-margin"}
    twin = registry.build(ours.get(loss.__name__, "tiled-sup-con"), "loss", relation=SharedLabel())
    torch.testing.assert_close(wrapped(x, sets), twin(x, sets), rtol=1e-6, atol=1e-9)
