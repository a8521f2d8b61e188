"""Collapse of embeddings."""

import math

import pytest
import torch

from pml_ext.errors import TrainingError
from pml_ext.losses.relations import Hierarchy
from pml_ext.recipe import load_recipes
from pml_ext.training.evaluation import collapse, evaluate_split, missing_pairs
from pml_ext.training.run import Run

LABELS = torch.arange(60) % 6


def in_a_cone(spread: float, noise: float = 0.0) -> torch.Tensor:
    """One direction, plus one of each class, plus noise: the mean cosine similarity is near 1 for a small spread."""
    generator = torch.Generator().manual_seed(0)
    points = spread * torch.eye(16)[LABELS] + noise * torch.randn(60, 16, generator=generator)
    return points + torch.ones(16)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_similar_directions_are_no_collapse(scale):
    points = in_a_cone(0.1, 0.001)
    directions = torch.nn.functional.normalize(points)
    assert (directions @ directions.T).mean() > 0.99
    assert collapse(scale * points, LABELS) is None
    assert collapse(scale * points, LABELS.numpy()) is None


@pytest.mark.parametrize("points", [in_a_cone(0.0), in_a_cone(0.0, 0.01), in_a_cone(1e-5), in_a_cone(1e-6, 1e-8)])
def test_classes_that_no_search_tells_apart_are_a_collapse(points):
    similarity = collapse(points, LABELS)
    assert similarity is not None
    directions = torch.nn.functional.normalize(points.double())
    off_diagonal = ~torch.eye(60, dtype=torch.bool)
    assert similarity == pytest.approx(float((directions @ directions.T)[off_diagonal].mean()))


def test_what_cannot_be_judged_is_no_collapse():
    assert collapse(torch.randn(60, 16), LABELS) is None
    assert collapse(torch.ones(1, 4), LABELS[:1]) is None
    assert collapse(torch.full((6, 4), math.nan), LABELS[:6]) is None
    assert collapse(torch.ones(6, 4), torch.arange(6)) is not None


def test_what_pairs_no_batch_has():
    one, pair, both = torch.tensor([0, 1, 2]), torch.tensor([3, 3]), torch.tensor([0, 0, 1])
    assert "no batch has a positive pair" in missing_pairs([one, one[:2]], None)
    assert "no batch has a negative pair" in missing_pairs([pair], None)
    assert "no triplets" in missing_pairs([one, pair], None)
    assert missing_pairs([one, both], None) == ""
    relation = Hierarchy(["a/0", "a/1", "b/2"], level=1)
    assert missing_pairs([one], relation) == ""  # 0 and 1 have the same parent
    assert "no batch has a negative pair" in missing_pairs([both], relation)


def test_embeddings_that_are_not_finite_are_not_ranked(tmp_path):
    run = Run(next(iter(load_recipes("cbml/digits", ["model.trunk.width=8"]).values())), "cbml/digits", tmp_path)
    torch.nn.init.constant_(run.embedder.bias, math.nan)
    with pytest.raises(TrainingError, match="the network gives nan for images to test"):
        evaluate_split(run, "test")
