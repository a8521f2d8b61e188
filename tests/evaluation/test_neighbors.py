"""Nearest neighbors and their re-ranking, against loops."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance

from pml_ext import RetrievalAccuracyCalculator
from pml_ext.evaluation import (
    KReciprocal,
    QueryExpansion,
    default_neighbors,
    neighbors,
    neighbors_under,
    reranked_under,
)

from .points import data, sorted_distances


def test_search_under_a_learned_metric_is_exact():
    points, labels = data()
    normalized = torch.nn.functional.normalize(points)
    wanted = RetrievalAccuracyCalculator().get_accuracy(normalized, labels)
    by_cosine = RetrievalAccuracyCalculator(knn_func=neighbors_under(CosineSimilarity(), tile=7))
    assert by_cosine.get_accuracy(points, labels)["recall_at_4"] == wanted["recall_at_4"]

    class Learned(LpDistance):
        def __init__(self):
            super().__init__(normalize_embeddings=False)
            self.weight = torch.nn.Parameter(torch.tensor([0.0, 0, 0, 0, 1]))

        def compute_mat(self, query, reference):
            assert not self.training
            return super().compute_mat(query * self.weight, reference * self.weight)

    learned = Learned()
    found = RetrievalAccuracyCalculator(knn_func=neighbors_under(learned)).get_accuracy(points, labels)
    assert found["recall_at_1"] == RetrievalAccuracyCalculator().get_accuracy(points[:, 4:], labels)["recall_at_1"]
    assert learned.training


def test_longer_shortlists_come_nearer_to_exact_answers():
    generator = torch.Generator().manual_seed(0)
    points = torch.nn.functional.normalize(torch.randn(300, 8, generator=generator))
    metric = LpDistance(p=1, normalize_embeddings=False)
    exact = neighbors_under(metric)(points, 10, points, ref_includes_query=True)[1]
    shares = []
    for shortlist in (11, 30, 100, 300):
        found = reranked_under(metric, shortlist)(points, 10, points, ref_includes_query=True)[1]
        shares.append((found[:, :, None] == exact[:, None]).any(2).double().mean().item())
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert shares[0] < 0.95


@pytest.mark.parametrize("faiss", [True, False])
@pytest.mark.parametrize("itself", [False, True])
def test_neighbors_are_those_of_a_loop(monkeypatch, faiss, itself):
    query, _ = data(20)
    reference = query if itself else data(15, seed=1)[0]
    if not faiss:
        monkeypatch.setitem(sys.modules, "faiss", None)
    distances, indices = default_neighbors()(query, 4, reference, itself)
    for number, row in enumerate(sorted_distances(query, reference)):
        wanted = [(distance, index) for distance, index in row if not (itself and index == number)][:4]
        assert indices[number].tolist() == [index for _, index in wanted]
        assert distances[number].tolist() == pytest.approx([distance for distance, _ in wanted], abs=1e-5)
    assert default_neighbors()(query, 99, reference, itself)[1].shape == (20, len(reference) - itself)


def test_the_last_tile_takes_what_remains():
    points, _ = data(23)
    whole = default_neighbors()(points, 3, points, True)
    parts = list(default_neighbors().tiles(points, 3, points, True, rows=5))
    assert [(part.start, part.stop) for part, *_ in parts] == [(0, 5), (5, 10), (10, 15), (15, 23)]
    distances = torch.cat([part[1] for part in parts])
    torch.testing.assert_close(distances, whole[0])  # a product of fewer rows may round otherwise
    assert torch.equal(torch.cat([part[2] for part in parts]), whole[1])


def test_only_the_query_itself_is_left_out():
    indices = torch.tensor([[4, 7, 2], [3, 5, 9], [8, 6, 1]])
    distances = torch.arange(9.0).view(3, 3)
    left = neighbors.without(torch.tensor([4, 9, 0]), distances, indices)
    assert left[1].tolist() == [[7, 2], [3, 5], [8, 6]]  # the third query has too many duplicates to be found
    assert left[0].tolist() == [[1, 2], [3, 4], [6, 7]]
    assert neighbors.without(torch.tensor([4, 3, 8]), distances, indices)[1].tolist() == [[7, 2], [5, 9], [6, 1]]


def test_a_missing_candidate_is_last():
    points, _ = data(9)

    def two(query, k, reference):
        _, found = default_neighbors().search(query, k, reference)
        return torch.zeros(found.shape), found.masked_fill(torch.arange(found.shape[1]) > 1, -1)

    normalized = torch.nn.functional.normalize(points)
    for metric in (LpDistance(p=1), CosineSimilarity()):
        indices = reranked_under(metric, 5, two)(points, 4, points)[1]
        assert (indices[:, 2:] == -1).all()
        nearest = [{index for _, index in row[:2]} for row in sorted_distances(normalized, normalized)]
        assert [set(row) for row in indices[:, :2].tolist()] == nearest


def test_first_metric_of_the_parts_is_chosen():
    metric = LpDistance()
    assert neighbors.learned_metric([object(), SimpleNamespace(metric="cosine")]) is None
    parts = [SimpleNamespace(metric=None), SimpleNamespace(metric=metric), SimpleNamespace(metric=LpDistance(p=1))]
    assert neighbors.learned_metric(parts) is metric


def test_a_matrix_of_values_has_no_gradient():
    points, _ = data(6)
    distance = LpDistance(normalize_embeddings=False)
    matrix = neighbors.distance_matrix(distance, points.clone().requires_grad_())
    assert not matrix.requires_grad
    assert distance.training
    for row, expected in zip(matrix.tolist(), sorted_distances(points, points), strict=True):
        assert row == pytest.approx([distance for distance, _ in sorted(expected, key=lambda pair: pair[1])], abs=1e-3)


def sides(gallery):
    x, labels = data(50)
    if not gallery:
        return x, labels, None, None
    return (x[:20], labels[:20], *data(30, seed=1))


def unit(x):
    return torch.nn.functional.normalize(x.double())


def expanded_by_loop(query, reference, itself, k, alpha, groups):
    """Rankings and distances of each query."""
    found = []
    for i, q in enumerate(query):
        gallery = [j for j in range(len(reference)) if not (itself and i == j)]
        if groups is not None:
            gallery = [j for j in gallery if groups[0][i] != groups[1][j]]
        nearest = sorted(gallery, key=lambda j: float((q - reference[j]).norm()))[:k]
        total = q.clone()
        for j in nearest:
            total += reference[j] * (1 if alpha is None else max(0.0, float(q @ reference[j])) ** alpha)
        total = total / total.norm()
        distances = {j: float((total - reference[j]).norm()) for j in gallery}
        found.append(sorted((distance, j) for j, distance in distances.items()))
    return found


def neighborhoods(distances, k):
    """N(p, k) of each p: itself and its k nearest."""
    found = []
    for p, row in enumerate(distances):
        order = sorted((j for j in range(len(row)) if j != p), key=lambda j: row[j])
        found.append([p, *order[:k]])
    return found


def reciprocal_by_loop(query, reference, itself, k1, k2, weight, groups):
    points = reference if itself else torch.cat([query, reference])
    count = len(points)
    first = len(points) - len(reference)
    d = [[float((p - g).norm()) ** 2 for g in points] for p in points]
    d = [[value / max(row) for value in row] for row in d]

    def reciprocal(k):
        near = neighborhoods(d, k)
        return [{g for g in near[p] if p in near[g]} for p in range(count)]

    sets = reciprocal(k1)
    halves = reciprocal(int(k1 / 2 + 0.5))
    encoded = []
    for p in range(count):
        extended = set(sets[p])
        for g in sets[p]:
            if len(sets[p] & halves[g]) >= 2 / 3 * len(halves[g]):
                extended |= halves[g]
        row = [np.exp(-d[p][g]) if g in extended else 0.0 for g in range(count)]
        encoded.append([value / sum(row) for value in row])
    near = neighborhoods(d, k2 - 1)
    averaged = [[sum(encoded[g][j] for g in near[p]) / len(near[p]) for j in range(count)] for p in range(count)]

    found = []
    for i in range(len(query)):
        ranking = []
        for j in range(len(reference)):
            same_group = groups is not None and groups[0][i] == groups[1][j]
            if (itself and i == j) or same_group:
                continue
            pairs = list(zip(averaged[i], averaged[first + j], strict=True))
            jaccard = 1 - sum(min(pair) for pair in pairs) / sum(max(pair) for pair in pairs)
            ranking.append(((1 - weight) * jaccard + weight * d[i][first + j], j))
        found.append(sorted(ranking))
    return found


CASES = {
    "average": (QueryExpansion(4), expanded_by_loop, (4, None)),
    "alpha": (QueryExpansion(7, alpha=3), expanded_by_loop, (7, 3)),
    "more than the gallery": (QueryExpansion(100, alpha=1.5), expanded_by_loop, (100, 1.5)),
    "reciprocal": (KReciprocal(6, 3, 0.3), reciprocal_by_loop, (6, 3, 0.3)),
    "reciprocal, odd": (KReciprocal(9, 1, 0.0), reciprocal_by_loop, (9, 1, 0.0)),
    "reciprocal, wide": (KReciprocal(20, 6, 0.7), reciprocal_by_loop, (20, 6, 0.7)),
}


@pytest.mark.parametrize("with_groups", [False, True])
@pytest.mark.parametrize("gallery", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_rankings_of_both_methods_equal_a_loop(name, gallery, with_groups, monkeypatch):
    monkeypatch.setattr("pml_ext.evaluation.reranking._ROWS", 7)
    reranking, loop, settings = CASES[name]
    x, labels, y, others = sides(gallery)
    groups = None
    named = {}
    if with_groups:
        groups = (torch.arange(len(x)) % 9, torch.arange(len(x if y is None else y)) % 9)
        named = {"query_groups": groups[0]} if y is None else {"query_groups": groups[0], "reference_groups": groups[1]}
    expected = loop(unit(x), unit(x if y is None else y), y is None, *settings, groups)
    calculator = RetrievalAccuracyCalculator(("recall_at_1", "mean_average_precision"), reranking=reranking)
    found = calculator.evaluate(x, labels, y, others, keep=60, **named)
    right = []
    reference_labels = labels if others is None else others
    for i, ranking in enumerate(expected):
        distances = torch.tensor([distance for distance, _ in ranking], dtype=torch.float32)
        torch.testing.assert_close(found.distances[i, : len(ranking)], distances, rtol=0, atol=2e-5)
        by_item = {j: distance for distance, j in ranking}
        indices = found.indices[i, : len(ranking)].tolist()
        assert set(indices) == set(by_item)
        assert [by_item[j] for j in indices] == pytest.approx(distances.tolist(), abs=2e-5)
        right.append(labels[i] == reference_labels[indices[0]])
    assert found.accuracies["recall_at_1"] == pytest.approx(float(torch.stack(right).double().mean()))


def test_equal_points_are_ranked_without_nan():
    labels = torch.arange(6) // 2
    for reranking in (KReciprocal(3, 2), QueryExpansion(2)):
        calculator = RetrievalAccuracyCalculator(("recall_at_1",), recall_at=(1,), reranking=reranking)
        found = calculator.evaluate(torch.ones(6, 3), labels, keep=5)
        assert found.distances.isfinite().all()
        assert all(sorted(row) == [j for j in range(6) if j != i] for i, row in enumerate(found.indices.tolist()))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: QueryExpansion(0), "k of QueryExpansion must be a whole number of at least 1, not 0"),
        (lambda: QueryExpansion(3, alpha=-1), "alpha of QueryExpansion must be a finite number at least 0, not -1"),
        (lambda: KReciprocal(k2=0), "k2 of KReciprocal must be a whole number of at least 1"),
        (lambda: KReciprocal(weight=1.5), "weight of KReciprocal must be a finite number at least 0 and at most 1"),
        (lambda: RetrievalAccuracyCalculator(reranking=KReciprocal), "must be an object such as QueryExpansion"),
        (
            lambda: RetrievalAccuracyCalculator(reranking=KReciprocal(), knn_func=neighbors_under(CosineSimilarity())),
            "leave out knn_func, or pass a NearestNeighbors without distance",
        ),
    ],
)
def test_wrong_settings_of_a_reranking_raise(make, text):
    with pytest.raises((TypeError, ValueError), match=text):
        make()
    RetrievalAccuracyCalculator(reranking=KReciprocal(), knn_func=default_neighbors())
