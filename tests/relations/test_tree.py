"""Levels of trees, against float64 loops."""

import itertools

import pytest
import torch

from pml_ext import (
    Hierarchy,
)

PATHS = ["animal/bird/owl", "animal/bird/robin", "animal/fish/cod", "plant/tree/oak", "plant/moss", "animal/bird"]


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("level", [1, 2, 3])
def test_trees_of_classes_equal_a_loop(level, graded):
    relation = Hierarchy(PATHS, level, graded)
    labels = torch.arange(len(PATHS))
    found = relation.matrix(labels, labels)
    for i, j in itertools.product(range(len(PATHS)), repeat=2):
        paths = [PATHS[k].split("/") + [""] * (3 - len(PATHS[k].split("/"))) for k in (i, j)]
        depth = next((d for d in range(3) if paths[0][d] != paths[1][d]), 3)
        wanted = 0.0 if depth < level else depth / 3 if graded else 1.0
        assert found[i, j].item() == pytest.approx(wanted, rel=1e-6)
    classes = relation.classes(labels)
    assert graded or torch.equal(classes[:, None] == classes, found > 0)
    assert relation.tensor(["plant/moss", ("animal", "bird", "owl")], 2).tolist() == [4, 0]
