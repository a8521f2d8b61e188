"""Marks of classes, and principal components."""

import numpy as np
from sklearn.decomposition import PCA

from pml_ext.evaluation.projection import COLORS, SHAPES, flattened, mark


def test_principal_components_are_those_of_scikit_learn():
    points = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32) * [5, 3, 1, 1, 1, 1]
    found, wanted = flattened(points.astype(np.float32), "pca"), PCA(2, svd_solver="full").fit_transform(points)
    signs = np.sign((found * wanted).sum(axis=0))
    assert np.allclose(found, wanted * signs, atol=1e-4)


def test_marks_repeat_late():
    assert len({mark(rank) for rank in range(200)}) == len({mark(rank) for rank in range(24)}) == SHAPES * len(COLORS)


def test_colors_differ_for_color_blind_eyes_too():
    """In Lab, by the matrices of Machado et al. (2009), severity 1, for red-blind and green-blind eyes."""
    red_blind = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    green_blind = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    to_lab = np.array([[0, 116, 0], [500, -500, 0], [0, 200, -200]])
    bytes_of = np.array([[*bytes.fromhex(color[1:])] for color in COLORS]) / 255
    linear = ((bytes_of + 0.055) / 1.055) ** 2.4
    for seen in (np.eye(3), red_blind, green_blind):
        lab = np.cbrt((linear @ np.array(seen).T).clip(0, 1) @ to_xyz.T / to_xyz.sum(axis=1)) @ to_lab.T
        apart = np.linalg.norm(lab[:, None] - lab[None], axis=2) + 1000 * np.eye(len(lab))
        assert apart.min() > 12
