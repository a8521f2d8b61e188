"""The structured clustering loss against loops over all candidates, and its parts against scikit-learn."""

import math
from collections import Counter

import pytest
import torch

from pml_ext.testing import check_component
from pml_ext_density.clustering import ClusteringLoss


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


def reference(embeddings, labels, component, margin=1.0, refinements=5):
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


def batch(rows=24, classes=6, seed=0, spread=0.7):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % classes
    centers = torch.randn(classes, 5, generator=generator, dtype=torch.float64)
    return centers[labels] + spread * torch.randn(rows, 5, generator=generator, dtype=torch.float64), labels


@pytest.mark.parametrize("settings", [{}, {"margin": 3.0}, {"margin": 0.0}, {"refinements": 1}])
@pytest.mark.parametrize("shape", [(24, 6), (15, 3), (12, 12), (9, 1)])
def test_value_and_gradient_equal_a_loop(settings, shape):
    values = []
    for seed in range(4):
        x, labels = batch(*shape, seed=seed)
        loss = ClusteringLoss(**settings)
        x = x.requires_grad_()
        value = loss(x, labels * 7 - 3)
        wanted = reference(x, labels, loss, **settings)
        torch.testing.assert_close(value, wanted, rtol=1e-9, atol=1e-9)
        if wanted.requires_grad and value > 0:
            torch.testing.assert_close(*(torch.autograd.grad(each, x)[0] for each in (value, wanted)))
        values.append(float(value))
    assert max(values) > 0.1 or shape in ((12, 12), (9, 1)) or settings.get("margin") == 0


def test_degenerate_batches_equal_a_loop():
    check_component(ClusteringLoss, reference=reference, checks=["check_reference"])
