"""Evaluation with a relation against a loop over queries."""

import math

import numpy as np
import pytest
import torch

from pml_ext import FromMatrix, Hierarchy, RetrievalAccuracyCalculator, SharedLabel
from pml_ext.evaluation import calculator, retrieval

from .points import metrics_by_loops, ndcg

N = 50
M = 40
NAMES = ("recall_at_1", "recall_at_4", "precision_at_5", "r_precision", "mean_average_precision_at_r", "ndcg_at_10")


def made(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 5, generator=generator), torch.rand(rows, 6, generator=generator) < 0.3


def loop(points, weights, gallery=None):
    """The metrics of queries, with weights ``[Q, R]`` of the gallery's items."""
    values = {name: [] for name in NAMES}
    for i, query in enumerate(points.double()):
        others = points if gallery is None else gallery
        distances = (others.double() - query).norm(dim=1)
        order = [j for j in distances.argsort().tolist() if gallery is not None or j != i]
        gains = np.nan_to_num(weights[i][order].double().numpy()).tolist()
        relevant = np.count_nonzero(gains)
        found = metrics_by_loops([gain > 0 for gain in gains], relevant, (1, 4, 5))
        found["ndcg_at_10"] = ndcg(gains, 10) if relevant else 0
        for name in NAMES:
            if relevant or name.startswith("recall"):
                values[name].append(found[name])
    return {name: float(np.mean(each)) for name, each in values.items()}


@pytest.mark.parametrize("relation", [SharedLabel(), SharedLabel(graded=True), SharedLabel(0.4, graded=True)])
def test_label_sets_are_evaluated_as_a_loop(relation):
    points, sets = made(N)
    settings = {"relation": relation, "precision_at": (5,), "ndcg_at": (10,), "include": NAMES}
    settings["lone_queries"] = "miss"
    found = RetrievalAccuracyCalculator(**settings).get_accuracy(points, sets.float().numpy())
    assert found == pytest.approx(loop(points, relation.matrix(sets, sets)))
    gallery, others = made(M, 1)
    found = RetrievalAccuracyCalculator(**settings).get_accuracy(points, sets, gallery, others)
    assert found == pytest.approx(loop(points, relation.matrix(sets, others), gallery))


def test_trees_and_matrices_agree_with_equal_labels():
    points, _ = made(N)
    labels = torch.randint(6, (N,), generator=torch.Generator().manual_seed(2))
    tree = Hierarchy(["a/x", "a/y", "a/z", "b/u", "b/v", "b/w"])
    plain = RetrievalAccuracyCalculator(exclude=("NMI", "AMI"), ndcg_at=(10,)).get_accuracy(points, labels)
    found = RetrievalAccuracyCalculator(relation=tree, ndcg_at=(10,)).get_accuracy(points, labels)
    assert {name: found[name] for name in plain} == plain
    above = RetrievalAccuracyCalculator(relation=tree.at(1)).get_accuracy(points, labels)
    assert found["recall_at_2_level_1"] == above["recall_at_2"] > found["recall_at_2"] == above["recall_at_2_level_2"]
    graded = Hierarchy(tree.paths, graded=True)
    by_tree = RetrievalAccuracyCalculator(relation=graded, ndcg_at=(10,)).get_accuracy(points, labels)
    matrix = graded.matrix(torch.arange(6), torch.arange(6))
    by_matrix = FromMatrix(matrix, by_label=True, graded=True)
    same = RetrievalAccuracyCalculator(relation=by_matrix, ndcg_at=(10,)).get_accuracy(points, labels)
    assert {name: by_tree[name] for name in same} == same
    assert by_tree["ndcg_at_10"] == pytest.approx(loop(points, matrix[labels][:, labels])["ndcg_at_10"])


def test_lone_queries_follow_the_level_of_a_metric():
    """A class with one image has relatives at the level above."""
    points, _ = made(N)
    labels = torch.arange(N) // 2
    labels[:3] = torch.tensor([0, 1, N // 2 + 1])
    paths = [f"{number // 4}/{number}" for number in range(N // 2 + 1)] + ["lone/lone"]
    tree = Hierarchy(paths)
    found = RetrievalAccuracyCalculator(relation=tree, lone_queries="drop").get_accuracy(points, labels)
    wanted = RetrievalAccuracyCalculator(relation=tree.at(1), lone_queries="drop").get_accuracy(points, labels)
    assert found["recall_at_1_level_1"] == wanted["recall_at_1"]
    assert found["recall_at_1_level_1"] != found["recall_at_1"]


@pytest.mark.parametrize(("lone_queries", "calls"), [("miss", 1), ("drop", 2)])
def test_classes_are_counted_once_per_level(monkeypatch, lone_queries, calls):
    """And above the relation's own level only where lone queries are left out."""
    counted = []
    original = retrieval.query_classes

    def query_classes(*given):
        counted.append(given)
        return original(*given)

    for module in (calculator, retrieval):
        monkeypatch.setattr(module, "query_classes", query_classes)
    points, _ = made(N)
    tree = Hierarchy(["a/x", "a/y", "b/z"])
    several = RetrievalAccuracyCalculator(relation=tree, recall_at=(1, 2, 4), lone_queries=lone_queries)
    several.get_accuracy(points, torch.arange(N) % 3, include=[f"recall_at_{k}_level_1" for k in (1, 2, 4)])
    assert len(counted) == calls


@pytest.mark.parametrize(("queries", "items", "included"), [(5, 9, False), (9, 5, False), (5, 9, True)])
def test_a_matrix_of_queries_and_gallery(queries, items, included):
    generator = torch.Generator().manual_seed(0)
    gallery = torch.randn(items, 4, generator=generator)
    query = gallery[:queries] if included else torch.randn(queries, 4, generator=generator)
    relevance = (torch.rand(queries, items, generator=generator) < 0.4).float()
    calculator = RetrievalAccuracyCalculator(include=("precision_at_1",), relation=FromMatrix(relevance))
    found = calculator.get_accuracy(query, None, gallery, None, ref_includes_query=included)
    itself = torch.eye(queries, items, dtype=torch.bool) & included
    nearest = torch.cdist(query, gallery).masked_fill(itself, math.inf).argmin(1)
    counted = relevance.masked_fill(itself, 0).any(1)
    right = relevance[torch.arange(queries), nearest][counted]
    assert found["precision_at_1"] == pytest.approx(right.mean().item())


def test_relation_as_pmls_label_comparison():
    points, sets = made(N)
    relation = SharedLabel()
    settings = {"exclude": ("NMI", "AMI"), "k": "max_bin_count"}
    theirs = RetrievalAccuracyCalculator(label_comparison_fn=relation.positive, **settings)
    ours = RetrievalAccuracyCalculator(relation=relation, k="max_bin_count").get_accuracy(points, sets)
    assert theirs.get_accuracy(points, sets)["precision_at_1"] == ours["precision_at_1"]


@pytest.mark.parametrize(("lone_queries", "recall"), [("drop", 1.0), ("miss", 2 / 3)])
def test_a_query_that_nothing_is_related_to(lone_queries, recall):
    points = torch.tensor([[0.0], [1.0], [3.0]])
    sets = torch.tensor([[1, 0], [1, 0], [0, 0]])
    calculator = RetrievalAccuracyCalculator(relation=SharedLabel(), ndcg_at=(2,), lone_queries=lone_queries)
    found = calculator.get_accuracy(points, sets)
    assert (found["recall_at_1"], found["precision_at_1"], found["ndcg_at_2"]) == (recall, 1.0, 1.0)
    assert not any(math.isnan(value) for value in found.values())
