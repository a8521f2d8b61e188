"""CrossBatchMemory: against the plain loss, against a loop that keeps every embedding, and with miners."""

import functools
from types import SimpleNamespace

import pytest
import torch
from pytorch_metric_learning import losses, miners
from pytorch_metric_learning.utils.loss_and_miner_utils import get_all_pairs_indices

from pml_ext import (
    AnchorSwapMiner,
    CachedGradients,
    CBMLLoss,
    CrossBatchMemory,
    DistributedLoss,
    DistributedMiner,
    HardPairMiner,
    HardQuadrupletMiner,
    MetricVarianceRegularizer,
    MultipleLosses,
    NegativesOnly,
    RegularizedLoss,
    SharedLabel,
    WithRelation,
    registry,
)
from pml_ext.errors import TrainingWarning
from pml_ext.miners import PairMiner


def batch(seed=0, size=12, classes=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 6, generator=generator, dtype=dtype).requires_grad_(), torch.arange(size) % classes


X, LABELS = batch()


def with_references():
    """Every loss, PML's and registered, that says it takes references and can be built without further settings."""
    for component in registry.components("loss"):
        required = [s for s in component.settings.values() if s.default is s.empty]
        if component.name == "pml/dynamic-soft-margin":  # keeps a histogram of its own
            continue
        if not required and registry.capabilities(component.cls) >= {"labels", "indices_tuple", "references"}:
            yield component.name, lambda name=component.name: registry.build(name, "loss")
    yield "regularized", lambda: RegularizedLoss(losses.ContrastiveLoss(), MetricVarianceRegularizer(), weight=0.5)


class Spy(losses.TripletMarginLoss):
    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        self.seen = indices_tuple
        self.references = ref_emb
        return super().compute_loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)


@pytest.mark.parametrize("build", [pytest.param(build, id=name) for name, build in with_references()])
def test_a_batch_sized_memory_equals_the_plain_loss(build):
    x, labels = batch()
    twin = x.detach().clone().requires_grad_()
    plain = build().double()
    memory = CrossBatchMemory(build().double(), 6, 12)
    for _ in range(2):  # the second time the queue is written over
        expected = plain(x, labels)
        found = memory(twin, labels)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    expected.backward()
    found.backward()
    torch.testing.assert_close(twin.grad, x.grad, rtol=1e-9, atol=1e-12)
    assert x.grad.abs().sum() > 0


def test_against_all_that_was_seen():
    """A loop that keeps every batch, and cuts the list to the last embeddings."""
    loss = losses.ContrastiveLoss()
    memory = CrossBatchMemory(loss, 6, 20)
    seen = torch.zeros(0, 6, dtype=torch.float64)
    seen_labels = torch.zeros(0, dtype=torch.long)
    for number, size in enumerate((8, 8, 3, 20, 1, 12)):
        x, labels = batch(number, size)
        twin = x.detach().clone().requires_grad_()
        keep = max(0, 20 - size)
        references = torch.cat([seen[len(seen) - min(len(seen), keep) :], twin])
        ref_labels = torch.cat([seen_labels[len(seen_labels) - min(len(seen_labels), keep) :], labels])
        own = len(references) - size + torch.arange(size)
        same = labels[:, None] == ref_labels
        different = ~same
        same[torch.arange(size), own] = False
        expected = loss(twin, labels, (*torch.where(same), *torch.where(different)), references, ref_labels)
        found = memory(x, labels)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        found.backward()
        expected.backward()
        torch.testing.assert_close(x.grad, twin.grad, rtol=1e-12, atol=1e-12)
        seen = references.detach()
        seen_labels = ref_labels
        assert memory.filled == len(seen)


@pytest.mark.parametrize("miner", [miners.MultiSimilarityMiner(), miners.BatchHardMiner(), miners.TripletMarginMiner()])
def test_a_miner_pairs_no_embedding_with_itself(miner):
    spy = Spy()
    memory = CrossBatchMemory(spy, 6, 20, miner=miner)
    for number in range(3):
        x, labels = batch(number)
        before = memory.queue_idx
        assert memory(x, labels).isfinite()
        anchors, partners = spy.seen[:2]
        assert len(anchors) > 0
        assert not ((before + anchors) % 20 == partners).any()
        assert torch.equal(labels[anchors], memory.label_memory[partners])


def test_rows_of_a_tuple_are_batch_rows():
    """PML takes them for places in its memory, which is right in the first call alone."""
    spy = Spy()
    memory = CrossBatchMemory(spy, 6, 30, miner=miners.BatchHardMiner())
    memory(*batch(1))
    x, labels = batch(2)
    given = miners.BatchHardMiner()(x, labels)
    memory(x, labels, given)
    added = [index[-len(given[0]) :] for index in spy.seen]
    assert torch.equal(added[0], given[0])
    for number in (1, 2):
        torch.testing.assert_close(spy.references[added[number]], x[given[number]], rtol=0, atol=0)


