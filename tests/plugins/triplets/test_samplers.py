"""The sampler of triplets with hard negatives of training batches, against plain loops."""

import numpy as np
import pytest
import torch

from pml_ext import HardNegativePoolSampler
from pml_ext.evaluation import kmeans
from pml_ext.pairwise import euclidean_distances, normalize
from pml_ext_train.launch.launch import train

from ...overrides import typed


def pool_labels():
    return [c for c in range(6) for _ in range(5)]


def triplets_of(sampler):
    drawn = list(sampler)
    assert len(drawn) == len(sampler)
    return [tuple(drawn[i : i + 3]) for i in range(0, len(drawn), 3)]


@pytest.mark.parametrize("strategy", ["hard", "semihard", "misclassified"])
def test_the_nearest_of_all_images_by_strategy(strategy):
    labels = torch.tensor(pool_labels())
    x = batch(labels, spread=0.9)
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
    hits = [(a, n) in pairs for a, _, n in triplets_of(mixed) if counts[a] == 3]
    assert 0.4 < np.mean(hits) < 0.75


def batch(labels, spread):
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    return centers[labels] + spread * torch.randn(len(labels), 4, generator=generator, dtype=torch.float64)


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
    labels = pool_labels()
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
    labels = pool_labels()
    x = batch(labels, spread=0.9)
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
    labels = pool_labels()
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
