"""Evaluation with a relation, and with groups of queries, against loops over queries."""

import math

import numpy as np
import pytest
import torch
from pytorch_metric_learning.utils.inference import CustomKNN

from pml_ext import FromMatrix, Hierarchy, RetrievalAccuracyCalculator, SharedLabel
from pml_ext.evaluation import (
    KReciprocal,
    QueryExpansion,
    calculator,
    default_neighbors,
    neighbors_under,
    pairs_of_classes,
    retrieval,
    verify,
)
from pml_ext.evaluation.groups import groups_of, neighbors_outside
from pml_ext.pml import LpDistance
from pml_ext.testing import SecondDevice

from .points import data, metrics_by_loops, ndcg

N = 50
M = 40
NAMES = ("recall_at_1", "recall_at_4", "precision_at_5", "r_precision", "mean_average_precision_at_r", "ndcg_at_10")


POINTS, LABELS = data()


def made(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 5, generator=generator), torch.rand(rows, 6, generator=generator) < 0.3


SOME, SETS = made(N)


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
    settings = {"relation": relation, "precision_at": (5,), "ndcg_at": (10,), "include": NAMES}
    settings["lone_queries"] = "miss"
    found = RetrievalAccuracyCalculator(**settings).get_accuracy(SOME, SETS.float().numpy())
    assert found == pytest.approx(loop(SOME, relation.matrix(SETS, SETS)))
    gallery, others = made(M, 1)
    found = RetrievalAccuracyCalculator(**settings).get_accuracy(SOME, SETS, gallery, others)
    assert found == pytest.approx(loop(SOME, relation.matrix(SETS, others), gallery))


def test_trees_and_matrices_agree_with_equal_labels():
    labels = torch.randint(6, (N,), generator=torch.Generator().manual_seed(2))
    tree = Hierarchy(["a/x", "a/y", "a/z", "b/u", "b/v", "b/w"])
    plain = RetrievalAccuracyCalculator(exclude=("NMI", "AMI"), ndcg_at=(10,)).get_accuracy(SOME, labels)
    found = RetrievalAccuracyCalculator(relation=tree, ndcg_at=(10,)).get_accuracy(SOME, labels)
    assert {name: found[name] for name in plain} == plain
    above = RetrievalAccuracyCalculator(relation=tree.at(1)).get_accuracy(SOME, labels)
    assert found["recall_at_2_level_1"] == above["recall_at_2"] > found["recall_at_2"] == above["recall_at_2_level_2"]
    graded = Hierarchy(tree.paths, graded=True)
    by_tree = RetrievalAccuracyCalculator(relation=graded, ndcg_at=(10,)).get_accuracy(SOME, labels)
    matrix = graded.matrix(torch.arange(6), torch.arange(6))
    by_matrix = FromMatrix(matrix, by_label=True, graded=True)
    same = RetrievalAccuracyCalculator(relation=by_matrix, ndcg_at=(10,)).get_accuracy(SOME, labels)
    assert {name: by_tree[name] for name in same} == same
    assert by_tree["ndcg_at_10"] == pytest.approx(loop(SOME, matrix[labels][:, labels])["ndcg_at_10"])


