"""Nearest neighbors: exact, by a learned metric, and of a shortlist."""

import sys
from types import SimpleNamespace

import pytest
import torch
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance

from pml_ext import RetrievalAccuracyCalculator
from pml_ext.evaluation import default_neighbors, neighbors, neighbors_under, reranked_under

from .points import data


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


def sorted_distances(query, reference, power=2):
    """``[[(distance, index), ...], ...]`` of each query, nearest first, by a loop in float64."""
    found = []
    for point in query.double():
        distances = [float((point - other).abs().pow(power).sum() ** (1 / power)) for other in reference.double()]
        found.append(sorted(zip(distances, range(len(reference)), strict=True)))
    return found


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
    indices = torch.cat([part[2] for part in parts])
    assert torch.equal(indices, whole[1])


def test_only_the_query_itself_is_left_out():
    indices = torch.tensor([[4, 7, 2], [3, 5, 9], [8, 6, 1]])
    distances = torch.arange(9.0).view(3, 3)
    left = neighbors.without(torch.tensor([4, 9, 0]), distances, indices)
    assert left[1].tolist() == [[7, 2], [3, 5], [8, 6]]  # the third query has too many duplicates to be found
    assert left[0].tolist() == [[1, 2], [3, 4], [6, 7]]
    first = neighbors.without(torch.tensor([4, 3, 8]), distances, indices)
    assert first[1].tolist() == [[7, 2], [5, 9], [6, 1]]


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
