"""The batch-all triplet loss against listing all triplets; its miners and its sampler."""

import itertools

import numpy as np
import pytest
import torch
from pytorch_metric_learning import miners, reducers
from torch.autograd import gradcheck

from pml_ext import AnchorSwapMiner, BatchAllTripletLoss, HardNegativePoolSampler, LocalPositiveMiner
from pml_ext.evaluation import kmeans
from pml_ext.pairwise import euclidean_distances, normalize
from pml_ext.testing import check_component
from pml_ext_train.launch.launch import train
from pml_ext_triplets import functional

from ...overrides import typed
from ..cbml import loops


def batch(labels, size=4, seed=0, dtype=torch.float64, spread=0.6):
    """Clusters that overlap."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor(labels)
    centers = torch.randn(10, size, generator=generator, dtype=torch.float64)
    x = centers[labels % 10] + spread * torch.randn(len(labels), size, generator=generator, dtype=torch.float64)
    return x.to(dtype).requires_grad_(), labels


LABELS = [0, 1, 0, 2, 1, 0, 2, 1, 0, 3, 1]  # ragged, unsorted, a class of one


X, Y = batch(LABELS)
KINDS = tuple(functional.KINDS)


def value_of(kind, margin, ap, an, pn):
    """Sec. 5.1 and 5.2 as printed."""
    if kind == "hinge":
        return (ap - an + margin).clamp(min=0)
    if kind == "squared-hinge":
        return (ap**2 - an**2 + margin).clamp(min=0)
    if kind == "ratio":
        r = ap.exp() / (ap.exp() + an.exp())
        return r**2 - (1 - r) ** 2
    return ap + ((margin - an).exp() + (margin - pn).exp()).log()


def distance(x, y):
    if torch.equal(x, y):
        return x.sum() * 0
    return (x - y).norm()


def listed(
    x,
    labels,
    indices_tuple=None,
    ref_emb=None,
    ref_labels=None,
    *,
    kind="hinge",
    margin=0.2,
    triplets="violating",
    positives="all",
    percentile=60.0,
):
    """The mean over S, one triplet after the other."""
    points = torch.stack([p / p.norm().clamp(min=1e-12) for p in x])
    others = torch.stack([p / p.norm().clamp(min=1e-12) for p in (x if ref_emb is None else ref_emb)])
    d = [[distance(p, q) for q in others] for p in points]
    between = [[distance(p, q) for q in others] for p in others]
    if indices_tuple is None:
        pairs, negatives = loops.pairs_from_labels(labels, ref_labels)
    else:
        pairs, negatives = loops.pairs_of(indices_tuple)
        pairs = [(a, p) for a, p in pairs if a != p]
    if positives == "local":
        of = {a: [d[a][p].item() for b, p in pairs if b == a] for a, _ in pairs}
        pairs = {(a, p) for a, p in pairs if d[a][p].item() <= np.percentile(of[a], percentile) + 1e-12}
    every = [(a, p, n) for (a, p), (b, n) in itertools.product(sorted(pairs), sorted(negatives)) if a == b]
    if indices_tuple is not None and len(indices_tuple) == 3:
        given = zip(*(index.tolist() for index in indices_tuple), strict=True)
        every = [(a, p, n) for a, p, n in given if (a, p) in pairs]
    total = x.sum() * 0
    count = 0
    for a, p, n in every:
        if triplets == "all" or d[a][n] < d[a][p] + margin:
            total = total + value_of(kind, margin, d[a][p], d[a][n], between[p][n])
            count = count + 1
    return total / max(1, count)


@pytest.mark.parametrize("many", [False, True], ids=["few positives", "many"])
def test_the_loss_equals_listing_all_triplets(monkeypatch, many):
    if many:
        monkeypatch.setattr(functional, "_MANY", 0)
        monkeypatch.setattr(functional, "_ENTRIES", 30)
    ways = {"kind": KINDS, "triplets": ["violating", "all"], "positives": ["all", "local"]}
    margins = {"kind": ["hinge", "squared-hinge"], "margin": [-0.1, 0.0, 0.5, 3.0]}
    check_component(
        BatchAllTripletLoss, reference=listed, settings=[ways, margins], checks=["check_reference", "check_settings"]
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_ties_and_duplicates_equal_the_loop(kind, dtype):
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    x, labels = batch([0, 0, 0, 1, 1, 1, 2, 2], dtype=dtype)
    with torch.no_grad():
        x[1] = x[0]  # an exact duplicate of the class
        x[3] = x[0]  # and one of another class
        x[6] = 3 * x[7]  # the same direction
    corners = torch.eye(4, dtype=dtype).repeat(2, 1).requires_grad_()  # all distances are 0 or the same
    for embeddings, y in ((x, labels), (corners, torch.arange(8) // 2)):
        twin = embeddings.detach().double().requires_grad_()
        found = BatchAllTripletLoss(kind=kind)(embeddings, y)
        expected = listed(twin, y, kind=kind)
        torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
        found.backward()
        assert embeddings.grad.isfinite().all()
    expected.backward()
    torch.testing.assert_close(corners.grad, twin.grad.to(dtype), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", ["hinge", "soft"])
def test_mined_triplets_outside_of_s_are_not_counted(kind):
    chosen = miners.TripletMarginMiner(margin=0.6)(X, Y)
    loss = BatchAllTripletLoss(kind=kind)
    torch.testing.assert_close(loss(X, Y, chosen), listed(X, Y, chosen, kind=kind))
    assert listed(X, Y, chosen, kind=kind, triplets="all") != listed(X, Y, chosen, kind=kind)
    assert loss(X, Y, tuple(torch.zeros(0, dtype=torch.long) for _ in range(3))) == 0


@pytest.mark.parametrize("many", [False, True], ids=["passes", "sorting"])
@pytest.mark.parametrize("kind", ["hinge", "squared-hinge"])
def test_gradients_of_reducers_with_weights_of_their_own(monkeypatch, kind, many):
    if many:
        monkeypatch.setattr(functional, "_MANY", 0)
    weights = torch.rand(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    class Weighted(reducers.BaseReducer):
        def pos_pair_reduction(self, losses, *_):
            return losses @ weights[: len(losses)]

    assert gradcheck(lambda e: BatchAllTripletLoss(kind=kind, reducer=Weighted())(e, Y), (X,))


def test_the_share_of_violating_triplets_is_recorded():
    loss = BatchAllTripletLoss(collect_stats=True)
    info = BatchAllTripletLoss(reducer=reducers.DoNothingReducer())(X, Y)["loss"]
    loss(X, Y)
    same = Y[:, None] == Y
    possible = ((same.sum(1) - 1) * (~same).sum(1)).sum()
    assert loss.violating.item() == pytest.approx(info["divisor"].item() / possible.item())


@pytest.mark.parametrize("percentile", [0, 30, 60, 100])
def test_local_positives_equal_those_of_numpy(percentile):
    points = normalize(X.detach())
    d = (points[:, None] - points).norm(dim=2)
    a1, p, a2, n = LocalPositiveMiner(percentile)(X, Y)
    wanted = []
    for a in range(11):
        mine = [j for j in range(11) if j != a and Y[j] == Y[a]]
        if mine:
            limit = np.percentile([d[a, j].item() for j in mine], percentile)
            wanted += [(a, j) for j in mine if d[a, j].item() <= limit + 1e-12]
    assert list(zip(a1.tolist(), p.tolist(), strict=True)) == wanted
    assert len(a2) == int((Y[:, None] != Y).sum())
    assert not a1.requires_grad
    assert n.dtype == torch.long


def test_anchor_swap_exchanges_anchor_and_positive():
    x = torch.tensor([[1.0, 0], [0, 1], [0.1, 1], [1, 0.1], [1, 0], [0, 1]])  # a p n, a p n
    labels = torch.tensor([0, 0, 1, 2, 2, 3])
    assert [index.tolist() for index in AnchorSwapMiner()(x, labels)] == [[1, 3], [0, 4], [2, 5]]
    swapped = AnchorSwapMiner(miners.TripletMarginMiner(margin=5))(x, labels)
    assert len(swapped[0]) == len(miners.TripletMarginMiner(margin=5)(x, labels)[0])
    recording = AnchorSwapMiner(collect_stats=True)
    recording(x, labels)
    assert recording.num_triplets == 2
    with pytest.raises(TypeError, match="mines by labels; got None"):
        recording(x, None)
    distances = euclidean_distances(normalize(x))
    assert (distances[swapped[0], swapped[2]] <= distances[swapped[1], swapped[2]] + 1e-6).all()


POOL_LABELS = [c for c in range(6) for _ in range(5)]


def triplets_of(sampler):
    drawn = list(sampler)
    assert len(drawn) == len(sampler)
    return [tuple(drawn[i : i + 3]) for i in range(0, len(drawn), 3)]


@pytest.mark.parametrize("strategy", ["hard", "semihard", "misclassified"])
def test_the_nearest_of_all_images_by_strategy(strategy):
    x, labels = batch(POOL_LABELS, spread=0.9)
    x = x.detach()
    sampler = HardNegativePoolSampler(labels, 12, 600, strategy, hard_fraction=1.0, pool_size=3, pool="nearest")
    sampler.refresh_pool(x)
    distances = euclidean_distances(normalize(x))
    pool = sampler._pool
    assert len(pool)
    clusters = kmeans(normalize(x), 6)
    for anchor in range(30):
        known = pool[pool[:, 0] == anchor, 1].tolist()
        assert all(labels[n] != labels[anchor] for n in known)
        others = torch.where(labels != labels[anchor])[0]
        if strategy == "hard":
            wanted = others[distances[anchor, others].argsort()[:3]]
            assert sorted(known) == sorted(wanted.tolist())
        elif strategy == "semihard":
            farthest = distances[anchor, labels == labels[anchor]].max()
            assert all(distances[anchor, n] < farthest for n in known)
        else:
            assert all(clusters[n] == clusters[anchor] for n in known)
    pairs = set(map(tuple, pool.tolist()))
    assert all((a, n) in pairs for a, _, n in triplets_of(sampler) if a in pool[:, 0])
    mixed = HardNegativePoolSampler(labels, 12, 3000, strategy, hard_fraction=0.5, pool_size=3, pool="nearest")
    mixed.refresh_pool(x)
    pairs = set(map(tuple, mixed._pool.tolist()))
    counts = np.bincount(mixed._pool[:, 0], minlength=30)
    assert 0.4 < np.mean([(a, n) in pairs for a, _, n in triplets_of(mixed) if counts[a] == 3]) < 0.75


def drawn_batch(sampler, labels):
    """A batch as the sampler draws it, and embeddings for it."""
    indices = torch.tensor(list(sampler)[: sampler.batch_size])
    return indices, torch.randn(len(indices), 4, generator=torch.Generator().manual_seed(5)).double()


def slow_pairs(labels, indices, x, strategy, count, per="batch"):
    """Sec. 5.1: pairs of a triplet's anchor and a negative in the batch, from the nearest on, of all or by anchor."""
    x = [row / row.norm() for row in x]
    by_anchor = []
    for place in range(0, len(indices), 3):
        distance = [float((x[place] - other).norm()) for other in x]
        others = [n for n in range(len(indices)) if labels[indices[n]] != labels[indices[place]]]
        if strategy == "semihard":
            others = [n for n in others if distance[n] < distance[place + 1]]
        by_anchor.append(sorted((distance[n], int(indices[place]), int(indices[n])) for n in others))
    groups = by_anchor if per == "anchor" else [sorted(pair for pairs in by_anchor for pair in pairs)]
    return sorted((a, n) for group in groups for _, a, n in group[:count])


