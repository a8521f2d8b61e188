"""Collapse of embeddings to one point."""

import math

import pytest
import torch

from pml_ext.pairwise import ListedTuples
from pml_ext_train.training.checks import collapse

from .whole_runs import Ear, quick


def test_a_collapsed_run_still_writes_a_report(tmp_path):
    ear = Ear()
    metrics = quick(tmp_path / "out", "optimizer.lr=1e8", listener=ear)
    assert sum("embeddings collapse to one point" in text for text in ear.warnings) == 1, ear.warnings  # not each epoch
    assert metrics["warnings"] == ear.warnings
    assert metrics["after"]["nmi"] < 0.01
    report = (tmp_path / "out" / "report.html").read_text()
    assert "collapse" in report
    assert "could not be drawn" not in report
    assert [epoch[:2] for epoch in ear.epochs] == [("1", "3"), ("2", "3"), ("3", "3")]
    assert ear.epochs[-1][-1] == "0:00:00"


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
def test_indistinguishable_classes_are_a_collapse(points):
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


def test_indistinguishable_listed_tuples_are_a_collapse():
    ordered = torch.tensor([[1.0, 0.0], [1.0, 1e-3], [1.0, 9e-3], [1.0, 10e-3]])
    pairs = ListedTuples([[0, 1], [2, 3], [0, 3], [1, 2]], [True, True, False, False])
    triplets = ListedTuples([[0, 1, 2], [3, 2, 0]])
    for tuples in (pairs, triplets):
        assert collapse(ordered, tuples) is None
        assert collapse(torch.ones(4, 2), tuples) == pytest.approx(1)
        assert collapse(torch.eye(4), tuples) is None  # far from each other
    wrong = ListedTuples(pairs.rows, ~pairs.same)
    assert collapse(ordered, wrong) > 0.99
    assert collapse(torch.ones(4, 2), pairs.some([0])) == pytest.approx(1)  # no order of one kind
    assert collapse(torch.ones(1, 2), triplets.some([])) is None
