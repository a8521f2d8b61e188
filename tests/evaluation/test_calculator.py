"""Metrics against slow loops, scikit-learn and PML, where definitions coincide."""

import itertools
import math

import numpy as np
import pytest
import torch
from pytorch_metric_learning.distances import SNRDistance
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator, precision_at_k
from pytorch_metric_learning.utils.inference import CustomKNN

from pml_ext import DifferentGroups, NegativesOnly, RetrievalAccuracyCalculator, SharedLabel
from pml_ext.evaluation import (
    NearestNeighbors,
    default_neighbors,
    kmeans,
    neighbors,
    pairwise_f1,
    purity,
)

from .points import data, never, ranked


def with_lone_queries():
    points, labels = data()
    more = torch.randn(2, 5, generator=torch.Generator().manual_seed(5))
    return torch.cat([points, more]), torch.cat([labels, torch.tensor([50, 51])])


@pytest.fixture
def watched():
    """The default search, which notes how many queries and neighbors it is asked for."""

    def noted(query, k, reference):
        search.asked.append((len(query), k))
        return default_neighbors().search(query, k, reference)

    search = NearestNeighbors(noted)
    search.asked = []
    return search


@pytest.mark.parametrize("lone_queries", ["miss", "drop"])
@pytest.mark.parametrize("gallery", [False, True])
def test_recall_equals_a_slow_loop(lone_queries, gallery):
    points, labels = with_lone_queries()
    reference, reference_labels = data(40, seed=1) if gallery else (points, labels)
    calculator = RetrievalAccuracyCalculator(recall_at=(1, 3, 8, 200), lone_queries=lone_queries)
    found = calculator.get_accuracy(points, labels, reference, reference_labels, not gallery)
    right = [
        [reference_labels[j] == labels[i] for j in row] for i, row in enumerate(ranked(points, reference, not gallery))
    ]
    right = [row for row in right if any(row) or lone_queries == "miss"]
    for k in (1, 3, 8, 200):
        assert found[f"recall_at_{k}"] == pytest.approx(sum(any(row[:k]) for row in right) / len(right), abs=1e-9)


def test_clusters_may_come_as_an_array():
    points, labels = data()

    def clusters_of(points, clusters):
        return np.arange(len(points)) % clusters

    names = ("NMI", "AMI", "f1", "purity", "purity_2")
    found = RetrievalAccuracyCalculator(include=names, clusters_per_class=(2,), kmeans_func=clusters_of)
    theirs = AccuracyCalculator(include=names[:2], kmeans_func=clusters_of)
    accuracies = found.get_accuracy(points, labels)
    assert {name: accuracies[name] for name in names[:2]} == pytest.approx(theirs.get_accuracy(points, labels))
    assert accuracies["purity_2"] == purity(labels, clusters_of(points, 14))


@pytest.mark.parametrize("k", [{}, {"k": None}, {"k": "max_bin_count"}, {"k": 3}], ids=str)  # {}: by default
@pytest.mark.parametrize("settings", [{}, {"avg_of_avgs": True}, {"return_per_class": True}], ids=str)
@pytest.mark.parametrize("gallery", [False, True])
def test_pmls_metrics_keep_their_values(k, settings, gallery):
    points, labels = with_lone_queries()
    given = (points, labels, *data(40, seed=1)) if gallery else (points, labels)
    settings = {**k, **settings, "exclude": ("AMI", "NMI")}
    mine = RetrievalAccuracyCalculator(recall_at=(1, 16), lone_queries="drop", **settings).get_accuracy(*given)
    theirs = AccuracyCalculator(**settings).get_accuracy(*given)
    for name, value in theirs.items():
        assert mine[name] == pytest.approx(value), name
    assert mine["recall_at_1"] == pytest.approx(mine["precision_at_1"])
    assert "recall_at_16" in mine


def test_large_labels_differ_without_float32_rounding():
    points = torch.tensor([[0.0], [1.0], [0.1], [1.1]])
    labels = torch.tensor([16777216, 16777216, 16777217, 16777217])
    assert RetrievalAccuracyCalculator().get_accuracy(points, labels)["recall_at_1"] == 0
    assert AccuracyCalculator(include=("precision_at_1",)).get_accuracy(points, labels)["precision_at_1"] == 1  # PML's