def test_enqueue_mask_selects_what_is_kept():
    loss = losses.NTXentLoss()
    memory = CrossBatchMemory(loss, 6, 16)
    x, labels = batch(dtype=torch.float32)
    mask = torch.arange(12) >= 6
    found = memory(x, labels, enqueue_mask=mask)
    torch.testing.assert_close(found, loss(x[:6], labels[:6], None, x[6:].detach(), labels[6:]))
    found.backward()
    assert x.grad[:6].abs().sum() > 0
    assert (x.grad[6:] == 0).all()
    assert memory.filled == 6
    assert memory(x, labels, enqueue_mask=torch.ones(12, dtype=torch.bool)) == 0  # no anchors


def test_the_plain_loss_before_the_first_epoch():
    miner = miners.MultiSimilarityMiner()
    memory = CrossBatchMemory(losses.MultiSimilarityLoss(), 6, 16, miner=miner, first_epoch=3)
    memory.start_epoch(SimpleNamespace(epoch=2))
    assert torch.equal(memory(X, LABELS), memory.loss(X, LABELS, miner(X, LABELS)))
    assert memory.filled == 0
    large, many = batch(size=40)
    assert memory(large, many).isfinite()
    memory.start_epoch(SimpleNamespace(epoch=3))
    memory(X, LABELS)
    assert memory.filled == 12


def test_states_that_do_not_fit():
    memory = CrossBatchMemory(losses.ContrastiveLoss(), 6, 30)
    state = memory.state_dict()
    with pytest.raises(RuntimeError, match="embedding_memory: it has shape .30, 6. in the state, .40, 6. in a memory"):
        CrossBatchMemory(losses.ContrastiveLoss(), 6, 40).load_state_dict(state)
    for name in ("embedding_memory", "label_memory", "cursor", "filled"):
        with pytest.raises(RuntimeError, match=f"Missing .* {name!r}".replace("'", '"')):
            memory.load_state_dict({key: value for key, value in state.items() if key != name})
    with pytest.raises(RuntimeError, match='Unexpected .* "other"'):
        memory.load_state_dict(state | {"other": torch.zeros(1)})


def test_the_queue_is_moved_as_buffers_are():
    holder = torch.nn.ModuleList([CrossBatchMemory(losses.ContrastiveLoss(), 6, 30)])
    holder[0](*batch())
    rows = holder[0].embedding_memory
    assert holder.half()[0].embedding_memory.dtype == torch.float16
    assert torch.equal(holder.double()[0].embedding_memory, rows.half().double())
    assert holder[0].label_memory.dtype == torch.long
    assert holder.to("meta")[0].label_memory.device.type == "meta"
    assert not list(holder.buffers())  # DistributedDataParallel copies the buffers of rank 0 to the other ranks


# Validation


@pytest.mark.parametrize("mode", ["eval", "no_grad"])
@pytest.mark.parametrize("miner", [None, miners.TripletMarginMiner()])
def test_validation_leaves_the_queue_as_it_is(mode, miner):
    memory = CrossBatchMemory(losses.TripletMarginLoss(), 6, 30, miner=miner)
    memory(*batch(1))
    before = {name: value.clone() for name, value in memory.state_dict().items()}
    x, labels = batch(2, size=40)  # a batch that would not fit does not need to
    memory.train(mode != "eval")
    with torch.set_grad_enabled(mode != "no_grad"):
        found = memory(x, labels)
        memory(x, labels, enqueue_mask=torch.arange(40) < 20)
    queue = before["embedding_memory"][:12]
    queue_labels = before["label_memory"][:12]
    pairs = miners.TripletMarginMiner()(x, labels, queue, queue_labels) if miner else None
    torch.testing.assert_close(found, losses.TripletMarginLoss()(x, labels, pairs, queue, queue_labels))
    assert all(torch.equal(value, before[name]) for name, value in memory.state_dict().items())


@pytest.mark.parametrize("held", [0, 12])
def test_a_validation_tuple_adds_its_batch_pairs(held):
    memory = CrossBatchMemory(losses.ContrastiveLoss(), 6, 30)
    queue, queue_labels = (part.detach()[:held] for part in batch(1))
    if held:
        memory(*batch(1))
    x, labels = batch(2)
    given = miners.BatchHardMiner()(x, labels)
    a, p, n = given
    pairs = get_all_pairs_indices(labels, queue_labels)
    pairs = [torch.cat(both) for both in zip(pairs, (a, p + held, a, n + held), strict=True)]
    expected = losses.ContrastiveLoss()(
        x, labels, tuple(pairs), torch.cat([queue, x]), torch.cat([queue_labels, labels])
    )
    torch.testing.assert_close(memory.eval()(x, labels, given), expected)
    assert memory.filled == held


