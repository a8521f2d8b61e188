"""Distances to classes, thresholds between known and new, and heads that are fitted again, against slow loops."""

import itertools
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from pml_ext import load_run
from pml_ext.errors import DataError
from pml_ext.whitening import WithinClassWhitening
from pml_ext_search.collection.class_folders import ClassFolders
from pml_ext_search.collection.embedded import Embedded
from pml_ext_search.open_set import open_set
from pml_ext_search.open_set.calibration import Enrolled, Wanted, calibrated, shared_pictures
from pml_ext_search.open_set.open_set import (
    Classes,
    expected_rate,
    interval_of,
    metrics_of,
    rows_in_several_classes,
    share_of_classes,
    threshold_at,
)
from pml_ext_search.open_set.refitting import refit_of
from pml_ext_search.open_set.trained_classes import trained_classes

from ..conftest import trained

NAMES = [f"seal {number // 4:02d}" for number in range(240)]


def points_of(seed, count=40, classes=6, size=5):
    generator = np.random.default_rng(seed)
    points = normalize(torch.from_numpy(generator.normal(size=(count, size))).float())
    numbers = np.concatenate([np.arange(classes), generator.integers(classes - 1, size=count - classes)])
    return points, numbers  # the last class has one image


def slow_distances(points, embeddings, numbers, count, nearest, own):
    found = np.full((len(points), count), np.inf)
    for query, number in itertools.product(range(len(points)), range(count)):
        rows = [row for row in range(len(numbers)) if numbers[row] == number and row != own[query]]
        members = embeddings[rows].double()
        if nearest == "center":
            members = normalize(members.sum(0, keepdim=True))
        if rows:
            found[query, number] = (members - points[query]).norm(dim=1).min()
    return found


@pytest.mark.parametrize("nearest", ["center", "image"])
@pytest.mark.parametrize("own", [False, True])
def test_distances_equal_a_slow_loop(nearest, own, monkeypatch):
    embeddings, numbers = points_of(0)
    monkeypatch.setattr(open_set, "_ROWS", 7)
    monkeypatch.setattr(open_set, "_AT_A_TIME", 300)
    places = list(range(40)) if own else [None] * 40
    points = embeddings if own else points_of(1)[0]
    found = Classes(embeddings, numbers, 6, nearest).distances(points, places)
    np.testing.assert_allclose(found, slow_distances(points, embeddings, numbers, 6, nearest, places), atol=1e-7)
    if own:
        assert np.isinf(found[5, 5])  # alone in its class


def test_equal_photographs_are_at_no_distance():
    embeddings, numbers = points_of(2, size=300)
    assert Classes(embeddings, numbers, 6, "image").distances(embeddings)[np.arange(40), numbers].max() < 1e-6
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
    points, _ = points_of(3, size=30)
    points[[4, 9, 20]] = points[1] + noise * torch.randn(3, 30)
    points[7] = points[6]
    names = [f"class {number % 5}" for number in range(40)]
    names[7] = names[6]
    names[20] = ""
    assert rows_in_several_classes(points, names) == [[1, 4, 9]]
    assert rows_in_several_classes(points[:0], []) == []


def slow_metrics(distances, classes, threshold, labels):
    queries = range(len(classes))
    answers = [row.argmin() if row.min() <= threshold else None for row in distances]
    known = [q for q in queries if classes[q] is not None]
    new = [q for q in queries if classes[q] is None]

    def rate(members, right):
        return sum(right(q) for q in members) / len(members)

    def mean_over(members, key, right):
        groups = {key(q) for q in members}
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
        for limit in distances.min(1):
            if rate(new, lambda q, limit=limit: distances[q].min() <= limit) <= far:
                within = [q for q in known if distances[q].argmin() == classes[q] and distances[q].min() <= limit]
                best = max(best, len(within) / len(known))
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
    wanted = slow_metrics(distances, classes, 0.2, labels)
    assert metrics_of(distances, classes, 0.2, labels) == pytest.approx(wanted, abs=1e-12)


def embedded_of(points, names=NAMES):
    paths = [f"{name}/{number}.png" for number, name in enumerate(names)]
    stats = np.ones((len(names), 2), dtype=np.int64)
    return Embedded(Path("photos"), paths, points, stats=stats, class_folders=ClassFolders())


def refitted(features):
    """A head that is fitted again to other classes of these features."""

    def fit(rows, labels):
        return WithinClassWhitening(0.3).fit(rows, torch.from_numpy(labels))

    return SimpleNamespace(features=lambda: features, fit=fit)


