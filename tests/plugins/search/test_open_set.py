"""Distances to classes, thresholds and open-set metrics, against slow loops."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from pml_ext_search import open_set
from pml_ext_search.open_set import Classes, metrics_of, rate_with_one_less, threshold_at, without_own_class


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


def test_the_own_class_is_left_out():
    distances = np.array([[0.1, 0.5, 0.3], [0.2, 0.9, 0.4]])
    assert without_own_class(distances, np.array([0, 1])).tolist() == [0.3, 0.2]
    assert distances[0, 0] == 0.1


@pytest.mark.parametrize(
    ("rate", "wanted"), [(0.05, None), (0.1, 1.0), (0.19, 1.0), (0.2, 2.0), (0.5, 5.0), (0.99, 9.0)]
)
def test_a_threshold_is_an_order_statistic(rate, wanted):
    assert threshold_at(rate, np.array([3.0, 1, 2, 9, 8, 7, 4, 5, 6])) == wanted


def test_a_threshold_keeps_its_rate_on_further_distances():
    generator = np.random.default_rng(0)
    found = []
    for _ in range(2000):
        threshold = threshold_at(0.1, generator.exponential(size=49))
        found.append(1 - math.exp(-threshold))
    assert np.mean(found) == pytest.approx(0.1, abs=0.003)


def test_more_classes_accept_more():
    generator = np.random.default_rng(0)
    distances = generator.exponential(size=(100_000, 5))
    threshold = np.quantile(distances[:, :4].min(1), rate_with_one_less(0.2, 5))
    assert (distances.min(1) <= threshold).mean() == pytest.approx(0.2, abs=0.005)
    assert rate_with_one_less(0.2, 10**9) == pytest.approx(0.2)


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


def test_metrics_without_a_query_are_left_out():
    only_new = metrics_of(np.array([[0.5], [0.1]]), [None, None], 0.2)
    assert only_new == {"accuracy": 0.5, "false_acceptance_rate": 0.5, "balanced_accuracy_new": 0.5}
    only_known = metrics_of(np.array([[0.5], [0.1]]), [0, 0], 0.2)
    assert only_known["recall_at_1"] == 1
    assert "false_acceptance_rate" not in only_known