def test_f1_and_purity_equal_loops():
    generator = np.random.default_rng(0)
    for _ in range(5):
        labels = generator.integers(4, size=25)
        clusters = generator.integers(5, size=25)
        pairs = list(itertools.combinations(range(25), 2))
        both = sum(labels[i] == labels[j] and clusters[i] == clusters[j] for i, j in pairs)
        cluster, label = (sum(x[i] == x[j] for i, j in pairs) for x in (clusters, labels))
        precision = both / cluster
        recall = both / label
        assert pairwise_f1(labels, clusters) == pytest.approx(2 * precision * recall / (precision + recall))
        right = sum(max((labels[clusters == k] == c).sum() for c in range(4)) for k in set(clusters.tolist()))
        assert purity(labels, clusters) == pytest.approx(right / 25)
    assert (pairwise_f1([0, 1, 2], [2, 1, 0]), purity([0, 1, 2], [2, 1, 0])) == (0, 1)


def extended(base):
    """The documented custom calculator, a metric that requires_knn() does not have, and a label that must be seen."""

    class Calculator(base):
        def calculate_precision_at_2(self, knn_labels, query_labels, **kwargs):
            return precision_at_k(knn_labels, query_labels[:, None], 2, False, False, self.label_comparison_fn)

        def calculate_width(self, knn_distances, **kwargs):
            return knn_distances.shape[1]

        def calculate_twice(self, **kwargs):
            return 2 * self.calculate_mean_average_precision_at_r(**kwargs)

        def calculate_r_precision(self, **kwargs):
            return 1 - super().calculate_r_precision(**kwargs)

        def calculate_number_of_clusters(self, cluster_labels, **kwargs):
            return len(cluster_labels.unique())

        def requires_clustering(self):
            return [*super().requires_clustering(), "number_of_clusters"]

        def requires_knn(self):
            return [*super().requires_knn(), "precision_at_2"]

    return Calculator


@pytest.mark.parametrize("k", [None, "max_bin_count", 3])
@pytest.mark.parametrize(
    "include",
    [
        *(("precision_at_2",), ("precision_at_2", "width"), ("width", "precision_at_1"), ("number_of_clusters",)),
        ("r_precision", "twice", "precision_at_1"),
    ],
)
def test_subclass_metrics_equal_those_of_pmls_calculator(include, k):
    points, labels = data()
    ours, theirs = (
        extended(base)(include=include, k=k, kmeans_func=kmeans).get_accuracy(points, labels)
        for base in (RetrievalAccuracyCalculator, AccuracyCalculator)
    )
    assert ours == pytest.approx(theirs)
    assert all(value > 0 for value in ours.values())


LARGEST = int(data()[1].bincount().max()) - 1  # other images of the largest class


@pytest.mark.parametrize(
    ("include", "k", "asked"),
    [
        (("recall_at_8",), None, 8),
        (("recall_at_8", "r_precision"), None, LARGEST),
        (("recall_at_1", "mean_average_precision_at_r"), "max_bin_count", LARGEST),
        (("recall_at_8", "r_precision"), 5, 8),
        (("mean_reciprocal_rank",), None, 59),
        (("mean_reciprocal_rank",), 5, 5),
    ],
)
def test_one_search_finds_the_neighbors_that_metrics_need(include, k, asked, watched):
    RetrievalAccuracyCalculator(include=include, knn_func=watched, k=k).get_accuracy(*data())
    assert watched.asked == [(60, asked + 1)]  # and the query itself


def test_tiles_change_no_metric_of_neighbors(monkeypatch, watched):
    points, labels = data()
    whole = RetrievalAccuracyCalculator(exclude=("NMI", "AMI"), k=None).get_accuracy(points, labels)
    monkeypatch.setattr(neighbors, "_NEIGHBORS", 600)
    tiled = RetrievalAccuracyCalculator(exclude=("NMI", "AMI"), k=None, knn_func=watched).get_accuracy(points, labels)
    assert tiled == whole
    assert watched.asked == [(10, 60)] * 6


