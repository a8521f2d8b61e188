"""The calculator: metrics against slow loops, scikit-learn and PML; tests without a metric; metrics of plugins."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from pytorch_metric_learning.distances import SNRDistance
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator, precision_at_k
from pytorch_metric_learning.utils.inference import CustomKNN

from pml_ext import DifferentGroups, NegativesOnly, RetrievalAccuracyCalculator, SharedLabel
from pml_ext.errors import PluginError, PluginWarning
from pml_ext.evaluation import NearestNeighbors, default_neighbors, kmeans, neighbors, pairwise_f1, purity
from pml_ext_train.launch.launch import train

from ..overrides import typed
from .points import data, never, ranked

POINTS, LABELS = data()


def with_lone_queries():
    more = torch.randn(2, 5, generator=torch.Generator().manual_seed(5))
    return torch.cat([POINTS, more]), torch.cat([LABELS, torch.tensor([50, 51])])


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
    for name, value in AccuracyCalculator(**settings).get_accuracy(*given).items():
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
    ours, theirs = (
        extended(base)(include=include, k=k, kmeans_func=kmeans).get_accuracy(POINTS, LABELS)
        for base in (RetrievalAccuracyCalculator, AccuracyCalculator)
    )
    assert ours == pytest.approx(theirs)
    assert all(value > 0 for value in ours.values())


LARGEST = int(LABELS.bincount().max()) - 1  # other images of the largest class


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
    whole = RetrievalAccuracyCalculator(exclude=("NMI", "AMI"), k=None).get_accuracy(POINTS, LABELS)
    monkeypatch.setattr(neighbors, "_NEIGHBORS", 600)
    tiled = RetrievalAccuracyCalculator(exclude=("NMI", "AMI"), k=None, knn_func=watched).get_accuracy(POINTS, LABELS)
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
    exclude = {"exclude": ("NMI", "AMI")}
    calculator = RetrievalAccuracyCalculator(kmeans_func=never, **(exclude if when == "made" else {}))
    found = calculator.get_accuracy(POINTS, LABELS, **(exclude if when == "called" else {}))
    theirs = AccuracyCalculator(**exclude).get_accuracy(POINTS, LABELS)
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
    distances, indices = default_neighbors()(POINTS, 5, POINTS, ref_includes_query=True)
    calculator = RetrievalAccuracyCalculator(include=("recall_at_8", "precision_at_1"))
    found = calculator.evaluate(POINTS, LABELS, keep=5)
    assert found.accuracies == calculator.get_accuracy(POINTS, LABELS)
    assert torch.equal(found.indices, indices)
    assert torch.equal(found.distances, distances)
    assert torch.equal(found.right, LABELS[indices] == LABELS[:, None])
    assert found.relevant.tolist() == [int((label == LABELS).sum()) - 1 for label in LABELS]
    assert calculator.evaluate(POINTS, LABELS, POINTS[:3], LABELS[:3], keep=5).right.shape == (60, 3)
    alone = calculator.evaluate(torch.zeros(1, 2), torch.tensor([4]), keep=3)
    assert math.isnan(alone.accuracies["recall_at_8"])
    assert alone.indices.shape == (1, 0)
    clusters = RetrievalAccuracyCalculator(include=("purity",), knn_func=never).evaluate(POINTS, LABELS)
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
    calculator = OfASubclass(include=("nearest_is_right",), knn_func=lacking(3, 0))
    with pytest.raises(ValueError, match=r"fewer than 60 neighbors of 3 of 60 queries, and nearest_is_right"):
        calculator.get_accuracy(POINTS, LABELS, POINTS, LABELS)


@pytest.mark.parametrize("as_given", [torch.as_tensor, np.asarray], ids=["tensor", "array"])
@pytest.mark.parametrize(
    "settings", [{}, {"relation": NegativesOnly()}, {"near": True}], ids=["equal", "relation", "fn"]
)
def test_labels_of_one_column_are_accepted(settings, as_given):
    """PML's testers give labels of shape [N, 1]."""
    reference, reference_labels = data(40, seed=1)
    if "near" in settings:
        settings = {"label_comparison_fn": lambda x, y: (x - y).abs() < 1.5, "exclude": ("NMI", "AMI")}
    calculator = RetrievalAccuracyCalculator(**settings)
    columns = as_given(LABELS[:, None]), as_given(reference_labels[:, None])
    assert calculator.get_accuracy(POINTS, columns[0]) == calculator.get_accuracy(POINTS, LABELS)
    found = calculator.get_accuracy(POINTS, columns[0], reference, columns[1])
    assert found == calculator.get_accuracy(POINTS, LABELS, reference, reference_labels)
    assert found == calculator.get_accuracy(POINTS, LABELS, reference, columns[1])


