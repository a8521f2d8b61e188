"""Distances to classes, thresholds and open-set metrics, against slow loops."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from pml_ext_search.open_set import open_set
from pml_ext_search.open_set.open_set import (
    Classes,
    expected_rate,
    interval_of,
    metrics_of,
    rows_in_several_classes,
    share_of_classes,
    threshold_at,
)


def made_up(seed, count=40, classes=6, size=5):
    generator = np.random.default_rng(seed)
    points = normalize(torch.from_numpy(generator.normal(size=(count, size))).float())
    numbers = np.concatenate([np.arange(classes), generator.integers(classes - 1, size=count - classes)])
    return points, numbers  # the last class has one image


def slow_distances(points, embeddings, numbers, count, nearest, own):
    found = np.full((len(points), count), np.inf)
    for query, point in enumerate(points.double().numpy()):
        for number in range(count):
            rows = [row for row in range(len(numbers)) if numbers[row] == number and row != own[query]]
            members = [embeddings[row].double().numpy() for row in rows]
            if not members:
                continue
            if nearest == "image":
                found[query, number] = min(math.dist(point, member) for member in members)
            else:
                mean = sum(members) / len(members)
                found[query, number] = math.dist(point, mean / math.sqrt((mean**2).sum()))
    return found


@pytest.mark.parametrize("nearest", ["center", "image"])
@pytest.mark.parametrize("own", [False, True])
def test_distances_equal_a_slow_loop(nearest, own, monkeypatch):
    embeddings, numbers = made_up(0)
    monkeypatch.setattr(open_set, "_ROWS", 7)
    monkeypatch.setattr(open_set, "_AT_A_TIME", 300)
    places = list(range(40)) if own else [None] * 40
    points = embeddings if own else made_up(1)[0]
    found = Classes(embeddings, numbers, 6, nearest).distances(points, places)
    np.testing.assert_allclose(found, slow_distances(points, embeddings, numbers, 6, nearest, places), atol=1e-7)
    if own:
        assert np.isinf(found[5, 5])  # alone in its class


def test_equal_photographs_are_at_no_distance():
    embeddings, numbers = made_up(2, size=300)
    found = Classes(embeddings, numbers, 6, "image").distances(embeddings)
    assert found[np.arange(40), numbers].max() < 1e-6
    assert Classes(embeddings, numbers, 6).distances(embeddings[:0]).shape == (0, 6)


@pytest.mark.parametrize("rate", [0.2, 0.25, 0.4, 0.55, 0.7, 1.0])
def test_a_threshold_is_the_greatest_within_the_rate(rate):
    others = np.array([0.3, 0.1, 0.2, 0.9, 0.8, 0.7, 0.4, 0.5, 0.6])
    numbers = np.array([7, 7, 7, 7, 2, 2, 0, 5, 5])  # four classes

    def bound(threshold):
        rates = [np.mean(others[numbers == number] <= threshold) for number in (0, 2, 5, 7)]
        return (sum(rates) + 1) / 5

    found = threshold_at(rate, others, numbers)
    assert bound(found) == pytest.approx(expected_rate(share_of_classes(others <= found, numbers), 4))
    assert bound(found) <= rate + 1e-9
    following = [distance for distance in others if distance > found]
    assert not following or bound(min(following)) > rate
    assert threshold_at(0.19, others, numbers) is None  # four classes promise 1/5


@pytest.mark.parametrize("spread", [0.0, 0.5, 5.0])
@pytest.mark.parametrize(("classes", "rate"), [(5, 0.3), (20, 0.1), (49, 0.05)])
def test_new_classes_are_accepted_within_the_rate(spread, classes, rate):
    """Images of a class may be alike (spread 0): five of them are no more than one observation."""
    generator = np.random.default_rng(0)
    found = []
    inside = []
    for _ in range(300):
        centers = generator.normal(size=(classes + 3000, 1))
        images = centers + spread * generator.normal(size=(classes + 3000, 5))
        threshold = threshold_at(rate, np.abs(images[:classes]).ravel(), np.repeat(np.arange(classes), 5))
        found.append((np.abs(images[classes:]) <= threshold).mean())
        low, high = interval_of((np.abs(images[:classes]) <= threshold).mean(1).sum(), classes)
        inside.append(low <= found[-1] <= high)
    assert np.mean(found) < 1.1 * rate
    assert np.mean(inside) > 0.88


@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_equal_pictures_of_several_classes_are_found(noise):
    points, _ = made_up(3, size=30)
    points[[4, 9, 20]] = points[1] + noise * torch.randn(3, 30)
    points[7] = points[6]
    names = [f"class {number % 5}" for number in range(40)]
    names[7] = names[6]
    names[20] = ""
    assert rows_in_several_classes(points, names) == [[1, 4, 9]]
    assert rows_in_several_classes(points[:0], []) == []


def slow_metrics(distances, classes, threshold, labels):
    answers = []
    for row in distances:
        nearest = min(range(len(row)), key=lambda number: row[number])
        answers.append(nearest if row[nearest] <= threshold else None)
    queries = range(len(classes))
    known = [q for q in queries if classes[q] is not None]
    new = [q for q in queries if classes[q] is None]

    def rate(members, right):
        return sum(right(q) for q in members) / len(members)

    def mean_over(members, key, right):
        groups = sorted({key(q) for q in members})
        return sum(rate([q for q in members if key(q) == each], right) for each in groups) / len(groups)

    def is_right(q):
        return answers[q] == classes[q]

    metrics = {
        "accuracy": rate(queries, is_right),
        "recall_at_1": rate(known, lambda q: distances[q].argmin() == classes[q]),
        "detection_and_identification_rate": rate(known, is_right),
        "false_acceptance_rate": rate(new, lambda q: answers[q] is not None),
        "balanced_accuracy_known": mean_over(known, lambda q: classes[q], is_right),
        "balanced_accuracy_new": mean_over(new, lambda q: labels[q], is_right),
    }
    metrics["balanced_accuracy"] = math.sqrt(metrics["balanced_accuracy_known"] * metrics["balanced_accuracy_new"])
    for far in (0.1, 0.05, 0.01):
        best = 0.0
        for limit in [-1.0, *distances.min(1)]:
            if rate(new, lambda q, limit=limit: distances[q].min() <= limit) <= far:
                found = rate(
                    known,
                    lambda q, limit=limit: distances[q].argmin() == classes[q] and distances[q].min() <= limit,
                )
                best = max(best, found)
        metrics[f"dir_at_far_{far:g}"] = best
    return metrics


@pytest.mark.parametrize("seed", range(5))
def test_metrics_equal_a_slow_loop(seed):
    generator = np.random.default_rng(seed)
    distances = generator.random((60, 4)).round(2)  # with equal ones
    classes = [None if each == 4 else int(each) for each in generator.integers(5, size=60)]
    for query, number in enumerate(classes):
        if number is not None and generator.random() < 0.7:
            distances[query, number] /= 3
    labels = [f"class {generator.integers(3)}" if number is None else f"known {number}" for number in classes]
    found = metrics_of(distances, classes, 0.2, labels)
    wanted = slow_metrics(distances, classes, 0.2, labels)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, abs=1e-12), name
