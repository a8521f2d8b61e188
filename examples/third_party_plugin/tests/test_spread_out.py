"""The conformance checks, with the loss held against a loop."""

from spread_out import AlignmentUniformityLoss
from spread_out.data import shapes

import pml_ext
from pml_ext.testing import parametrize_with_checks


def loop(embeddings, labels, uniformity_weight=1.0, temperature=2.0):
    """The equation, one image after the other."""
    points = [x / x.norm() for x in embeddings]
    count = range(len(points))
    squares = [[((p - q) ** 2).sum() for q in points] for p in points]
    near = [squares[i][j] for i in count for j in count if i != j and labels[i] == labels[j]]
    spread = []
    for i in count:
        others = [(-temperature * squares[i][k]).exp() for k in count if labels[k] != labels[i]]
        spread += [(sum(others) / len(others)).log()] if others else []
    means = [sum(values) / len(values) if values else 0 * embeddings.sum() for values in (near, spread)]
    return means[0] + uniformity_weight * means[1]


@parametrize_with_checks([AlignmentUniformityLoss], reference=loop)
def test_conformance(component, check):
    check(component)


def test_it_is_registered():
    assert pml_ext.AlignmentUniformityLoss is AlignmentUniformityLoss
    assert "spread-out/shapes" in pml_ext.registry.recipes()


def test_shapes():
    splits = shapes(per_class=10)
    assert len(splits.train) == len(splits.test) == 40
    assert splits.train[0][0].shape == (1, 16, 16)
