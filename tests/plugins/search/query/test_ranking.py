"""Exact distances of the nearest vectors, also of many queries, and in parts."""

import pytest
import torch

from pml_ext_search.query.ranking import with_exact_distances


@pytest.mark.parametrize("most", [16, 80, 1000])
def test_exact_distances_are_computed_in_parts(monkeypatch, most):
    """Of queries, and of the many answers to one."""
    points = torch.nn.functional.normalize(torch.randn(50, 8, generator=torch.Generator().manual_seed(0)))
    places = torch.stack([torch.randperm(50, generator=torch.Generator().manual_seed(seed)) for seed in range(3)])
    largest = []

    class Vectors:
        device = points.device

        def __getitem__(self, rows):
            largest.append(rows.numel() * 8)
            return points[rows]

    monkeypatch.setattr("pml_ext_search.query.ranking._EXACT", most)
    distances, rows = with_exact_distances(points[:3], Vectors(), places)
    assert max(largest) <= most
    wanted = (points[:3, None] - points).norm(dim=2)
    torch.testing.assert_close(distances, wanted.sort(dim=1).values)
    torch.testing.assert_close(wanted.gather(1, rows), distances)
