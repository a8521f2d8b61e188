"""Embeddings in two dimensions."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from pml_ext_train.report import projection
from pml_ext_train.report.projection import flattened


def test_principal_components_are_those_of_scikit_learn():
    points = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32) * [5, 3, 1, 1, 1, 1]
    found = flattened(points.astype(np.float32), "pca")
    wanted = PCA(2, svd_solver="full").fit_transform(points)
    signs = np.sign((found * wanted).sum(axis=0))
    assert np.allclose(found, wanted * signs, atol=1e-4)


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_points_on_one_place_are_zeros(method):
    point = projection.unit_rows_on_cpu(torch.randn(1, 5, generator=torch.Generator().manual_seed(0)))
    for points in (point.expand(20, 5), point[:0], point):
        found = flattened(points.numpy(), method)
        assert found.shape == (len(points), 2)
        assert not found.any()


def test_a_seed_gives_the_same_places_and_few_points_use_pca():
    points = projection.unit_rows_on_cpu(torch.randn(40, 6, generator=torch.Generator().manual_seed(0))).numpy()
    assert np.array_equal(flattened(points, "tsne", 1), flattened(points, "tsne", 1))
    few = points[:10]
    assert np.array_equal(flattened(few, "tsne"), flattened(few, "pca"))
    assert not np.allclose(flattened(points[:11], "tsne"), flattened(points[:11], "pca"))


def test_directions_of_huge_and_tiny_rows_are_unit_vectors():
    points = torch.tensor([[3e38, 0, 3e38], [0, -1e-30, 0], [3, 4, 0]], requires_grad=True)
    found = projection.unit_rows_on_cpu(points)
    assert not found.requires_grad
    root = 0.5**0.5
    torch.testing.assert_close(found, torch.tensor([[root, 0, root], [0, -1e-18, 0], [0.6, 0.8, 0]]))


def test_classes_differ_in_color_or_marker():
    marks = [projection.mark(rank) for rank in range(len(projection.COLORS) * projection.SHAPES)]
    assert len(set(marks)) == len(marks)
    assert {color for color, _ in marks} == set(projection.COLORS)
    assert projection.mark(len(marks)) == marks[0]
