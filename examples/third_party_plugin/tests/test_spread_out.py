"""The loss against a loop, and the conformance checks."""

import math

import torch
from spread_out import AlignmentUniformityLoss
from spread_out.data import shapes

import pml_ext
from pml_ext.testing import parametrize_with_checks


@parametrize_with_checks([AlignmentUniformityLoss(), AlignmentUniformityLoss(0.5, 1.0)])
def test_conformance(component, check):
    check(component)


def test_against_a_loop():
    x, labels = torch.randn(9, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2, 0, 0, 3])
    points = [p / p.norm() for p in x]
    squares = [[((p - q) ** 2).sum().item() for q in points] for p in points]
    pairs = [squares[i][j] for i in range(9) for j in range(9) if i != j and labels[i] == labels[j]]
    spread = []
    for i in range(9):
        others = [math.exp(-2 * squares[i][k]) for k in range(9) if labels[k] != labels[i]]
        spread.append(math.log(sum(others) / len(others)))
    expected = sum(pairs) / len(pairs) + sum(spread) / len(spread)
    assert math.isclose(AlignmentUniformityLoss()(x, labels).item(), expected, rel_tol=1e-9)


def test_it_is_registered():
    assert pml_ext.AlignmentUniformityLoss is AlignmentUniformityLoss
    assert "spread-out/shapes" in pml_ext.registry.recipes()


def test_shapes():
    splits = shapes(per_class=10)
    assert len(splits.train) == len(splits.test) == 40
    assert splits.train[0][0].shape == (1, 16, 16)