@pytest.mark.parametrize("per", ["batch", "anchor"])
@pytest.mark.parametrize("strategy", ["hard", "semihard"])
def test_the_pool_has_pairs_of_training_batches(strategy, per):
    labels = POOL_LABELS
    most = 3 if strategy == "hard" else 100
    sampler = HardNegativePoolSampler(labels, 12, 600, strategy, hard_fraction=1.0, pool_size=most, per=per)
    batches = [drawn_batch(sampler, labels) for _ in range(2)]
    wanted = []
    for indices, x in batches:
        sampler.collect(indices, x)
        wanted += slow_pairs(labels, indices, x, strategy, most, per)
    assert all(labels[a] == labels[p] for a, p, _ in triplets_of(sampler))  # collected, and not in use yet
    sampler.refresh_pool()
    assert wanted
    assert sorted(map(tuple, sampler._pool.tolist())) == sorted(wanted)
    drawn = triplets_of(sampler)
    assert {(a, n) for a, _, n in drawn} <= set(wanted)
    assert all(labels[a] == labels[p] != labels[n] and a != p for a, p, n in drawn)
    if strategy == "semihard":
        few = HardNegativePoolSampler(labels, 12, 600, strategy, pool_size=1, per=per)
        few.collect(*batches[0])
        few.refresh_pool()
        assert set(map(tuple, few._pool.tolist())) <= set(wanted)
        anchors = {a for a, _ in slow_pairs(labels, *batches[0], strategy, most)}
        assert len(few._pool) == (1 if per == "batch" else len(anchors))
    sampler.refresh_pool()  # nothing was collected since
    assert len(sampler._pool) == 0
    assert all(labels[a] == labels[p] != labels[n] for a, p, n in triplets_of(sampler))


