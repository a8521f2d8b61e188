"""Density adaptivity against slow loops from Eq. 5 to 8, its fixed point, and what it refuses."""

import itertools
import math

import pytest
import torch
from pytorch_metric_learning import losses

from pml_ext import DensityRegularizer, EntropyRegularizer, GlobalOrthogonalRegularizer
from pml_ext.testing import check_component
from pml_ext_density import functional


def slow_density(points):
    """Eq. 5 for the embeddings of one class."""
    points = [x / x.norm().clamp(min=1e-12) for x in points]
    mean = sum(points) / len(points)
    return sum(((x - mean) ** 2).sum() for x in points) / len(points)


def batch(labels, size=5, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(labels), size, generator=generator, dtype=torch.float64).to(dtype)
    return x.requires_grad_(), torch.tensor(labels)


RAGGED = [3, 0, 3, 0, 0, 1, 3, 3, 0]  # unsorted, with a class of one


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
    names, base, targets = list(class_labels or range(6)), base_density or [0.0] * 6, component.target_density
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


def test_against_the_slow_loop():
    full, with_a_zero, same = [0.3, 0.7, 0.1, 0.9, 0.5, 0.2], [0.3, 0.0, 0.1, 0.9, 0.5, 0.2], [0.3] * 6
    settings = [
        {"base_density": [None, full, with_a_zero], "class_labels": [None, [3, 0, 5, 1, 4, 2]]},
        {"base_density": [with_a_zero, same], "eta": [0.0, 1.3], "correlation_weight": [0.4, 2.0, 0]},
    ]
    check_component(
        DensityRegularizer, reference=reference, settings=settings, checks=["check_reference", "check_settings"]
    )


def test_slots_of_a_gpu_have_their_classes(monkeypatch):
    """In the form without a shape that depends on the labels, which a CPU takes while compiling."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    classes = torch.tensor([3, 0, 3, 0, 0, 1, 3])
    slots = functional.slots(classes, torch.float64)
    assert torch.equal(slots.classes[slots.of], classes)
    assert slots.counts[:3].tolist() == [3, 1, 3]


def test_the_fixed_point_is_the_density_and_a_half():
    x, y = batch(RAGGED)
    x = x.detach()
    regularizer = DensityRegularizer(4).double()
    optimizer = torch.optim.SGD(regularizer.parameters(), lr=0.5)
    for _ in range(200):
        optimizer.zero_grad()
        regularizer(x, y).backward()
        optimizer.step()
    found = regularizer.target_density.detach()
    for label in (0, 1, 3):
        density = slow_density([p for p, q in zip(x, y.tolist(), strict=True) if q == label])
        assert found[label].item() == pytest.approx(density.item() + 0.5, abs=1e-9)
    assert found[2] == 0.5  # absent: left alone


@pytest.mark.parametrize("labels", [[1, 2], [101, 102], [-1, 0]])
def test_labels_without_a_target_are_refused_and_told_what_to_type(labels):
    x, y = batch(labels * 2)
    with pytest.raises(ValueError, match=r"have no class: .* num_classes=2 with labels 0 to 1.*class_labels=range\("):
        DensityRegularizer(2)(x, y)
    low = labels[0]
    assert DensityRegularizer(2, class_labels=range(low, low + 2))(x, y).isfinite()


def test_entropy_against_a_loop():
    x, y = batch(RAGGED)
    points = [p / p.norm() for p in x.detach()]
    nearest = [min((p - q).norm().item() for j, q in enumerate(points) if j != i) for i, p in enumerate(points)]
    expected = -sum(math.log(d) for d in nearest) / len(nearest)
    assert EntropyRegularizer()(x).item() == pytest.approx(expected, rel=1e-12)
    found = losses.ContrastiveLoss(embedding_regularizer=EntropyRegularizer(), embedding_reg_weight=0.5)(x, y)
    torch.testing.assert_close(found, losses.ContrastiveLoss()(x, y) + 0.5 * expected)  # PML's slot


def test_entropy_of_equal_embeddings_and_of_one():
    x = torch.ones(3, 4).requires_grad_()
    value = EntropyRegularizer(least_distance=1e-3)(x)
    assert value.item() == pytest.approx(-math.log(1e-3))
    value.backward()
    assert (x.grad == 0).all()
    EntropyRegularizer()(torch.ones(1, 4).requires_grad_()).backward()


def test_global_orthogonal_against_a_loop():
    x, y = batch(RAGGED)
    points = [p / p.norm() for p in x.detach()]
    s = [float(points[i] @ points[j]) for i in range(len(y)) for j in range(len(y)) if y[i] != y[j]]
    expected = (sum(s) / len(s)) ** 2 + max(0, sum(v * v for v in s) / len(s) - 1 / x.shape[1])
    assert GlobalOrthogonalRegularizer()(x, y).item() == pytest.approx(expected, rel=1e-12)
    assert GlobalOrthogonalRegularizer()(x, torch.zeros_like(y)).item() == 0


def test_short_rows_of_float16_have_a_bounded_gradient():
    generator = torch.Generator().manual_seed(0)
    directions = torch.nn.functional.normalize(torch.randn(16, 4, generator=generator))
    x = (directions * 10 ** (-7 * torch.rand(16, 1, generator=generator))).half().requires_grad_()
    (gradient,) = torch.autograd.grad(EntropyRegularizer()(x), x)
    assert gradient.isfinite().all()
    assert gradient.norm(dim=1).max() > 1
