"""Metrics of neighbors and of clusters against loops written from the formulas; k-means."""

import tracemalloc

import faiss
import numpy as np
import pytest
import sklearn.cluster
import torch

from pml_ext.evaluation import clustering, kmeans, metrics, nmi, pairwise_f1, purity
from pml_ext.evaluation.clustering import nmi_majority

from .points import metrics_by_loops


class Case:
    """Queries whose neighbors are drawn at random: metrics see labels and order alone."""

    def __init__(self, query_labels, gallery_labels=None, seed=0):
        rng = np.random.default_rng(seed)
        self.itself = gallery_labels is None
        self.query_labels = torch.as_tensor(query_labels)
        self.gallery_labels = self.query_labels if gallery_labels is None else torch.as_tensor(gallery_labels)
        rows = [rng.permutation(len(self.gallery_labels)) for _ in self.query_labels]
        if self.itself:
            rows = [row[row != i] for i, row in enumerate(rows)]
        self.indices = torch.as_tensor(np.stack(rows))
        self.right = self.gallery_labels[self.indices] == self.query_labels[:, None]
        self.relevant = metrics.relevant_counts(self.query_labels, self.gallery_labels) - int(self.itself)


def skewed(count, classes, seed):
    return (np.random.default_rng(seed).random(count) ** 3 * classes).astype(int)


CASES = {
    "ragged": Case(skewed(45, 6, 0)),
    "lone": Case([*skewed(40, 5, 1), 70, 71, 72]),
    "all lone": Case(np.arange(7)),
    "one class": Case(np.zeros(9, dtype=int)),
    "gallery": Case(skewed(30, 7, 2), skewed(21, 6, 3)),
    "small gallery": Case(skewed(20, 4, 4), [0, 2, 2]),
    "no relevant item": Case([1, 1, 2], [3, 3]),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def values(right, relevant, k):
    return {
        f"recall_at_{k}": metrics.recall_at_k(right, k),
        f"precision_at_{k}": metrics.precision_at_k(right, k),
        "r_precision": metrics.r_precision(right, relevant),
        "mean_average_precision_at_r": metrics.map_at_r(right, relevant),
        "mean_average_precision": metrics.average_precision(right, relevant),
        "mean_reciprocal_rank": metrics.reciprocal_rank(right),
    }


@cases
@pytest.mark.parametrize("k", [1, 4, 60])
@pytest.mark.parametrize("columns", [None, 3])
def test_values_per_query_equal_loops(case, k, columns):
    right = case.right[:, :columns]
    wanted = [
        metrics_by_loops(row, count, [k]) for row, count in zip(right.tolist(), case.relevant.tolist(), strict=True)
    ]
    for name, result in values(right, case.relevant, k).items():
        assert result.dtype == torch.float64
        assert result.tolist() == pytest.approx([row[name] for row in wanted], abs=1e-12, nan_ok=True), name


@pytest.mark.parametrize(
    ("given", "headline"),
    [
        ({"map_at_r": 1, "recall_at_1": 0.5}, "recall_at_1"),
        ({"verification_eer": 1, "verification_roc_auc": 0.5}, "verification_roc_auc"),
        ({"triplet_accuracy": 0.5}, "triplet_accuracy"),
        ({"train": 3.2}, ""),
    ],
)
def test_the_metric_of_a_headline(given, headline):
    assert metrics.headline_metric(given) == headline


def test_a_metric_has_one_title_by_its_key():
    titles = {
        "recall_at_1": "Recall@1",
        "recall_at_100_level_2": "Recall@100, level 2",
        "precision_at_1": "P@1",
        "ndcg_at_10": "NDCG@10",
        "map_at_r": "MAP@R",
        "nmi": "NMI",
        "nmi_3": "NMI, 3 per class",
        "nmi_majority_12": "NMI of majority classes, 12 per class",
        "nmi_1": "nmi_1",
        "purity": "purity",
        "verification_tar_at_far_0.01": "TAR at FAR 0.01",
        "verification_accuracy": "accuracy of pairs at the training threshold",
        "triplet_accuracy": "accuracy of triplets",
        "zero_shot_top_5": "zero-shot, top-5",
        "of_a_plugin_0": "of_a_plugin_0",
    }
    assert {name: metrics.title_of(name) for name in titles} == titles
    unknown = {name for name in titles if not metrics.is_known_metric(name)}
    assert unknown == {"nmi_1", "of_a_plugin_0"}


def test_all_metrics_of_the_table_are_known():
    for metric in metrics.metrics_of((1, 10), (1, 5), (1, 2, 10), (5,), (1, 2), verification=True):
        assert metrics.is_known_metric(metric.name), metric.name


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
    assert torch.equal(kmeans(points.bfloat16().requires_grad_(), 3), wanted)


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