def test_a_comparison_of_several_columns_says_so():
    two = torch.stack([LABELS, LABELS], 1)
    settings = {"exclude": ("NMI", "AMI"), "include": ("recall_at_1",)}
    first = RetrievalAccuracyCalculator(label_comparison_fn=lambda x, y: x[..., 0] == y[..., 0], **settings)
    assert first.get_accuracy(POINTS, LABELS[:, None]) == first.get_accuracy(POINTS, two)
    with pytest.raises(ValueError, match=r"one boolean for each pair; for labels of shape \[60, 2\]"):
        RetrievalAccuracyCalculator(label_comparison_fn=lambda x, y: x == y, **settings).get_accuracy(POINTS, two)


CLUSTERS = ["NMI", "AMI", "f1", "purity", "nmi_majority"]


@pytest.mark.parametrize(("lone_queries", "counted"), [("drop", 4), ("miss", 6)])
def test_queries_without_an_answer_are_counted_apart(lone_queries, counted):
    """Two of six queries are the only ones of their class; of the four others, three are right."""
    points = torch.tensor([0, 1, 10, 11, 11.4, 30])[:, None]
    calculator = RetrievalAccuracyCalculator(("recall_at_1", "precision_at_1", "NMI"), lone_queries=lone_queries)
    found = calculator.evaluate(points, torch.tensor([0, 0, 1, 1, 2, 3]))
    assert found.accuracies["recall_at_1"] == 3 / counted
    assert found.accuracies["precision_at_1"] == 3 / 4
    assert found.counted == {"recall_at_1": counted, "precision_at_1": 4, "NMI": 6}
    assert found.blank == {}


@pytest.mark.parametrize("lone_queries", ["miss", "drop"])
def test_one_item_of_each_class_gives_nothing(lone_queries):
    calculator = RetrievalAccuracyCalculator(lone_queries=lone_queries)
    with pytest.warns(UserWarning, match="left blank, since") as caught:
        found = calculator.get_accuracy(data(12)[0], torch.arange(12))
    assert all(math.isnan(value) for value in found.values())
    reasons = {str(warning.message).partition("left blank, since ")[2] for warning in caught}
    assert reasons == {
        "none of the 12 queries has another item of its class in the gallery",
        "12 clusters of 12 queries have one each, whatever the embeddings",
    }
    assert found.keys() >= {*CLUSTERS, "recall_at_1", "precision_at_1", "r_precision"}