def test_lone_queries_follow_the_level_of_a_metric():
    """A class with one image has relatives at the level above."""
    labels = torch.arange(N) // 2
    labels[:3] = torch.tensor([0, 1, N // 2 + 1])
    tree = Hierarchy([f"{number // 4}/{number}" for number in range(N // 2 + 1)] + ["lone/lone"])
    found = RetrievalAccuracyCalculator(relation=tree, lone_queries="drop").get_accuracy(SOME, labels)
    wanted = RetrievalAccuracyCalculator(relation=tree.at(1), lone_queries="drop").get_accuracy(SOME, labels)
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
    tree = Hierarchy(["a/x", "a/y", "b/z"])
    several = RetrievalAccuracyCalculator(relation=tree, recall_at=(1, 2, 4), lone_queries=lone_queries)
    several.get_accuracy(SOME, torch.arange(N) % 3, include=[f"recall_at_{k}_level_1" for k in (1, 2, 4)])
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
    assert found["precision_at_1"] == pytest.approx(relevance[torch.arange(queries), nearest][counted].mean().item())


def test_relation_as_pmls_label_comparison():
    relation = SharedLabel()
    settings = {"exclude": ("NMI", "AMI"), "k": "max_bin_count"}
    theirs = RetrievalAccuracyCalculator(label_comparison_fn=relation.positive, **settings)
    ours = RetrievalAccuracyCalculator(relation=relation, k="max_bin_count").get_accuracy(SOME, SETS)
    assert theirs.get_accuracy(SOME, SETS)["precision_at_1"] == ours["precision_at_1"]


@pytest.mark.parametrize(("lone_queries", "recall"), [("drop", 1.0), ("miss", 2 / 3)])
def test_a_query_that_nothing_is_related_to(lone_queries, recall):
    points = torch.tensor([[0.0], [1.0], [3.0]])
    sets = torch.tensor([[1, 0], [1, 0], [0, 0]])
    calculator = RetrievalAccuracyCalculator(relation=SharedLabel(), ndcg_at=(2,), lone_queries=lone_queries)
    found = calculator.get_accuracy(points, sets)
    assert (found["recall_at_1"], found["precision_at_1"], found["ndcg_at_2"]) == (recall, 1.0, 1.0)
    assert not any(math.isnan(value) for value in found.values())


RECALL_AT = (1, 3, 30)
OF_A_QUERY = ("r_precision", "mean_average_precision_at_r", "mean_average_precision", "mean_reciprocal_rank")
INCLUDE = [*(f"recall_at_{k}" for k in RECALL_AT), *OF_A_QUERY, "precision_at_3", "ndcg_at_5"]


def grid(count=60, seed=0):
    """Points with many equal distances, and doubles."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 3, (count, 3), generator=generator).float()


class Case:
    """Queries, a gallery or none, and groups; group 0 has everything of class 5, and -1 is no group."""

    def __init__(self, within, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.within = within
        self.query = grid(seed=seed)
        self.labels = torch.randint(0, 6, (60,), generator=generator)
        self.groups = torch.randint(-1, 12, (60,), generator=generator)
        self.groups[self.labels == 5] = 0  # lone queries
        self.reference = self.query
        self.reference_labels = self.labels
        self.reference_groups = self.groups
        if not within:
            self.reference = grid(40, seed=seed + 10)
            self.reference_labels = torch.randint(0, 6, (40,), generator=generator)
            self.reference_groups = torch.randint(-1, 12, (40,), generator=generator)
            self.groups[:2] = 99  # a group without gallery items

    def arguments(self):
        given = {"query": self.query, "query_labels": self.labels, "query_groups": self.groups}
        if not self.within:
            given |= {name: getattr(self, name) for name in ("reference", "reference_labels", "reference_groups")}
        return given

    def gallery(self, i):
        """The gallery of a query, by a loop."""
        found = []
        for j in range(len(self.reference)):
            same_group = self.groups[i] >= 0 and self.groups[i] == self.reference_groups[j]
            if not same_group and not (self.within and i == j):
                found.append(j)
        return found

    def distance(self, i, j):
        return float((self.query[i] - self.reference[j]).double().norm())

    def right(self, i, j):
        return bool(self.labels[i] == self.reference_labels[j])


def check(case, result, lone_queries):
    """Distances equal each query's sorted gallery, and metrics equal a loop over its neighbors."""
    values = {name: [] for name in INCLUDE}
    for i in range(len(case.query)):
        gallery = case.gallery(i)
        indices = [j for j in result.indices[i].tolist() if j >= 0]
        assert sorted(indices) == gallery
        missing = len(result.indices[i]) - len(gallery)
        expected = [*sorted(case.distance(i, j) for j in gallery), *[math.inf] * missing]
        np.testing.assert_allclose(result.distances[i], expected, atol=1e-5)
        right = [case.right(i, j) for j in indices]
        assert result.right[i].tolist() == [*right, *[False] * missing]
        relevant = sum(right)
        assert int(result.relevant[i]) == relevant
        found = metrics_by_loops(right, relevant, (*RECALL_AT, 3)) | {"ndcg_at_5": ndcg(right, 5) if relevant else 0}
        for name in INCLUDE:
            if relevant or (name.startswith("recall") and lone_queries == "miss"):
                values[name].append(found[name])
    for name, of_queries in values.items():
        assert result.accuracies[name] == pytest.approx(np.mean(of_queries), abs=1e-9), name


@pytest.mark.parametrize("lone_queries", ["miss", "drop"])
@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize("search", ["default", "torch", "PML"])
def test_evaluation_with_groups_equals_a_loop(within, lone_queries, search):
    knn = {
        "default": default_neighbors(),
        "torch": neighbors_under(LpDistance(normalize_embeddings=False), tile=7),
        "PML": CustomKNN(LpDistance(normalize_embeddings=False)),
    }[search]
    calculator = RetrievalAccuracyCalculator(
        INCLUDE, recall_at=RECALL_AT, precision_at=(3,), ndcg_at=(5,), lone_queries=lone_queries, knn_func=knn
    )
    for seed in range(3):
        case = Case(within, seed)
        check(case, calculator.evaluate(**case.arguments(), keep=60), lone_queries)


def test_an_empty_gallery_is_a_miss():
    points = torch.arange(5.0)[:, None]
    labels = torch.tensor([0, 0, 0, 0, 1])
    groups = ["a", "a", "a", None, None]
    calculator = RetrievalAccuracyCalculator(("recall_at_1",), recall_at=(1,), lone_queries="miss")
    assert calculator.get_accuracy(points, labels, query_groups=groups) == {"recall_at_1": 0.8}
    reference = (points[:2], labels[:2])
    found = calculator.evaluate(points, labels, *reference, query_groups=groups, reference_groups=["a", "a"], keep=1)
    assert found.accuracies == {"recall_at_1": 0.2}
    assert found.indices.flatten().tolist() == [-1, -1, -1, 1, 1]


def test_a_relation_with_weights_equals_a_loop():
    points, labels = data(40, 4)
    groups = torch.arange(40) // 3
    tree = Hierarchy(["a/b", "a/c", "d/e", "d/f"], graded=True)
    calculator = RetrievalAccuracyCalculator(("ndcg_at_5", "recall_at_1"), relation=tree, ndcg_at=(5,), recall_at=(1,))
    found = calculator.evaluate(points, labels, query_groups=groups, keep=1)
    weights = tree.matrix(labels, labels)
    rankings = []
    for i in range(40):
        gallery = [j for j in range(40) if groups[j] != groups[i]]
        gallery.sort(key=lambda j: float((points[i] - points[j]).double().norm()))
        rankings.append([float(weights[i, j]) for j in gallery])
    assert found.relevant.tolist() == [np.count_nonzero(gains) for gains in rankings]
    assert found.accuracies["ndcg_at_5"] == pytest.approx(np.mean([ndcg(gains, 5) for gains in rankings]), abs=1e-6)
    assert found.accuracies["recall_at_1"] == pytest.approx(np.mean([gains[0] > 0 for gains in rankings]))


def test_verification_leaves_out_pairs_of_one_group():
    groups = torch.arange(60) // 4
    calculator = RetrievalAccuracyCalculator(("verification_eer",), verification="all")
    pairs = pairs_of_classes(LABELS)
    pairs = pairs.where(groups[pairs.first] != groups[pairs.second])
    expected = verify(POINTS, pairs, distance=LpDistance(normalize_embeddings=False))["eer"]
    assert calculator.get_accuracy(POINTS, LABELS, query_groups=groups) == {"verification_eer": expected}


@pytest.mark.parametrize("reranking", [None, QueryExpansion(3), KReciprocal(6, 3)])
def test_groups_work_on_a_second_device(reranking):
    groups = torch.arange(60) // 2
    settings = {"reranking": reranking, "verification": "all", "ndcg_at": (5,)}
    names = ("recall_at_1", "mean_average_precision", "verification_eer", "ndcg_at_5")
    expected = RetrievalAccuracyCalculator(names, **settings).get_accuracy(POINTS, LABELS, query_groups=groups)
    with SecondDevice() as second:
        given = (POINTS.to(second.device), LABELS.to(second.device))
        calculator = RetrievalAccuracyCalculator(names, device=second.device, **settings)
        found = calculator.get_accuracy(*given, query_groups=groups.to(second.device))
    assert found == pytest.approx(expected, abs=1e-6)


def test_a_large_group_is_searched_again():
    """More neighbors are asked for those queries alone that lack some."""
    asked = []
    points = torch.arange(200.0)[:, None]
    numbers = torch.full((200,), -1)
    numbers[:50] = 0
    groups = groups_of(numbers, None, 200, None, torch.device("cpu"))

    def find(rows, k):
        asked.append((len(rows), k))
        return default_neighbors().search(points[rows], k, points)

    distances, indices = neighbors_outside(find, groups, torch.arange(200), True, 3, 200)
    assert asked == [(200, 19), (43, 38), (34, 76)]
    assert indices[0].tolist() == [50, 51, 52]
    assert distances[0].tolist() == [50, 51, 52]
    assert indices[100].tolist() in ([99, 101, 98], [101, 99, 98], [99, 101, 102], [101, 99, 102])


@pytest.mark.parametrize("kind", [list, lambda groups: np.array(groups, dtype=object)])
def test_missing_texts_of_pandas_are_no_group(kind):
    groups = groups_of(kind(["a", math.nan, None, "a", "", "b"]), None, 6, None, torch.device("cpu"))
    assert groups.query.tolist() == [0, -1, -1, 0, -1, 1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"query_groups": torch.zeros(60).long()}, "the groups leave no gallery: all 60 gallery items"),
        ({"query_groups": torch.full((60,), -1)}, "no item has a group: all are negative or empty"),
        ({"query_groups": [""] * 60}, "no item has a group"),
        (
            {"query_groups": torch.zeros(9).long()},
            r"query_groups must have one group for each of 60 items; got .*\(9,\)",
        ),
        ({"query_groups": torch.zeros(60)}, "query_groups must be integers or texts; got values of type float32"),
        ({"query_groups": [1.5] * 60}, "query_groups must be integers or texts"),
        ({"reference_groups": torch.zeros(60).long()}, "reference_groups are given without query_groups"),
        (
            {
                "query_groups": list(range(60)),
                "reference": torch.ones(2, 5),
                "reference_labels": torch.ones(2).long(),
                "reference_groups": ["0", "1"],
            },
            "must be of one kind, integers or texts, .* got int64 and <U1",
        ),
        (
            {"query_groups": list(range(60)), "reference_groups": list(range(60))},
            "reference_groups are given without reference",
        ),
        (
            {"query_groups": list(range(60)), "reference": torch.ones(2, 5), "reference_labels": torch.ones(2).long()},
            "query_groups are given without reference_groups",
        ),
    ],
)
def test_invalid_groups_raise_with_a_reason(arguments, text):
    calculator = RetrievalAccuracyCalculator(("recall_at_1",))
    with pytest.raises((TypeError, ValueError), match=text) as error:
        calculator.evaluate(POINTS, LABELS, **arguments)
    assert "\n" not in str(error.value)


def test_a_metric_that_knows_no_groups_is_refused():
    class More(RetrievalAccuracyCalculator):
        def calculate_of_counts(self, knn_labels, label_counts, **kwargs):
            return 0.0

        def requires_knn(self):
            return [*super().requires_knn(), "of_counts"]

    with pytest.raises(ValueError, match="of_counts needs label_counts, which ignore groups; exclude it"):
        More().get_accuracy(*data(), query_groups=torch.arange(60) // 2)