def test_misclassified_images_are_in_another_classs_cluster():
    labels = POOL_LABELS
    x = batch(labels, spread=0.9)[0].detach()
    sampler = HardNegativePoolSampler(labels, 12, 600, "misclassified", hard_fraction=1.0, pool_size=2)
    sampler.collect(*drawn_batch(sampler, labels))  # nothing of batches is kept
    sampler.refresh_pool(x)
    clusters = kmeans(normalize(x), 6).tolist()
    wrong = {}
    for image, cluster in enumerate(clusters):
        inside = [labels[other] for other in range(30) if clusters[other] == cluster]
        owner = min(set(inside), key=lambda name: (-inside.count(name), name))
        if owner != labels[image]:
            wrong[image] = owner
    assert wrong
    pairs = list(map(tuple, sampler._pool.tolist()))
    assert len(pairs) == len(set(pairs)) == 2 * len(wrong)
    assert all(labels[a] == wrong[n] for a, n in pairs)
    assert {(a, n) for a, _, n in triplets_of(sampler)} <= set(pairs)
    with pytest.raises(ValueError, match="0 embeddings for 30 labels"):
        sampler.refresh_pool()


def test_what_was_collected_is_saved_too():
    labels = POOL_LABELS
    one, other = (HardNegativePoolSampler(labels, 12, 120, "semihard", seed=seed) for seed in (1, 2))
    one.collect(*drawn_batch(one, labels))
    other.load_state_dict(one.state_dict())
    for sampler in (one, other):
        sampler.refresh_pool()
    assert len(one._pool)
    assert list(one) == list(other)
    for call, text in (
        (lambda: one.refresh_pool(torch.randn(30, 4)), "what collect.. was given"),
        (lambda: one.collect(torch.arange(12), torch.randn(5, 4)), "5 embeddings for 12 indices"),
        (
            lambda: HardNegativePoolSampler([0, 0, 1, 1], 6, 12, strategy="misclassified", per="anchor"),
            '"misclassified", whose pairs are of each misclassified image; leave out per',
        ),
        (lambda: HardNegativePoolSampler(labels, 12, 120, pool="nearest", per="anchor"), 'leave out per="anchor"'),
    ):
        with pytest.raises(ValueError, match=text):
            call()