@pytest.fixture
def made_up():
    """Features of 60 classes of four items, and 600 new items of 150 classes, with noise of few directions."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(210, 24, generator=generator)
    noise = torch.randn(4 * 210, 6, generator=generator) @ torch.randn(6, 24, generator=generator)
    features = centers.repeat_interleave(4, 0) + noise + 0.3 * torch.randn(4 * 210, 24, generator=generator)
    return features[:240], features[240:]


def test_cross_fitting_bounds_the_rate_of_strangers(made_up):
    """The head fits the enrolled classes: their own distances are too large, and distances within folds are not."""
    features, new = made_up
    head = WithinClassWhitening(0.3).fit(features, np.arange(240) // 4)
    with torch.no_grad():
        enrolled = Enrolled(embedded_of(normalize(head(features))))
        strangers = normalize(head(new))
    wanted = Wanted(0.1, "center")
    found = calibrated(enrolled, "id", "embeddings", wanted, set, refit=refitted(features))
    assert found.on == "left out in 10 folds, each with a refitted head"
    assert (found.others, found.other_classes) == (240, 60)
    rate = (enrolled.classes("center").distances(strangers).min(1) <= found.threshold).mean()
    assert 0.03 < rate < 0.12
    with pytest.raises(DataError, match="the run was trained on all 60 enrolled classes"):
        calibrated(enrolled, "id", "embeddings", wanted, set)


def test_only_untrained_classes_stand_for_new_ones(made_up):
    features, _ = made_up
    enrolled = Enrolled(embedded_of(normalize(features)))
    wanted = Wanted(0.1, "image")
    found = calibrated(enrolled, "id", "embeddings", wanted, lambda given: {*given[:40]}, refit=refitted(features))
    assert (found.others, found.other_classes, found.classes) == (80, 20, 60)
    points = enrolled.embedded.embeddings.double()
    smallest = [
        min(float((points[row] - points[other]).norm()) for other in range(240) if other // 4 != row // 4)
        for row in range(160, 240)
    ]
    accepted = int((0.1 * 59 / 60 * 21 - 1) * 4)  # of 80 images, 4 a class: (accepted / 4 + 1) / 21 <= 0.1 * 59 / 60
    assert found.threshold == pytest.approx(sorted(smallest)[accepted])
    assert 0.08 < found.expected <= 0.1


@pytest.mark.parametrize(("new", "classes"), [(1, 60), (3, 60), (4, 4)])
def test_a_few_new_classes_beside_trained_ones(new, classes, made_up):
    """The heads that are fitted without each class promise more than few new classes do."""
    features, _ = made_up
    enrolled = Enrolled(embedded_of(normalize(features)))
    wanted = Wanted(0.3, "center")
    found = calibrated(enrolled, "id", "embeddings", wanted, lambda given: {*given[new:]}, refit=refitted(features))
    assert found.other_classes == classes


def test_one_new_class_promises_half_of_strangers(made_up):
    enrolled = Enrolled(embedded_of(normalize(made_up[0])))

    def calibrate(**options):
        return calibrated(enrolled, "id", "embeddings", Wanted(0.1, "center", **options), lambda given: {*given[1:]})

    with pytest.raises(DataError, match="1 class can promise 50.8 %, and 10 % needs 11; type --far 0.51"):
        calibrate()
    least = calibrate(strict=False)
    assert (least.far, least.expected) == (0.1, pytest.approx(0.5 * 60 / 59))
    assert "; a promise of 10 % needs 11 classes." in str(least)


def test_images_without_a_class_are_not_enrolled(made_up):
    embedded = embedded_of(normalize(made_up[0][:10]), ["seal"] * 5 + ["other"] * 4 + ["x"])
    embedded.paths[9] = "alone.png"
    enrolled = Enrolled(embedded)
    assert (enrolled.names, len(enrolled.rows)) == (["other", "seal"], 9)
    assert enrolled.numbers.tolist() == [1] * 5 + [0] * 4


@pytest.mark.parametrize("nearest", ["center", "image"])
@pytest.mark.parametrize("far", [0.1, None])
def test_accepted_shares_equal_slow_loops(nearest, far, made_up):
    points = normalize(made_up[0][:60]).double()
    owners = np.arange(60) // 4
    owners[-3:] = [15, 16, 17]  # alone in their classes
    enrolled = Enrolled(embedded_of(points, [f"seal {owner:02d}" for owner in owners]))
    found = calibrated(enrolled, "id", "embeddings", Wanted(far, nearest, strict=False), lambda _: set())
    # the greatest distance that is accepted, or just below the first that is not, to rounding errors
    threshold = found.threshold + (1e-9 if far is None else -1e-9)
    distances = slow_distances(points, points, owners, 18, nearest, range(60))
    own = distances[np.arange(60), owners].copy()
    distances[np.arange(60), owners] = np.inf
    others = distances.min(1)
    known = (own < others) & (own <= threshold)
    assert found.true_acceptances == pytest.approx(known[np.isfinite(own)].mean())
    assert found.false_acceptances == pytest.approx((others <= threshold).mean())


def test_shared_pictures_do_not_pull_the_threshold(made_up):
    points = normalize(made_up[0])
    points[[7, 11, 15]] = points[3].clone()  # of a group of four
    embedded = embedded_of(points)
    left_out, line = shared_pictures(embedded)
    assert left_out == {3, 7, 11, 15}
    assert line.startswith("seal 00/3.png and seal 01/7.png are one picture in several classes: left out")

    def calibrate(rows=(), **options):
        wanted = Wanted(0.025, "image")
        return calibrated(Enrolled(embedded, rows), "id", "embeddings", wanted, lambda _: set(), **options)

    found = calibrate(left_out)
    assert (found.images, found.classes, found.others) == (236, 60, 236)
    assert calibrate().threshold < 1e-6 < 0.1 < found.threshold
    strangers = embedded_of(normalize(made_up[1])[:200], [f"stranger {number // 4}" for number in range(200)])
    strangers.embeddings[:5] = points[20:25]  # photographs that are enrolled
    again = calibrate(others=strangers)
    assert (again.others, again.other_classes) == (195, 49)


@pytest.fixture(scope="module")
def vectors_run(tmp_path_factory):
    """A run of whitening within classes, on vectors of 20 classes, and its file of vectors, in another order."""
    place = tmp_path_factory.mktemp("refitting")
    generator = np.random.default_rng(0)
    labels = np.arange(100) % 20
    features = generator.normal(size=(20, 8))[labels] + generator.normal(size=(100, 8)) * 0.3
    order = generator.permutation(100)
    columns = {
        "embeddings": features.astype(np.float32),
        "labels": np.array([f"seal {label:02d}" for label in labels]),
        "ids": np.array([f"item {number:02d}" for number in range(100)]),
    }
    np.savez(place / "all.npz", **columns, split=np.where(labels < 14, "train", "test"))
    known = order[labels[order] < 14]
    np.savez(place / "known.npz", **{name: column[known] for name, column in columns.items()})
    settings = ["model.embedder=within-class", "model.embedding_size=8", "sampler.batch_size=56", "schedule.epochs=1"]
    trained("fit/vectors", place / "run", f"data.name=vectors:{place / 'all.npz'}", *settings)
    return place


@pytest.mark.parametrize("size", [None, 3])
def test_a_head_of_all_items_is_the_runs(vectors_run, tmp_path, size):
    run = load_run(vectors_run / "run", "cpu", store=tmp_path / "store", size=size)
    run.index(vectors_run / "known.npz")
    embedded = run.indexed_images()
    refit = refit_of(run.search_index, run.recipe)
    features = refit.features()
    labels = np.unique(embedded.classes, return_inverse=True)[1]
    with torch.no_grad():
        found = normalize(refit.fit(features, labels)(features))
    assert found.shape[1] == (size or 8)
    torch.testing.assert_close(found, embedded.embeddings, atol=1e-4, rtol=0)
    with pytest.warns(UserWarning, match="left out in 7 folds, each with a refitted head"):
        run.calibrate(0.1)
    (answer, *_) = run.identify(features[:2].numpy(), radius=2)
    assert answer.name == embedded.classes[0]


def test_a_trained_head_is_not_fitted_again(runs):
    run = load_run(runs[0], "cpu")
    assert refit_of(run.search_index, run.recipe) is None


@pytest.mark.parametrize(
    ("names", "trained"),
    [
        (["1", "2", "seal"], {"1", "2"}),
        (["_1_", "++", "--"], {"_1_"}),  # names of symbols alone are not alike
    ],
)
def test_trained_classes_are_known_by_name(runs, names, trained):
    assert trained_classes(load_run(runs[0], "cpu").loaded, "embeddings", names) == trained


def test_frozen_features_are_trained_on_no_class(runs, monkeypatch):
    run = load_run(runs[0], "cpu")
    monkeypatch.setattr(run.recipe.model, "freeze", "trunk")
    assert trained_classes(run.loaded, "features", ["1"]) == set()