# What PML's users read and call


def test_what_is_read_and_called_in_pmls_memory():
    ours = CrossBatchMemory(losses.ContrastiveLoss(), 6, 30)
    theirs = losses.CrossBatchMemory(losses.ContrastiveLoss(), 6, 30)
    for number, size in enumerate((8, 8, 14, 12, 30, 5)):
        x, labels = batch(number, size)
        for memory in (ours, theirs):
            if number % 2:
                memory.add_to_memory(x.detach(), labels, batch_size=size)
            else:
                memory(x, labels)
        for name in ("queue_idx", "has_been_filled", "embedding_size", "memory_size"):
            assert getattr(ours, name) == getattr(theirs, name), name
            assert type(getattr(ours, name)) is type(getattr(theirs, name))
        for name in ("embedding_memory", "label_memory", "curr_batch_idx"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    ours.reset_queue()
    assert (ours.queue_idx, ours.has_been_filled, ours.filled) == (0, False, 0)
    assert not ours.embedding_memory.any()


def test_losses_that_pmls_memory_names():
    """All but NCALoss, which takes no pairs: in PML's memory it compares an image with the copy of itself."""
    for number, name in enumerate(sorted({*losses.CrossBatchMemory.supported_losses()} - {"NCALoss"})):
        loss = getattr(losses, name)()
        ours = CrossBatchMemory(loss, 6, 24, detach_batch=True)
        theirs = losses.CrossBatchMemory(loss, 6, 24)
        for step in range(3):
            x, labels = batch(3 * number + step)
            torch.testing.assert_close(ours(x, labels), theirs(x, labels))
    x, labels = batch()
    loss = losses.NCALoss()
    assert not torch.isclose(losses.CrossBatchMemory(loss, 6, 12)(x, labels), loss(x, labels))
    with pytest.raises(TypeError, match="NCALoss does not take references"):
        CrossBatchMemory(loss, 6, 12)


def test_losses_that_do_not_fit():
    for loss, text in (
        (losses.ProxyAnchorLoss(3, 6), "ProxyAnchorLoss does not take references"),
        (losses.VICRegLoss(), "does not take indices_tuple and labels"),
        (losses.MultipleLosses([losses.ContrastiveLoss()]), "from pml_ext import MultipleLosses"),
        (MultipleLosses([losses.ContrastiveLoss(), losses.VICRegLoss()]), "VICRegLoss does not take indices_tuple$"),
        (losses.ContrastiveLoss, "must be an object such as"),
        (DistributedLoss(losses.ContrastiveLoss()), "DistributedLoss goes around the memory"),
        (MultipleLosses([DistributedLoss(losses.ContrastiveLoss())]), "DistributedLoss goes around the memory"),
    ):
        with pytest.raises(TypeError, match=text):
            CrossBatchMemory(loss, 6, 20)


def test_wrong_calls_raise_an_error():
    memory = CrossBatchMemory(losses.ContrastiveLoss(), 6, 8)
    x, labels = batch()
    with pytest.raises(ValueError, match="12 embeddings do not fit into a memory of memory_size=8"):
        memory(x, labels)
    assert memory.filled == 0
    with pytest.raises(ValueError, match="embedding_size=6, but the embeddings have 5"):
        memory(x[:, :5], labels)
    x = x[:4]
    labels = labels[:4]
    with pytest.raises(ValueError, match="exclude each other"):
        memory(x, labels, miners.BatchHardMiner()(x, labels), torch.ones(4, dtype=torch.bool))
    x, labels = batch()
    assert memory(x, labels, enqueue_mask=torch.arange(12) < 8).isfinite()
    related = CrossBatchMemory(CBMLLoss(relation=SharedLabel()), 6, 20)
    sets = torch.nn.functional.one_hot(labels)
    with pytest.raises(ValueError, match="labels of 1 items are given for 12 embeddings"):
        related(x, sets[:1])
    assert related.filled == 0


def test_a_memory_filled_in_inference_mode_trains():
    x, labels = batch()
    memory = CrossBatchMemory(losses.ContrastiveLoss(), 6, 24)
    with torch.inference_mode():
        memory.reset_queue()
        memory.add_to_memory(x.detach() + 1, labels)
    memory(x, labels).backward()
    assert memory.filled == 24
    assert x.grad.isfinite().all()


# A sum of losses with miners of their own, and pairs that are there already


@pytest.mark.parametrize("wrap", [lambda loss: loss, lambda loss: RegularizedLoss(loss, MetricVarianceRegularizer())])
def test_a_sum_of_losses_with_miners(wrap):
    def build():
        parts = [losses.NTXentLoss(), losses.ContrastiveLoss(), CBMLLoss()]
        return wrap(MultipleLosses(parts, miners=[miners.MultiSimilarityMiner(), None, HardPairMiner()]))

    memory = CrossBatchMemory(build(), 6, 12)
    for _ in range(2):
        torch.testing.assert_close(memory(X, LABELS), build()(X, LABELS))
    queue = memory.embedding_memory.clone(), memory.label_memory
    torch.testing.assert_close(memory.eval()(X, LABELS), build()(X, LABELS, None, *queue))
    with pytest.raises(ValueError, match="and so has the MultipleLosses inside"):
        CrossBatchMemory(build(), 6, 12, miner=miners.BatchHardMiner())


@pytest.mark.parametrize("name", ["contrastive", "ntxent"])
def test_pairs_that_are_there_count_once_more(name):
    """In its first batch, PML's memory takes rows of a tuple for rows of the batch, as ours does in all."""
    given = miners.MultiSimilarityMiner()(X, LABELS)
    loss = registry.build(f"pml/{name}", "loss")
    tiled = registry.build(f"tiled-{name}".replace("ntx", "nt-x"), "loss")
    expected = losses.CrossBatchMemory(loss, 6, 12)(X, LABELS, given)
    assert not torch.isclose(expected, loss(X, LABELS))
    for each in (loss, tiled, tiled.__class__(tile_size=5)):
        torch.testing.assert_close(CrossBatchMemory(each, 6, 12)(X, LABELS, given), expected)


def test_a_tuple_that_changes_nothing_is_refused():
    given = miners.MultiSimilarityMiner()(X, LABELS)
    for loss in (CBMLLoss(), RegularizedLoss(CBMLLoss(), MetricVarianceRegularizer()), MultipleLosses([CBMLLoss()])):
        memory = CrossBatchMemory(loss, 6, 12)
        with pytest.raises(ValueError, match="an indices_tuple changes nothing: .* type CrossBatchMemory.*miner="):
            memory(X, LABELS, given)
        assert memory.filled == 0
        assert memory.eval()(X, LABELS, given).isfinite()


def test_masked_rows_are_never_anchors_before_activation():
    memory = CrossBatchMemory(CBMLLoss(), 6, 24)
    memory.active = False
    mask = torch.arange(len(X)) % 2 == 0
    assert memory(X, LABELS, enqueue_mask=mask) == CBMLLoss()(X[~mask], LABELS[~mask])


def test_without_anchors_an_inactive_memory_gives_zero():
    x, labels = batch()
    memory = CrossBatchMemory(losses.TripletMarginLoss(), 6, 24, miner=miners.BatchHardMiner())
    memory.active = False
    x.requires_grad_()
    loss = memory(x, labels, enqueue_mask=torch.ones(len(x), dtype=torch.bool))
    loss.backward()
    assert loss == 0
    assert (x.grad == 0).all()


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
    """Somebody else's miner, about which nothing is known."""

    def mine(self, embeddings, labels, ref_emb, ref_labels):
        return super().mine(embeddings, labels, ref_emb, ref_labels)


def test_an_unknown_miner_runs_by_anchor_and_warns():
    miner = Untold()
    memory = CrossBatchMemory(losses.ContrastiveLoss(), 6, 12, miner=miner)
    with pytest.warns(TrainingWarning, match="Untold is called once for each embedding .* pml_ext.plugin.TiledMiner"):
        found = memory(X, LABELS)
    mined = miners.MultiSimilarityMiner()(X, LABELS)
    torch.testing.assert_close(found, losses.ContrastiveLoss()(X, LABELS, mined))
    assert (miner.num_pos_pairs, miner.num_neg_pairs) == (len(mined[0]), len(mined[2]))


class OfBatch(PairMiner):
    """Ignores references."""

    def mine(self, embeddings, labels, ref_emb, ref_labels):
        return miners.BatchHardMiner()(embeddings, labels)


def test_a_miner_without_references_is_refused():
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
            CrossBatchMemory(losses.ContrastiveLoss(), 6, 12, miner=miner)(X, LABELS)


def test_cached_references_are_not_mined_as_batch():
    cached = CachedGradients(
        torch.nn.Linear(X.shape[1], 4, dtype=X.dtype), losses.ContrastiveLoss(), 4, miner=OfBatch()
    )
    assert cached(X, LABELS) >= 0
    with pytest.raises(ValueError, match="OfBatch accepts no references"):
        cached(X, LABELS, reference_inputs=X, ref_labels=LABELS)


def test_a_queue_of_one_row_has_no_pairs():
    x = torch.randn(1, 6, requires_grad=True)
    for miner in (miners.BatchHardMiner(), miners.HDCMiner(), miners.UniformHistogramMiner(), HardPairMiner()):
        assert CrossBatchMemory(losses.ContrastiveLoss(), 6, 12, miner=miner)(x, torch.tensor([0])) == 0
