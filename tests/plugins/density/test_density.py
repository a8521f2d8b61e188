"""Density adaptivity and its companions, against slow loops; the sampler of whole classes."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from pytorch_metric_learning import losses

from pml_ext import DensityRegularizer, EntropyRegularizer, GlobalOrthogonalRegularizer, WholeClassSampler
from pml_ext.testing import check_component
from pml_ext_density import functional
from pml_ext_density.clustering import ClusteringLoss
from pml_ext_density.records import plotted, read_rows, write_epoch

from ...test_samplers import batches


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


def slow_regularizer(
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
        DensityRegularizer, reference=slow_regularizer, settings=settings, checks=["check_reference", "check_settings"]
    )


@pytest.mark.parametrize("labels", [[1, 2], [101, 102], [-1, 0]])
def test_labels_without_a_target_are_refused(labels):
    x, y = batch(labels * 2)
    with pytest.raises(ValueError, match=r"have no class: .* num_classes=2 with labels 0 to 1.*class_labels=range\("):
        DensityRegularizer(2)(x, y)
    low = labels[0]
    assert DensityRegularizer(2, class_labels=range(low, low + 2))(x, y).isfinite()


def test_slots_of_a_gpu_have_their_classes(monkeypatch):
    """In the form without a shape that depends on the labels, which a CPU takes while compiling."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    classes = torch.tensor([3, 0, 3, 0, 0, 1, 3])
    slots = functional.slots(classes, torch.float64)
    assert torch.equal(slots.classes[slots.class_index], classes)
    assert slots.counts[:3].tolist() == [3, 1, 3]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_densities_equal_full_precision(dtype):
    """In float16 a count of 2,049 images would be 2,048, and in bfloat16 a count of 257 would be 256."""
    x = torch.randn(2049, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    labels = torch.zeros(2049, dtype=torch.long)
    torch.testing.assert_close(functional.class_densities(x, labels), functional.class_densities(x.float(), labels))


def test_entropy_regularizer_equals_a_slow_loop():
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


def nmi(labels, clusters):
    """As scikit-learn's, which takes most of a loop's time."""

    def entropy(groups):
        return math.log(len(groups)) - sum(n * math.log(n) for n in Counter(groups).values()) / len(groups)

    both = entropy(list(zip(labels, clusters, strict=True)))
    total = entropy(labels) + entropy(clusters)
    return 2 * (total - both) / total if total > 1e-12 else 1.0


def assigned(distance, medoids):
    """The place of the nearest medoid, the first of several, for each point."""
    return [min(range(len(medoids)), key=lambda k: distance[i][medoids[k]]) for i in range(len(distance))]


def score(distance, medoids, labels, margin):
    """F(X, S) + margin (1 - NMI)."""
    clusters = assigned(distance, medoids)
    facility = -sum(distance[i][medoids[k]] for i, k in enumerate(clusters))
    return facility + margin * (1 - nmi(labels, clusters))


def slow_locations(distance, labels, margin, refinements):
    number = len(set(labels))
    medoids = []
    for _ in range(number):
        free = [j for j in range(len(labels)) if j not in medoids]
        medoids.append(max(free, key=lambda j: score(distance, [*medoids, j], labels, margin)))
    for _ in range(refinements):
        clusters = assigned(distance, medoids)
        for k in range(number):
            members = [i for i, cluster in enumerate(clusters) if cluster == k]

            def exchanged(j, k=k, members=members):
                swapped = [*medoids[:k], j, *medoids[k + 1 :]]
                again = assigned(distance, swapped)
                apart = margin * (1 - nmi(labels, again))
                return apart - sum(distance[i][j] for i in members)

            medoids[k] = max(members, key=exchanged) if members else medoids[k]
    return medoids


def slow_clustering(embeddings, labels, component, margin=1.0, refinements=5):
    x = [row / row.norm().clamp(min=1e-12) for row in embeddings]
    y = labels.tolist()
    pairs = [[(a - b).norm() if i != j else 0 * a.sum() for j, b in enumerate(x)] for i, a in enumerate(x)]
    distance = [[value.item() for value in row] for row in pairs]
    if not y:
        return embeddings.sum()
    medoids = slow_locations(distance, y, margin, refinements)
    clusters = assigned(distance, medoids)
    value = margin * (1 - nmi(y, clusters))
    value = value - sum(pairs[i][medoids[k]] for i, k in enumerate(clusters))
    for name in set(y):
        members = [i for i, label in enumerate(y) if label == name]
        medoid = min(members, key=lambda j: sum(distance[i][j] for i in members))
        value = value + sum(pairs[i][medoid] for i in members)
    return torch.relu(value)


def clusters(rows=24, classes=6, seed=0, spread=0.7):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % classes
    centers = torch.randn(classes, 5, generator=generator, dtype=torch.float64)
    return centers[labels] + spread * torch.randn(rows, 5, generator=generator, dtype=torch.float64), labels


@pytest.mark.parametrize("settings", [{}, {"margin": 3.0}, {"margin": 0.0}, {"refinements": 1}])
@pytest.mark.parametrize("shape", [(24, 6), (15, 3), (12, 12), (9, 1)])
def test_value_and_gradient_equal_a_loop(settings, shape):
    values = []
    for seed in range(4):
        x, labels = clusters(*shape, seed=seed)
        loss = ClusteringLoss(**settings)
        x = x.requires_grad_()
        value = loss(x, labels * 7 - 3)
        wanted = slow_clustering(x, labels, loss, **settings)
        torch.testing.assert_close(value, wanted, rtol=1e-9, atol=1e-9)
        if wanted.requires_grad and value > 0:
            torch.testing.assert_close(*(torch.autograd.grad(each, x)[0] for each in (value, wanted)))
        values.append(float(value))
    assert max(values) > 0.1 or shape in ((12, 12), (9, 1)) or settings.get("margin") == 0


def test_degenerate_batches_equal_a_loop():
    check_component(ClusteringLoss, reference=slow_clustering, checks=["check_reference"])


LABELS = [0] * 3 + [1] * 5 + [2] * 2 + [3] * 7 + [4] * 4 + [9] * 6


def test_batches_have_whole_classes_but_the_last():
    labels = np.array(LABELS)
    for seed in range(20):
        for batch in batches(WholeClassSampler(LABELS, 12, seed)):
            assert len(set(batch)) == 12
            classes = labels[batch]
            order = list(dict.fromkeys(classes))
            assert all(np.all(np.diff(np.flatnonzero(classes == c)) == 1) for c in order)  # one after the other
            for label in order[:-1]:
                assert (classes == label).sum() == (labels == label).sum()


def test_every_class_is_drawn_before_one_is_again():
    labels = [c for c in range(30) for _ in range(4)]
    sampler = WholeClassSampler(labels, 20, seed=1)
    counts = Counter(labels[i] for _ in range(3) for i in sampler)
    assert set(counts) == set(range(30))
    assert max(counts.values()) == min(counts.values()) == 12


def epochs(path):
    return [row["epoch"] for row in read_rows(path)]


def test_epochs_after_a_resumed_checkpoint_are_dropped(tmp_path):
    path = tmp_path / "records" / "density.csv"
    assert read_rows(path) == []
    for epoch in range(4):
        write_epoch(path, epoch, [5, 8], [0.5, 0.25], [float("nan"), 0.1])
    assert epochs(path) == ["0", "0", "1", "1", "2", "2", "3", "3"]
    write_epoch(path, 2, [5, 8], [0.4, 0.2], [0.3, 0.1])  # of a run that was resumed after its first epoch
    assert epochs(path) == ["0", "0", "1", "1", "2", "2"]
    assert read_rows(path)[-2:] == [
        {"epoch": "2", "label": "5", "target": "0.4", "density": "0.3"},
        {"epoch": "2", "label": "8", "target": "0.2", "density": "0.1"},
    ]
    assert read_rows(path)[0]["density"] == "nan"
    assert [len(axes.lines) for axes in plotted(read_rows(path)).axes] == [3, 3]  # two classes and their mean
