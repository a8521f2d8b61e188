"""Pairs within a radius, and the shortest ones that connect a group."""

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import linkage

from pml_ext_copies.near_pairs import Pairs, components, forest, shortest_pairs


def chain_and_copies():
    points = torch.nn.functional.normalize(torch.randn(150, 64, generator=torch.Generator().manual_seed(0)))
    points[100] = points[3]
    points[50] = torch.nn.functional.normalize(points[3] + 0.01 * points[4], dim=0)
    for step in range(3):  # a chain, of which the ends are farther than the radius
        points[120 + step] = torch.nn.functional.normalize(points[7] + 0.08 * (step + 1) * points[8], dim=0)
    return points


@pytest.fixture(params=["all pairs", "lists"])
def blocks(request, monkeypatch):
    monkeypatch.setattr("pml_ext_copies.near_pairs._TILE", 33)
    monkeypatch.setattr("pml_ext_copies.near_pairs._BLOCK", 33)
    monkeypatch.setattr("pml_ext_copies.near_pairs._WAITING", 20)
    if request.param == "lists":
        pytest.importorskip("faiss", reason="needs the extra cpu")
        monkeypatch.setattr("pml_ext.evaluation.neighbors._MOST_EXACT", 100)


@pytest.mark.parametrize("radius", [1e-4, 0.1, 1.2])
def test_pairs_are_the_merges_of_single_linkage(blocks, radius):
    points = chain_and_copies()
    heights = linkage(points.double().numpy(), "single")[:, 2]
    found = shortest_pairs(points, radius)
    np.testing.assert_allclose(found.distances, heights[heights <= radius], atol=1e-6)
    np.testing.assert_allclose((points[found.first] - points[found.second]).norm(dim=1), found.distances, atol=1e-6)


def test_groups_are_what_pairs_connect(blocks):
    groups = components(shortest_pairs(chain_and_copies(), 0.1), 150)
    assert sorted(groups) == [[3, 50, 100], [7, 120, 121, 122]]


def test_equal_vectors_are_one_group(blocks):
    points = torch.full((1000, 64), 0.125)
    found = shortest_pairs(points, 1e-3)
    assert len(found.first) == 999
    assert found.distances.max() == 0
    assert components(found, 1000) == [list(range(1000))]


def test_the_forest_keeps_the_shortest_repeated_pairs():
    pairs = Pairs(
        np.array([0, 1, 2, 2, 4]), np.array([1, 0, 0, 1, 4]), np.array([0.5, 0.2, 0.3, 0.4, 0.0], dtype=np.float32)
    )
    kept = forest(pairs, 5)
    assert kept.first.tolist() == [0, 0]
    assert kept.second.tolist() == [1, 2]
    np.testing.assert_allclose(kept.distances, [0.2, 0.3])


def test_no_vectors_have_no_pairs():
    assert shortest_pairs(torch.zeros(0, 8), 0.5).first.tolist() == []
    assert components(shortest_pairs(torch.eye(3), 0.5), 3) == []
