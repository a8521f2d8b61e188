"""Recall@10 of a search, on a sample of its points."""

import pytest
import torch

from pml_ext_train.retrieval import RecallSample

POINTS = torch.nn.functional.normalize(torch.randn(500, 8, generator=torch.Generator().manual_seed(0)))


def exact(queries, k):
    return torch.cdist(queries, POINTS).topk(k, largest=False).indices


def test_exact_search_has_full_recall():
    assert RecallSample(POINTS).recall_at_10(exact) == 1


def test_half_of_the_answers_are_right():
    def search(queries, k):
        found = exact(queries, k)  # the first is the query itself
        found[:, 1::2] = -1
        return found

    assert RecallSample(POINTS).recall_at_10(search) == pytest.approx(0.5)


def test_two_points_have_one_neighbor():
    sample = RecallSample(POINTS[:2])
    assert sample.recall_at_10(lambda queries, k: torch.tensor([[0, 1], [1, 0]])) == 1
    assert sample.recall_at_10(lambda queries, k: torch.tensor([[0, -1], [1, -1]])) == 0
