"""Selections of images and suspicious labels, against slow loops; their tables, sheets and commands."""

import csv
import math
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch.nn.functional import normalize

from pml_ext.errors import DataError
from pml_ext.evaluation import neighbors
from pml_ext_search.collection.class_folders import ClassFolders
from pml_ext_search.collection.embedded import Embedded
from pml_ext_search.select import selection, selection_pages
from pml_ext_search.select.selection import most_distinct, nearest_to_centers, outliers, select
from pml_ext_search.select.suspicious_labels import suspicious_labels


def unit(rows, size=8):
    return normalize(torch.randn(rows, size, generator=torch.Generator().manual_seed(0)))


def embedded(points, names=None):
    names = names or [f"{number:04d}.png" for number in range(len(points))]
    return Embedded("photos", names, points, class_folders=ClassFolders())


# Slow loops in float64


def labeled(points, classes):
    """Embedded points in a folder for each class; without a class, in none."""
    return embedded(points, [f"{name}/{row}".strip("/") for row, name in enumerate(classes)])


def distance(one, other):
    return round(math.dist(one.double().tolist(), other.double().tolist()) ** 2, 12) ** 0.5


def slow_most_distinct(points, count):
    rows = range(len(points))
    mean = points.double().mean(0)
    chosen = [min(rows, key=lambda row: distance(points[row], mean))]
    distances = [math.inf]

    def to_chosen(row):
        return min(distance(points[row], points[other]) for other in chosen)

    while len(chosen) < min(count, len(points)):
        farthest = max((row for row in rows if row not in chosen), key=to_chosen)
        distances.append(to_chosen(farthest))
        chosen.append(farthest)
    return chosen, distances, max(map(to_chosen, rows))


def slow_outliers(points, count, neighbors):
    scores = []
    for row, point in enumerate(points):
        others = sorted(distance(point, other) for place, other in enumerate(points) if place != row)
        scores.append(others[min(neighbors, len(others)) - 1])
    order = sorted(range(len(points)), key=lambda row: (-scores[row], row))[:count]
    return order, [scores[row] for row in order]


def slow_central(points, numbers, count):
    found = []
    for number in sorted(set(numbers)):
        members = [row for row, other in enumerate(numbers) if other == number]
        center = normalize(points[members].double().sum(0), dim=0)
        found += sorted((distance(points[row], center), row) for row in members)[:count]
    return [row for _, row in found], [apart for apart, _ in found]


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
    fifth = torch.cdist(points.double(), points.double()).sort(1).values[:, 5]
    order = np.lexsort((np.arange(1500), -fifth.numpy()))[:30]
    assert found.rows.tolist() == order.tolist()
    np.testing.assert_allclose(found.distances, fifth[order], rtol=1e-10)


def test_outliers_of_two_and_of_one():
    found = outliers(torch.eye(2), 5)
    assert (found.rows.tolist(), found.distances.tolist()) == ([0, 1], [2**0.5, 2**0.5])
    with pytest.raises(DataError, match="photos: one image; outliers need at least two"):
        select(embedded(torch.eye(1)), 5, "outliers")


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


def test_a_table_has_every_image_whatever_its_name(tmp_path):
    found = select(embedded(torch.eye(3), ["a b.png", "ü/,\"'.png", "ü/\udcff.png"]), 3)
    selection_pages.write_table(found, tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        rows = list(csv.DictReader(file))
    assert rows == [
        {"path": "a b.png", "class": "", "rank": "1", "distance": ""},
        {"path": "ü/,\"'.png", "class": "ü", "rank": "2", "distance": "1.414214"},
        {"path": "ü/\udcff.png", "class": "ü", "rank": "3", "distance": "1.414214"},
    ]


@pytest.mark.parametrize(("kind", "count"), [("distinct", 3), ("outliers", 3), ("central", 30)])
def test_select_writes_table_sheet_and_json(json_of, indexed, tmp_path, kind, count):
    run, gallery = indexed
    table = tmp_path / "a table.csv"
    sheet = tmp_path / "sheet.png"
    told = json_of("select", run.folder, "-n", 3, "--kind", kind, "--csv", table, "--sheet", sheet)
    expected = select(gallery.embedded, 3, kind)
    assert told == expected.as_json() == run.select(3, kind).as_json()
    assert [each["path"] for each in told["selected"]] == expected.paths
    rows = list(csv.DictReader(table.open(newline="")))
    assert [row["path"] for row in rows] == expected.paths
    assert [row["class"] for row in rows] == [path.split("/")[0] for path in expected.paths]
    assert len(rows) == count
    assert sheet.stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("-n 201", "200 of 200 images, the most distinct: every image is within 0 of one of them"),
        ("-n 2 --kind central", "20 of 200 images, the nearest to the centers of 10 classes"),
        (
            "-n 2 --kind outliers",
            "2 of 200 images, the farthest from the others: distances are to the fifth nearest image",
        ),
    ],
)
def test_select_prints_what_was_selected(text_of, indexed, options, text):
    shown = text_of("select", indexed[0].folder, *options.split())
    assert text in shown
    assert "the first 200 of 200" not in shown