def run(out, *overrides):
    quick = ("schedule.epochs=3", "schedule.milestones=[2]", "model.trunk.width=8", "loss.triplets=all")
    return train("triplets/digits", out=out, device="cpu", overrides=typed((*quick, *overrides)))[0]


@pytest.mark.usefixtures("without_report")
def test_a_runs_pool_has_its_batches(tmp_path, monkeypatch):
    """Every step's embeddings reach the sampler, with the images that they are of."""
    seen = []
    pools = []
    collect = HardNegativePoolSampler.collect
    refresh = HardNegativePoolSampler.refresh_pool

    def collected(self, indices, embeddings):
        seen.append((indices, embeddings))
        collect(self, indices, embeddings)

    def refreshed(self, embeddings=None):
        assert embeddings is None
        refresh(self)
        wanted = [pair for batch in seen[-6:] for pair in slow_pairs(self._labels, *batch, "hard", 2)]
        pools.append(sorted(map(tuple, self._pool.tolist())) == sorted(wanted))

    monkeypatch.setattr(HardNegativePoolSampler, "collect", collected)
    monkeypatch.setattr(HardNegativePoolSampler, "refresh_pool", refreshed)
    run(
        tmp_path / "out",
        "sampler={name='hard-negative-pool', batch_size=30, iterations=3, pool_size=2}",
        "loss.miner=pml/embeddings-already-packaged-as-triplets",
        "evaluation.baselines=false",
    )
    assert len(seen) == 9
    assert pools == [True]  # before epoch 3


def test_the_conventional_pipeline_in_a_run(tmp_path):
    sampler = "sampler={name='hard-negative-pool', batch_size=60, iterations=4, refresh=1, strategy='misclassified'}"
    metrics = run(tmp_path / "out", sampler, "loss.miner=anchor-swap")
    assert {"nmi_3", "f1_3", "purity", "purity_3", "precision_at_8"} <= set(metrics["after"])
    assert "Four classes by the two greatest principal components" in (tmp_path / "out" / "report.html").read_text()
    assert (tmp_path / "out" / "figures" / "four-classes-by-the-two-greatest-principal-components.png").exists()
