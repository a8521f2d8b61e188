"""K-means: how many starts it has; agreement of clusters and classes without a table of classes x clusters."""

import tracemalloc

import faiss
import numpy as np
import pytest
import sklearn.cluster
import torch

from pml_ext.evaluation import clustering, kmeans, nmi, pairwise_f1, purity
from pml_ext.evaluation.clustering import nmi_majority


@pytest.mark.parametrize("installed", [True, False])
def test_k_means_has_the_starts_of_the_rule(installed, monkeypatch):
    made = []
    module, name, setting = (faiss, "Kmeans", "nredo") if installed else (sklearn.cluster, "KMeans", "n_init")

    def noted(*args, original=sklearn.cluster.KMeans if not installed else faiss.Kmeans, **settings):
        made.append(settings[setting])
        return original(*args, **settings)

    monkeypatch.setattr(module, name, noted)
    if not installed:
        monkeypatch.setattr(clustering, "has_faiss", lambda: False)
    points = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    kmeans(points, 7)
    monkeypatch.setattr(clustering, "MAX_MULTIPLICATIONS", 2 * 60 * 7 * 5)
    kmeans(points, 7)
    assert made == [10 if installed else 3, 2]


@pytest.mark.parametrize("installed", [True, False])
def test_k_means_takes_half_precision_and_gradients(installed, monkeypatch):
    monkeypatch.setattr(clustering, "has_faiss", lambda: installed)
    points = torch.eye(3).repeat(4, 1)
    wanted = kmeans(points, 3)
    found = kmeans(points.bfloat16().requires_grad_(), 3)
    assert torch.equal(found, wanted)


def test_agreement_takes_memory_of_the_points_alone():
    generator = np.random.default_rng(0)
    labels, clusters = (generator.integers(11_316, size=60_502) for _ in range(2))
    tracemalloc.start()
    for function in (nmi, nmi_majority, pairwise_f1, purity):
        function(labels, clusters)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6  # a table of classes x clusters has 128 million entries


def test_nmi_of_majority_classes_equals_a_loop():
    generator = np.random.default_rng(1)
    labels = generator.integers(10, 14, size=60)
    clusters = generator.integers(9, size=60) * 7
    majority = []
    for cluster in clusters:
        inside = labels[clusters == cluster].tolist()
        majority.append(min(set(inside), key=lambda name: (-inside.count(name), name)))
    assert nmi_majority(labels, clusters) == pytest.approx(nmi(labels, majority))
    assert nmi_majority(labels, np.arange(60)) == 1  # clusters of one class count as one
    assert nmi(labels, np.arange(60)) < 1
