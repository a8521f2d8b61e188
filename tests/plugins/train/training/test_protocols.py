"""Halves of classes, for accuracies by the means of classes."""

import numpy as np
import pytest

from pml_ext_train.training.protocols import first_halves


@pytest.mark.parametrize("seed", [0, 7])
def test_half_of_every_class_is_drawn(seed):
    labels = np.array([2] * 5 + [0] * 4 + [9])
    chosen = first_halves(labels, seed)
    for label, half in ((2, 3), (0, 2), (9, 1)):  # rounded up
        assert chosen[labels == label].sum() == half
    assert (chosen == first_halves(labels, seed)).all()
    assert any((chosen != first_halves(labels, other)).any() for other in (1, 2, 3))
