"""Miners between a batch and a queue that holds a copy of each of its embeddings."""

import functools

import pytest
import torch
from pytorch_metric_learning import losses, miners

from pml_ext import (
    AnchorSwapMiner,
    CachedGradients,
    CrossBatchMemory,
    DistributedMiner,
    HardPairMiner,
    HardQuadrupletMiner,
    NegativesOnly,
    WithRelation,
    registry,
)
from pml_ext.errors import TrainingWarning
from pml_ext.miners import PairMiner

from .remembered import Spy, batch, with_references


def registered_miners():
    """Every miner, PML's and registered, that looks for partners among references."""
    for component in registry.components("miner"):
        if component.class_name not in (
            "EmbeddingsAlreadyPackagedAsTriplets",
            "AnchorSwapMiner",
            "HardQuadrupletMiner",
        ):
            yield component.name, lambda name=component.name: registry.build(name, "miner")
    for positives, negatives in (("easy", "semihard"), ("easy", "easy"), ("semihard", "hard"), ("all", "easy")):
        yield f"{positives}, {negatives}", functools.partial(miners.BatchEasyHardMiner, positives, negatives)
    yield "local, 30", lambda: registry.build("local-positive", "miner", percentile=30)
    yield "tiled", lambda: registry.build("local-positive", "miner", tile_size=5)
    yield "related", lambda: WithRelation(miners.MultiSimilarityMiner(), NegativesOnly())


@pytest.mark.parametrize("build", [pytest.param(build, id=name) for name, build in registered_miners()])
def test_a_miner_sees_no_own_copy(build):
    """A memory as large as the batch gives the plain loss with the same miner, for every loss."""
    for name, build_loss in with_references():
        x, _ = batch()
        twin = x.detach().clone().requires_grad_()
        miner = build()
        labels = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3])
        if isinstance(miner, miners.DistanceWeightedMiner):
            labels = torch.arange(12) // 2  # with one positive each, both draw the same negatives
        plain = build_loss().double()
        memory = CrossBatchMemory(build_loss().double(), 6, 12, miner=build())
        for seed in range(2):  # the second time the queue is written over
            torch.manual_seed(seed)
            expected = plain(x, labels, miner(x, labels))
            torch.manual_seed(seed)
            found = memory(twin, labels)
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12, msg=lambda text, name=name: name + text)
        torch.testing.assert_close(
            *(torch.autograd.grad(value, at)[0] for value, at in ((found, twin), (expected, x))), rtol=1e-7, atol=1e-9
        )


def test_random_positives_are_drawn_without_own_copy():
    """As many triplets as without references, and each other member of the class as often."""
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2])
    spy = Spy()
    miner = miners.DistanceWeightedMiner()
    memory = CrossBatchMemory(spy, 6, 8, miner=miner)
    torch.manual_seed(0)
    drawn = torch.zeros(8, 8)
    for _ in range(400):
        memory(x, labels)
        a, p, _ = spy.seen
        assert len(a) == len(miner(x, labels)[0])
        drawn.index_put_((a, (p - memory.curr_batch_idx[0]) % 8), torch.ones(()), accumulate=True)
    same = labels[:, None] == labels
    same.fill_diagonal_(False)
    assert not drawn[~same].any()
    expected = (drawn.sum(1, keepdim=True) / same.sum(1, keepdim=True).clamp(min=1)).expand(8, 8)
    torch.testing.assert_close(drawn[same], expected[same], rtol=0.15, atol=0)


class Untold(miners.MultiSimilarityMiner):
    """A miner of somebody else, of which nothing is known."""

    def mine(self, embeddings, labels, ref_emb, ref_labels):
        return super().mine(embeddings, labels, ref_emb, ref_labels)


def test_an_unknown_miner_runs_by_anchor_and_warns():
    x, labels = batch()
    miner = Untold()
    memory = CrossBatchMemory(losses.ContrastiveLoss(), 6, 12, miner=miner)
    with pytest.warns(TrainingWarning, match="Untold is called once for each embedding .* pml_ext.plugin.TiledMiner"):
        found = memory(x, labels)
    mined = miners.MultiSimilarityMiner()(x, labels)
    torch.testing.assert_close(found, losses.ContrastiveLoss()(x, labels, mined))
    assert (miner.num_pos_pairs, miner.num_neg_pairs) == (len(mined[0]), len(mined[2]))


class OfBatch(PairMiner):
    """Ignores references."""

    def mine(self, embeddings, labels, ref_emb, ref_labels):
        return miners.BatchHardMiner()(embeddings, labels)


def test_a_miner_without_references_is_refused():
    x, labels = batch()
    for miner, text in (
        (
            miners.EmbeddingsAlreadyPackagedAsTriplets(),
            "accepts no references, such as the queue of a CrossBatchMemory",
        ),
        (HardQuadrupletMiner(), "accepts no references"),
        (OfBatch(), 'declare "references" in capabilities of OfBatch'),
        (AnchorSwapMiner(), "accepts no references"),
        (DistributedMiner(miners.BatchHardMiner()), "give the miner without DistributedMiner"),
    ):
        with pytest.raises(ValueError, match=text):
            CrossBatchMemory(losses.ContrastiveLoss(), 6, 12, miner=miner)(x, labels)


def test_cached_references_are_not_mined_as_batch():
    x, labels = batch()
    cached = CachedGradients(
        torch.nn.Linear(x.shape[1], 4, dtype=x.dtype), losses.ContrastiveLoss(), 4, miner=OfBatch()
    )
    assert cached(x, labels) >= 0
    with pytest.raises(ValueError, match="OfBatch accepts no references"):
        cached(x, labels, reference_inputs=x, ref_labels=labels)


def test_a_queue_of_one_row_has_no_pairs():
    x = torch.randn(1, 6, requires_grad=True)
    for miner in (miners.BatchHardMiner(), miners.HDCMiner(), miners.UniformHistogramMiner(), HardPairMiner()):
        assert CrossBatchMemory(losses.ContrastiveLoss(), 6, 12, miner=miner)(x, torch.tensor([0])) == 0
