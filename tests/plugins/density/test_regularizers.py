"""Density adaptivity against slow loops from Eq. 5 to 8, its fixed point, and what it refuses."""

import itertools

import pytest

from pml_ext import DensityRegularizer
from pml_ext.testing import check_component

from .points import batch, slow_density


def reference(
    embeddings,
    labels,
    component,
    base_density=None,
    eta=0.5,
    correlation_weight=1.0,
    class_labels=None,
    initial_density=0.5,
):
    """Eq. 8, class by class and pair by pair."""
    names = list(class_labels or range(6))
    base = base_density or [0.0] * 6
    targets = component.target_density
    present = sorted(set(labels.tolist()))
    count = len(present)
    total = 0
    for label in present:
        density = slow_density([x for x, y in zip(embeddings, labels.tolist(), strict=True) if y == label])
        alpha = targets[names.index(label)]
        total = total + (density - alpha) ** 2 / count - alpha / count
    for i, j in itertools.product(map(names.index, present), repeat=2):
        if base[i] > 0 and base[j] > 0:
            penalty = (base[j] ** eta * targets[i] - base[i] ** eta * targets[j]) ** 2
            total = total + correlation_weight / count**2 * penalty
    return total


def test_density_regularizer_equals_the_slow_loop():
    full = [0.3, 0.7, 0.1, 0.9, 0.5, 0.2]
    with_a_zero = [0.3, 0.0, 0.1, 0.9, 0.5, 0.2]
    same = [0.3] * 6
    settings = [
        {"base_density": [None, full, with_a_zero], "class_labels": [None, [3, 0, 5, 1, 4, 2]]},
        {"base_density": [with_a_zero, same], "eta": [0.0, 1.3], "correlation_weight": [0.4, 2.0, 0]},
    ]
    check_component(
        DensityRegularizer, reference=reference, settings=settings, checks=["check_reference", "check_settings"]
    )


@pytest.mark.parametrize("labels", [[1, 2], [101, 102], [-1, 0]])
def test_labels_without_a_target_are_refused(labels):
    x, y = batch(labels * 2)
    with pytest.raises(ValueError, match=r"have no class: .* num_classes=2 with labels 0 to 1.*class_labels=range\("):
        DensityRegularizer(2)(x, y)
    low = labels[0]
    assert DensityRegularizer(2, class_labels=range(low, low + 2))(x, y).isfinite()
