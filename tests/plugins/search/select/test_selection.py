"""Selections of images: the most distinct ones, outliers, and those nearest to centers, against slow loops."""

import numpy as np
import pytest
import torch

from pml_ext.errors import DataError
from pml_ext.evaluation import neighbors
from pml_ext_search.collection.class_folders import ClassFolders
from pml_ext_search.collection.embedded import Embedded
from pml_ext_search.select import selection
from pml_ext_search.select.selection import most_distinct, nearest_to_centers, outliers, select


def unit(rows, size=8, seed=0):
    points = torch.randn(rows, size, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(points)


def embedded(points, names=None):
    names = names or [f"{number:04d}.png" for number in range(len(points))]
    return Embedded("photos", names, points, class_folders=ClassFolders())


# Slow loops in float64


def distance(one, other):
    total = 0.0
    for a, b in zip(one.double().tolist(), other.double().tolist(), strict=True):
        total += (a - b) ** 2
    return round(total, 12) ** 0.5


def slow_most_distinct(points, count):
    mean = points.double().mean(0)
    to_mean = [distance(point, mean) for point in points]
    chosen = [to_mean.index(min(to_mean))]
    distances = [float("inf")]
    while len(chosen) < min(count, len(points)):
        farthest = None
        for row, point in enumerate(points):
            if row not in chosen:
                nearest = min(distance(point, points[other]) for other in chosen)
                if farthest is None or nearest > farthest[0]:
                    farthest = (nearest, row)
        distances.append(farthest[0])
        chosen.append(farthest[1])
    covered = max(min(distance(point, points[other]) for other in chosen) for point in points)
    return chosen, distances, covered


def slow_outliers(points, count, neighbors):
    scores = []
    for row, point in enumerate(points):
        others = sorted(distance(point, other) for place, other in enumerate(points) if place != row)
        scores.append(others[min(neighbors, len(others)) - 1])
    order = sorted(range(len(points)), key=lambda row: (-scores[row], row))[:count]
    return order, [scores[row] for row in order]


def slow_central(points, numbers, count):
    rows = []
    distances = []
    for number in sorted(set(numbers)):
        members = [row for row, other in enumerate(numbers) if other == number]
        total = sum(points[row].double() for row in members)
        center = total / total.norm()
        to_center = {row: distance(points[row], center) for row in members}
        for row in sorted(members, key=lambda row: (to_center[row], row))[:count]:
            rows.append(row)
            distances.append(to_center[row])
    return rows, distances


# The most distinct


@pytest.mark.parametrize("points", [unit(60), torch.eye(9)[[4, 2, 2, 7, 0, 7, 1, 4]], torch.ones(3, 4) / 2])
@pytest.mark.parametrize("count", [1, 2, 7, 60, 500])
@pytest.mark.parametrize("candidates", [1, 3, 1024])
def test_most_distinct_equals_a_slow_loop(points, count, candidates, monkeypatch):
    """Of equally far ones, and of copies, the first comes first."""
    monkeypatch.setattr(selection, "_CANDIDATES", candidates)
    monkeypatch.setattr(selection, "_ROWS", 17)
    found, covered = most_distinct(points, count)
    rows, distances, expected = slow_most_distinct(points, count)
    assert found.rows.tolist() == rows
    np.testing.assert_allclose(found.distances, distances, rtol=1e-10)
    assert covered == pytest.approx(expected, rel=1e-10)


def test_one_image_is_all_that_is_distinct():
    found = select(embedded(unit(1)), 10)
    assert (found.rows, found.distances, found.covered) == ([0], [None], 0)


# Outliers


@pytest.mark.parametrize(("count", "neighbors"), [(1, 1), (10, 5), (40, 39), (100, 100)])
def test_outliers_equal_a_slow_loop(count, neighbors, monkeypatch):
    """Those that have a copy, too."""
    monkeypatch.setattr(selection, "_ROWS", 7)
    monkeypatch.setattr(selection, "_CHECKED", 4)
    points = unit(40)
    points[[20, 31]] = points[2].clone()
    found = outliers(points, count, neighbors)
    rows, distances = slow_outliers(points, count, neighbors)
    assert found.rows.tolist() == rows
    np.testing.assert_allclose(found.distances, distances, rtol=1e-10)


@pytest.mark.parametrize("faiss", [True, False])
def test_outliers_of_many_are_exact_too(faiss, monkeypatch):
    if faiss:
        pytest.importorskip("faiss")
    monkeypatch.setattr(neighbors, "has_faiss", lambda: faiss)
    monkeypatch.setattr(neighbors, "_MOST_EXACT", 100)
    monkeypatch.setattr(neighbors, "_LISTS_SEARCHED", 2)
    monkeypatch.setattr(selection, "_CHECKED", 20)
    monkeypatch.setattr(selection, "_ROWS", 100)
    points = unit(1500, 6)
    found = outliers(points, 30)
    distances = torch.cdist(points.double(), points.double())
    fifth = distances.sort(1).values[:, 5]
    order = np.lexsort((np.arange(1500), -fifth.numpy()))[:30]
    assert found.rows.tolist() == order.tolist()
    np.testing.assert_allclose(found.distances, fifth[order], rtol=1e-10)


def test_outliers_of_two_and_of_one():
    points = torch.eye(2)
    found = outliers(points, 5)
    assert (found.rows.tolist(), found.distances.tolist()) == ([0, 1], [2**0.5, 2**0.5])
    with pytest.raises(DataError, match="photos: one image; outliers need at least two"):
        select(embedded(points[:1]), 5, "outliers")


# Nearest to centers


@pytest.mark.parametrize("count", [1, 3, 100])
def test_nearest_to_centers_equals_a_slow_loop(count, monkeypatch):
    monkeypatch.setattr(selection, "_ROWS", 7)
    points = unit(40)
    numbers = np.random.default_rng(0).integers(5, size=40)
    found = nearest_to_centers(points, numbers, count)
    rows, distances = slow_central(points, numbers.tolist(), count)
    assert found.rows.tolist() == rows
    np.testing.assert_allclose(found.distances, distances, rtol=1e-9)


def test_central_images_are_ranked_in_their_class():
    points = unit(7)[[0, 1, 2, 3, 4, 5, 6, 6]]
    names = ["b/0", "b/1", "a/2", "b/3", "none", "a/5", "a/6", "a/7"]
    found = select(embedded(points, names), 2, "central")
    rows, distances = slow_central(points[[0, 1, 2, 3, 5, 6, 7]], [1, 1, 0, 1, 0, 0, 0], 2)
    assert found.rows == [[0, 1, 2, 3, 5, 6, 7][row] for row in rows]
    assert found.distances == pytest.approx(distances)
    assert found.classes == ["a", "a", "b", "b"]
    assert found.ranks == [1, 2, 1, 2]
    assert found.without_class == 1


def test_without_classes_the_center_is_that_of_all():
    points = unit(9)
    found = select(embedded(points), 4, "central")
    assert found.rows == slow_central(points, [0] * 9, 4)[0]
    assert found.ranks == [1, 2, 3, 4]
    assert found.without_class == 0
