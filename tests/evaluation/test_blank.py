"""Tests that cannot give a metric: no right answer, no wrong one, as many clusters as queries."""

import math
import warnings

import pytest
import torch

from pml_ext import RetrievalAccuracyCalculator, SharedLabel

CLUSTERS = ["NMI", "AMI", "f1", "purity", "nmi_majority"]


def points_of(count, seed=0):
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


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
        found = calculator.get_accuracy(points_of(12), torch.arange(12))
    assert all(math.isnan(value) for value in found.values())
    reasons = {str(warning.message).partition("left blank, since ")[2] for warning in caught}
    assert reasons == {
        "none of the 12 queries has another item of its class in the gallery",
        "12 clusters of 12 queries have one each, whatever the embeddings",
    }
    assert found.keys() >= {*CLUSTERS, "recall_at_1", "precision_at_1", "r_precision"}


def test_as_many_clusters_as_queries_are_left_blank():
    calculator = RetrievalAccuracyCalculator(("NMI", "purity", "purity_2"), clusters_per_class=(1, 2))
    found = calculator.evaluate(points_of(8), torch.arange(8) // 2)
    assert math.isnan(found.accuracies["purity_2"])
    assert 0 < found.accuracies["purity"] <= 1
    assert found.blank == {"purity_2": "8 clusters of 8 queries have one each, whatever the embeddings"}


def test_tests_of_one_class_are_blank():
    calculator = RetrievalAccuracyCalculator()
    points = points_of(10)
    labels = torch.full((10,), 3)
    found = calculator.evaluate(points, labels, points_of(4, 1), labels[:4])
    assert all(math.isnan(value) for value in found.accuracies.values())
    assert found.blank["recall_at_1"] == "every item of the gallery is right for every query, as in a test of one class"
    assert found.blank["NMI"] == "all 10 queries have one class, so that no cluster can be wrong"
    assert found.counted == {}
    by_class = RetrievalAccuracyCalculator(("recall_at_1",), return_per_class=True).evaluate(points, labels)
    assert by_class.accuracies == {"recall_at_1": [pytest.approx(math.nan, nan_ok=True)]}


def test_one_queried_class_among_others_is_tested():
    points = points_of(10)
    labels = torch.tensor([1, 1, 1, 0, 0, 0, 0, 0, 0, 0])
    calculator = RetrievalAccuracyCalculator(("recall_at_1",))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = calculator.get_accuracy(points[:3], labels[:3], points, labels, ref_includes_query=True)
    assert 0 <= found["recall_at_1"] <= 1


def test_relation_that_makes_all_right_is_blank():
    sets = torch.ones(6, 2)
    found = RetrievalAccuracyCalculator(("recall_at_1", "ndcg_at_2"), relation=SharedLabel(), ndcg_at=(2,)).evaluate(
        points_of(6), sets
    )
    assert math.isnan(found.accuracies["recall_at_1"])
    assert found.accuracies["ndcg_at_2"] == 1.0  # its gains may differ