def lacking(queries, columns):
    """Return a search that lacks the neighbors of the first queries from some column on."""

    def search(query, k, reference):
        distances, indices = default_neighbors().search(query, k, reference)
        indices[:queries, columns:] = -1
        return distances, indices

    return NearestNeighbors(search)


def test_missing_neighbors_of_an_index_are_wrong():
    points, labels = data()
    labels[-1] = labels[0]  # what an index of -1 would pick
    calculator = RetrievalAccuracyCalculator(
        include=("recall_at_1", "recall_at_8", "precision_at_8"), precision_at=(8,), knn_func=lacking(60, 2)
    )
    found = calculator.get_accuracy(points, labels)
    assert found["recall_at_8"] == found["recall_at_1"] == pytest.approx(8 * found["precision_at_8"])


@pytest.mark.parametrize("when", ["made", "called"])
def test_pmls_way_of_leaving_clustering_out(when):
    points, labels = data()
    exclude = {"exclude": ("NMI", "AMI")}
    calculator = RetrievalAccuracyCalculator(kmeans_func=never, **(exclude if when == "made" else {}))
    found = calculator.get_accuracy(points, labels, **(exclude if when == "called" else {}))
    theirs = AccuracyCalculator(**exclude).get_accuracy(points, labels)
    assert set(found) == {*theirs, "recall_at_1", "recall_at_2", "recall_at_4", "recall_at_8"}


def test_label_comparisons_agree_with_pmls_calculator():
    """PML's documented functions: labels of two columns, and labels that are near."""
    points, first = data()
    two = torch.stack([first, torch.arange(60) % 5], 1)
    for labels, compare in (
        (two, lambda x, y: (x[..., 0] == y[..., 0]) & (x[..., 1] != y[..., 1])),
        (first / 4, lambda x, y: (x - y).abs() < 0.3),
    ):
        settings = {"label_comparison_fn": compare, "knn_func": CustomKNN(SNRDistance())}
        settings |= {"exclude": ("NMI", "AMI"), "k": None}
        ours, theirs = (
            base(**settings).get_accuracy(points, labels) for base in (RetrievalAccuracyCalculator, AccuracyCalculator)
        )
        assert {name: ours[name] for name in theirs} == pytest.approx(theirs)  # PML has one of them in float32
        assert ours["recall_at_1"] == theirs["precision_at_1"]


def test_kept_neighbors_equal_a_direct_search():
    points, labels = data()
    distances, indices = default_neighbors()(points, 5, points, ref_includes_query=True)
    calculator = RetrievalAccuracyCalculator(include=("recall_at_8", "precision_at_1"))
    found = calculator.evaluate(points, labels, keep=5)
    assert found.accuracies == calculator.get_accuracy(points, labels)
    assert torch.equal(found.indices, indices)
    assert torch.equal(found.distances, distances)
    assert torch.equal(found.right, labels[indices] == labels[:, None])
    assert found.relevant.tolist() == [int((labels == label).sum()) - 1 for label in labels]
    assert calculator.evaluate(points, labels, points[:3], labels[:3], keep=5).right.shape == (60, 3)
    alone = calculator.evaluate(torch.zeros(1, 2), torch.tensor([4]), keep=3)
    assert math.isnan(alone.accuracies["recall_at_8"])
    assert alone.indices.shape == (1, 0)
    clusters = RetrievalAccuracyCalculator(include=("purity",), knn_func=never).evaluate(points, labels)
    assert (list(clusters.accuracies), clusters.indices.shape) == (["purity"], (60, 0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"recall_at": (0,)}, "recall_at must have integers of at least 1, not 0"),
        ({"lone_queries": "keep"}, "'miss' or 'drop', not 'keep'"),
        ({"include": ("recall_at_3",)}, "no metric 'recall_at_3'; nearest: recall_at_"),
        ({"relation": SharedLabel(), "label_comparison_fn": torch.eq}, "leave out one"),
        ({"relation": SharedLabel(), "include": ("NMI",)}, "clustering"),
        ({"label_comparison_fn": torch.eq}, "clustering"),
        ({"label_comparison_fn": torch.eq, "include": ("nmi_3",), "clusters_per_class": (3,)}, "clustering"),
        ({"relation": DifferentGroups()}, r"type evaluate\(points, classes, query_groups=groups\)"),
    ],
)
def test_wrong_settings_of_the_calculator_raise(settings, message):
    with pytest.raises((NotImplementedError, ValueError), match=message):
        RetrievalAccuracyCalculator(**settings)