def test_as_many_clusters_as_queries_are_left_blank():
    calculator = RetrievalAccuracyCalculator(("NMI", "purity", "purity_2"), clusters_per_class=(1, 2))
    found = calculator.evaluate(data(8)[0], torch.arange(8) // 2)
    assert math.isnan(found.accuracies["purity_2"])
    assert 0 < found.accuracies["purity"] <= 1
    assert found.blank == {"purity_2": "8 clusters of 8 queries have one each, whatever the embeddings"}


def test_tests_of_one_class_are_blank():
    calculator = RetrievalAccuracyCalculator()
    points = data(10)[0]
    labels = torch.full((10,), 3)
    found = calculator.evaluate(points, labels, data(4, seed=1)[0], labels[:4])
    assert all(math.isnan(value) for value in found.accuracies.values())
    assert found.blank["recall_at_1"] == "every item of the gallery is right for every query, as in a test of one class"
    assert found.blank["NMI"] == "all 10 queries have one class, so that no cluster can be wrong"
    assert found.counted == {}
    by_class = RetrievalAccuracyCalculator(("recall_at_1",), return_per_class=True).evaluate(points, labels)
    assert by_class.accuracies == {"recall_at_1": [pytest.approx(math.nan, nan_ok=True)]}


def test_one_queried_class_among_others_is_tested():
    points = data(10)[0]
    labels = torch.tensor([1, 1, 1, 0, 0, 0, 0, 0, 0, 0])
    calculator = RetrievalAccuracyCalculator(("recall_at_1",))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = calculator.get_accuracy(points[:3], labels[:3], points, labels, ref_includes_query=True)
    assert 0 <= found["recall_at_1"] <= 1


def test_relation_that_makes_all_right_is_blank():
    sets = torch.ones(6, 2)
    found = RetrievalAccuracyCalculator(("recall_at_1", "ndcg_at_2"), relation=SharedLabel(), ndcg_at=(2,)).evaluate(
        data(6)[0], sets
    )
    assert math.isnan(found.accuracies["recall_at_1"])
    assert found.accuracies["ndcg_at_2"] == 1.0  # its gains may differ


PLUGIN = """
    from pml_ext.plugin import hookimpl

    def calculate_farthest(knn_labels, query_labels, not_lone_query_mask, **kwargs):
        right = knn_labels[:, -1] == query_labels
        return right[not_lone_query_mask].float().mean()

    def calculate_largest(cluster_labels, **kwargs):
        return cluster_labels.bincount().max() / len(cluster_labels)

    def calculate_nmi(**kwargs):
        return 2.0

    def calculate_broken(knn_labels, **kwargs):
        return 1 / 0

    @hookimpl
    def pml_ext_metrics():
        return {METRICS}
"""


BOTH = '{"farthest": calculate_farthest, "largest": calculate_largest}'


@pytest.mark.usefixtures("isolated_registry")
def test_a_plugins_metrics_are_computed_as_pmls(install_plugin):
    install_plugin("far", PLUGIN.replace("{METRICS}", BOTH))
    found = RetrievalAccuracyCalculator(k=3, exclude=("AMI",)).get_accuracy(POINTS, LABELS)
    alone = RetrievalAccuracyCalculator(include=("farthest",), kmeans_func=never, k=3)
    assert alone.get_accuracy(POINTS, LABELS) == {"farthest": found["farthest"]}
    third = torch.tensor([row[2] for row in ranked(POINTS, POINTS, True)])
    assert float(found["farthest"]) == pytest.approx(float((LABELS[third] == LABELS).float().mean()))
    assert float(found["largest"]) == pytest.approx(int(kmeans(POINTS, 7).bincount().max()) / 60)


@pytest.mark.usefixtures("isolated_registry")
def test_a_plugins_metric_is_named_where_it_fails(install_plugin):
    install_plugin("far", PLUGIN.replace("{METRICS}", '{"nmi": calculate_nmi, "broken": calculate_broken}'))
    with pytest.warns(PluginWarning, match="the metric 'nmi' of the plugin 'far' is left out: the name is taken"):
        calculator = RetrievalAccuracyCalculator(include=("broken",))
    with pytest.raises(PluginError, match="the metric 'broken' of the plugin 'far' failed: ZeroDivisionError"):
        calculator.get_accuracy(*data())
    texts = []
    assert calculator.evaluate(*data(), on_failure=texts.append).accuracies == {}
    assert [text.partition(":")[0] for text in texts] == ["the metric 'broken' of the plugin 'far' failed"]


@pytest.mark.usefixtures("isolated_registry")
def test_plugin_metric_in_a_run_chooses_its_epoch(install_plugin, pml_ext_command, tmp_path):
    install_plugin("far", PLUGIN.replace("{METRICS}", BOTH))
    quick = ("schedule.epochs=2", "schedule.milestones=[1]", "sampler.iterations=2", "model.trunk.width=8")
    quick += ("evaluation.validation=0.3", "evaluation.select=largest", "sampler.batch_size=56")
    metrics = train("cbml/digits", out=tmp_path / "run", overrides=typed(quick), device="cpu")[0]
    assert list(metrics["after"])[-6:] == ["farthest", "nmi", "nmi_majority", "f1", "purity", "largest"]
    assert 0 < metrics["after"]["largest"] < 1
    assert 0 < metrics["raw"]["farthest"] < 1
    done = pml_ext_command("compare", tmp_path / "run", "--metric", "farthest", "--json")
    assert done.returncode == 0, done.stderr
    assert str(metrics["after"]["farthest"])[:5] in done.stdout
    assert "farthest" in (tmp_path / "run" / "report.html").read_text()
