"""Embeddings in two dimensions."""

import numpy as np
import torch

from pml_ext_train.report import flattened, projection


def test_projections_are_seeded_and_few_points_use_pca():
    points = projection.unit_rows_on_cpu(torch.randn(40, 6, generator=torch.Generator().manual_seed(0))).numpy()
    assert np.array_equal(flattened(points, "tsne", 1), flattened(points, "tsne", 1))
    few = points[:10]
    assert np.array_equal(flattened(few, "tsne"), flattened(few, "pca"))
    assert not np.allclose(flattened(points[:11], "tsne"), flattened(points[:11], "pca"))


def test_huge_and_tiny_rows_become_unit_vectors():
    points = torch.tensor([[3e38, 0, 3e38], [0, -1e-30, 0], [3, 4, 0]], requires_grad=True)
    found = projection.unit_rows_on_cpu(points)
    assert not found.requires_grad
    root = 0.5**0.5
    torch.testing.assert_close(found, torch.tensor([[root, 0, root], [0, -1e-18, 0], [0.6, 0.8, 0]]))