class OfASubclass(RetrievalAccuracyCalculator):
    def requires_knn(self):
        return [*super().requires_knn(), "nearest_is_right"]

    def calculate_nearest_is_right(self, knn_labels, query_labels, **_):
        return float((knn_labels[:, 0] == query_labels).float().mean())


def with_two(bad):
    """Points with two rows that have a bad value."""
    points, _ = data()
    points[3, 1] = points[5, 0] = bad
    return points


@pytest.mark.parametrize("include", [("recall_at_1",), ("NMI",), ("nearest_is_right",)])
@pytest.mark.parametrize(
    ("query", "reference", "message"),
    [
        (with_two(math.nan), None, "2 of 60 rows of query have NaN or infinite values"),
        (with_two(math.inf), None, "2 of 60 rows of query have NaN or infinite values"),
        (data()[0], with_two(math.nan), "2 of 60 rows of reference have NaN"),
        (torch.rand(4), None, r"query must be floating point numbers of shape \[N, D\]; got .* shape \(4,\)"),
        (torch.rand(4, 2, 2), None, r"query must be .* \[N, D\]; got .* shape \(4, 2, 2\)"),
        (torch.rand(4, 2), torch.rand(4, 3), "queries have embeddings of size 2, and the gallery of size 3; wanted"),
    ],
)
def test_unusable_embeddings_are_refused_by_row_or_shape(include, query, reference, message):
    labels = [torch.arange(len(side)) // 2 for side in (query, reference) if side is not None]
    calculator = OfASubclass(include=include)
    with pytest.raises(ValueError, match=message):
        calculator.get_accuracy(query, labels[0], reference, labels[-1])


def test_a_subclass_cannot_count_missing_neighbors():
    """The metric got the label of the gallery's last image."""
    points, labels = data()
    calculator = OfASubclass(include=("nearest_is_right",), knn_func=lacking(3, 0))
    with pytest.raises(ValueError, match=r"fewer than 60 neighbors of 3 of 60 queries, and nearest_is_right"):
        calculator.get_accuracy(points, labels, points, labels)


@pytest.mark.parametrize("as_given", [torch.as_tensor, np.asarray], ids=["tensor", "array"])
@pytest.mark.parametrize(
    "settings", [{}, {"relation": NegativesOnly()}, {"near": True}], ids=["equal", "relation", "fn"]
)
def test_labels_of_one_column_are_accepted(settings, as_given):
    """PML's testers give labels of shape [N, 1]."""
    points, labels = data()
    reference, reference_labels = data(40, seed=1)
    if "near" in settings:
        settings = {"label_comparison_fn": lambda x, y: (x - y).abs() < 1.5, "exclude": ("NMI", "AMI")}
    calculator = RetrievalAccuracyCalculator(**settings)
    columns = as_given(labels[:, None]), as_given(reference_labels[:, None])
    assert calculator.get_accuracy(points, columns[0]) == calculator.get_accuracy(points, labels)
    found = calculator.get_accuracy(points, columns[0], reference, columns[1])
    assert found == calculator.get_accuracy(points, labels, reference, reference_labels)
    assert found == calculator.get_accuracy(points, labels, reference, columns[1])


def test_a_comparison_of_several_columns_says_so():
    points, labels = data()
    two = torch.stack([labels, labels], 1)
    settings = {"exclude": ("NMI", "AMI"), "include": ("recall_at_1",)}
    first = RetrievalAccuracyCalculator(label_comparison_fn=lambda x, y: x[..., 0] == y[..., 0], **settings)
    assert first.get_accuracy(points, labels[:, None]) == first.get_accuracy(points, two)
    with pytest.raises(ValueError, match=r"one boolean for each pair; for labels of shape \[60, 2\]"):
        RetrievalAccuracyCalculator(label_comparison_fn=lambda x, y: x == y, **settings).get_accuracy(points, two)