def test_ids_of_vectors_are_selected(command, json_of, text_of, refused, tmp_path):
    table = tmp_path / "vectors.npz"
    points = np.eye(8, dtype=np.float32)[[0, 1, 2, 2, 3, 3, 3]] + 0.1
    np.savez(table, embeddings=points, ids=np.array([f"id {number}" for number in range(7)]))
    run = tmp_path / "run"
    command("fit", table, "--no-labels", "--out", run)
    command("index", run, table)
    *distinct, copy = json_of("select", run, "-n", 5)["selected"]
    assert sorted(each["path"] for each in distinct) == ["id 0", "id 1", "id 2", "id 4"]
    assert copy["distance"] == 0
    shown = text_of("select", run, "-n", 9)
    assert "7 of 7 vectors" in shown
    assert "the last 3 are copies, at a distance of 0" in shown
    assert "has vectors, no image files" in refused("select", run, "--sheet", tmp_path / "a.png")


def similarity(row, name, points, classes, groups):
    """The mean cosine to the five nearest images of a class; None without an image to compare with."""
    others = [
        other
        for other in range(len(points))
        if other != row and classes[other] == name and (not groups[row] or groups[row] != groups[other])
    ]
    if not others:
        return None
    cosines = sorted((float(points[row] @ points[other]) for other in others), reverse=True)[:5]
    return sum(cosines) / len(cosines)


@pytest.mark.parametrize("groups", [None, [str(row // 2) if row < 20 else "" for row in range(40)]])
def test_margins_equal_a_slow_loop(groups):
    points = normalize(unit(40).double())
    classes = [("a", "b", "c", "")[row % 4] for row in range(39)] + ["alone"]
    images = labeled(points, classes)
    found = suspicious_labels(images, groups)
    expected = {}
    for row in np.flatnonzero(classes):
        cosines = {
            name: similarity(row, name, points, classes, groups or [""] * 40) for name in ("a", "b", "c", "alone")
        }
        own = cosines.pop(classes[row])
        if own is not None:
            best = max((name for name in cosines if cosines[name] is not None), key=cosines.get)
            expected[images.paths[row]] = (best, cosines[best] - own)
    assert dict(zip(found.paths, found.likely, strict=True)) == {path: best for path, (best, _) in expected.items()}
    assert found.margins.tolist() == pytest.approx([expected[path][1] for path in found.paths], abs=1e-12)
    assert (np.diff(found.margins) <= 0).all()
    assert found.alone == 1
    assert found.count == sum(margin > 0 for _, margin in expected.values())


@pytest.mark.parametrize("seed", range(5))
def test_wrong_labels_of_digits_come_first(seed):
    digits = load_digits()
    random = np.random.default_rng(seed)
    rows = random.permutation(len(digits.target))[:600]
    wrong = set(random.choice(600, 30, replace=False).tolist())
    labels = [str((digits.target[row] + (1 + place % 9) * (place in wrong)) % 10) for place, row in enumerate(rows)]
    points = normalize(torch.from_numpy(digits.data[rows]).float())
    found = suspicious_labels(labeled(points, labels))
    assert sum(int(path.partition("/")[2]) in wrong for path in found.paths[:30]) >= 27


def test_one_class_is_an_error():
    with pytest.raises(DataError, match="photos: found a; labels need two classes or more"):
        suspicious_labels(labeled(unit(4), ["a"] * 4))


@pytest.fixture
def misfiled(runs, folder, tmp_path, command):
    """A run with an index of a copy of the folder, where the first 7 is among the ones; and that file."""
    run = shutil.copytree(runs[0], tmp_path / "run")
    photos = shutil.copytree(folder, tmp_path / "photos")
    first = min((photos / "7").iterdir())
    first.rename(photos / "1" / first.name)
    command("index", run, photos)
    return run, f"1/{first.name}"


def test_labels_lists_and_writes_a_misfiled_image(misfiled, tmp_path, json_of, text_of):
    run, wrong = misfiled
    table = tmp_path / "labels.csv"
    sheet = tmp_path / "labels.png"
    found = json_of("labels", run, "-n", 5, "--csv", table, "--sheet", sheet)
    first = next(row for row in found["labels"] if row["path"] == wrong)
    assert (first["class"], first["likely"]) == ("1", "7")
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == found["images"] == 200
    assert rows[0]["path"] == found["labels"][0]["path"]
    assert Image.open(sheet).width > 100
    assert f"more similar to another class: {found['suspicious']} of 200 images" in text_of("labels", run, "-n", 3)


def test_labels_refuses_a_table_without_groups(misfiled, tmp_path, command, refused):
    run, wrong = misfiled
    table = tmp_path / "groups.csv"
    line = ("labels", run, "--groups", table)
    assert "no such file; wanted a table with the columns path and group" in refused(*line)
    table.write_text(f"path,burst\n{wrong},a\n")
    assert "found the columns path, burst; wanted path and group" in refused(*line)
    table.write_text("path,group\n1/nosuch.png,a\n")
    assert "1/nosuch.png: not indexed (1 of 1 paths)" in refused(*line)
    table.write_text(f"path,group\n{wrong},a\n")
    assert command(*line, "--json").returncode == 0
