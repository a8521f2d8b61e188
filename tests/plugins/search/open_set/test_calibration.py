"""The threshold between known and new, of heads that are fitted again without the classes that are left out."""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from pml_ext.errors import DataError
from pml_ext.whitening import WithinClassWhitening
from pml_ext_search.collection.class_folders import ClassFolders
from pml_ext_search.collection.embedded import Embedded
from pml_ext_search.open_set.calibration import Enrolled, Wanted, calibrated, shared_pictures


def embedded_of(points, names, folder):
    paths = [f"{name}/{number}.png" for number, name in enumerate(names)]
    return Embedded(folder, paths, points, stats=np.ones((len(names), 2), dtype=np.int64), class_folders=ClassFolders())


class Refitted:
    def __init__(self, features):
        self._features = features

    def features(self):
        return self._features

    def fit(self, features, labels):
        return WithinClassWhitening(0.3).fit(features, torch.from_numpy(labels))


@pytest.fixture
def made_up():
    """Features of 60 classes of four items, and 600 new items of 150 classes, with noise of few directions."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(210, 24, generator=generator)
    noise = torch.randn(4 * 210, 6, generator=generator) @ torch.randn(6, 24, generator=generator)
    features = centers.repeat_interleave(4, 0) + noise + 0.3 * torch.randn(4 * 210, 24, generator=generator)
    return features[:240], features[240:]


def test_cross_fitting_bounds_the_rate_of_strangers(made_up, tmp_path):
    """The head is fitted to the enrolled classes: their own distances are too large, those of the folds are not."""
    features, new = made_up
    names = [f"seal {number // 4:02d}" for number in range(240)]
    head = WithinClassWhitening(0.3).fit(features, np.arange(240) // 4)
    with torch.no_grad():
        enrolled = Enrolled(embedded_of(normalize(head(features)), names, tmp_path))
        strangers = normalize(head(new))
    found = calibrated(enrolled, "id", "embeddings", Wanted(0.1, "center"), set, refit=Refitted(features))
    assert found.on == "left out in 10 folds, each with a refitted head"
    assert (found.others, found.other_classes) == (240, 60)
    rate = (enrolled.classes("center").distances(strangers).min(1) <= found.threshold).mean()
    assert 0.03 < rate < 0.12
    with pytest.raises(DataError, match="the run was trained on all 60 enrolled classes"):
        calibrated(enrolled, "id", "embeddings", Wanted(0.1, "center"), set)


def test_only_untrained_classes_stand_for_new_ones(made_up, tmp_path):
    features, _ = made_up
    names = [f"seal {number // 4:02d}" for number in range(240)]
    enrolled = Enrolled(embedded_of(normalize(features), names, tmp_path))

    def trained(given):
        return set(given[:40])

    found = calibrated(enrolled, "id", "embeddings", Wanted(0.1, "image"), trained, refit=Refitted(features))
    assert (found.others, found.other_classes, found.classes) == (80, 20, 60)
    points = enrolled.embedded.embeddings.double()
    smallest = [
        min(float((points[row] - points[other]).norm()) for other in range(240) if other // 4 != row // 4)
        for row in range(160, 240)
    ]
    accepted = int((0.1 * 59 / 60 * 21 - 1) * 4)  # of 80 images, 4 a class: (accepted / 4 + 1) / 21 <= 0.1 * 59 / 60
    assert found.threshold == pytest.approx(sorted(smallest)[accepted])
    assert 0.08 < found.expected <= 0.1


@pytest.mark.parametrize("new", [1, 3, 4])
def test_a_few_new_classes_beside_trained_ones(new, made_up, tmp_path):
    """One new class promises nothing below 50 %; the heads that are fitted without each class do."""
    features, _ = made_up
    names = [f"seal {number // 4:02d}" for number in range(240)]
    enrolled = Enrolled(embedded_of(normalize(features), names, tmp_path))

    def trained(given):
        return set(given[new:])

    found = calibrated(enrolled, "id", "embeddings", Wanted(0.3, "center"), trained, refit=Refitted(features))
    assert found.other_classes == (60 if new < 4 else 4)
    if new == 1:
        with pytest.raises(DataError, match="1 class can promise 50.8 %, and 10 % needs 11; type --far 0.51"):
            calibrated(enrolled, "id", "embeddings", Wanted(0.1, "center"), trained)
        least = calibrated(enrolled, "id", "embeddings", Wanted(0.1, "center", strict=False), trained)
        assert (least.far, least.expected) == (0.1, pytest.approx(0.5 * 60 / 59))
        assert "; a promise of 10 % needs 11 classes." in str(least)


def test_images_without_a_class_are_not_enrolled(made_up, tmp_path):
    points = normalize(made_up[0])
    embedded = embedded_of(points[:10], ["seal"] * 5 + ["other"] * 4 + ["x"], tmp_path)
    embedded.paths[9] = "alone.png"
    enrolled = Enrolled(embedded)
    assert (enrolled.names, len(enrolled.rows)) == (["other", "seal"], 9)
    assert enrolled.numbers.tolist() == [1] * 5 + [0] * 4


@pytest.mark.parametrize("nearest", ["center", "image"])
@pytest.mark.parametrize("far", [0.1, None])
def test_accepted_shares_equal_slow_loops(nearest, far, made_up, tmp_path):
    points = normalize(made_up[0][:60]).double()
    owners = np.array([number // 4 for number in range(60)])
    owners[-3:] = [15, 16, 17]  # alone in their classes
    enrolled = Enrolled(embedded_of(points, [f"seal {owner:02d}" for owner in owners], tmp_path))
    found = calibrated(enrolled, "id", "embeddings", Wanted(far, nearest, strict=False), lambda _: set())
    # the greatest distance that is accepted, or just below the first that is not, to rounding errors
    threshold = found.threshold + (1e-9 if far is None else -1e-9)
    known = []
    new = []
    for query, owner in enumerate(owners):
        distances = {}
        for name in set(owners):
            members = points[(owners == name) & (np.arange(60) != query)]
            if nearest == "center":
                members = normalize(members.sum(0, keepdim=True))
            if (owners == name).sum() > (name == owner):
                distances[name] = float((members - points[query]).norm(dim=1).min())
        if owner in distances:
            known.append(min(distances.values()) == distances[owner] <= threshold)
        new.append(min(distances[name] for name in distances if name != owner) <= threshold)
    assert found.true_acceptances == pytest.approx(np.mean(known))
    assert found.false_acceptances == pytest.approx(np.mean(new))


def test_shared_pictures_do_not_pull_the_threshold(made_up, tmp_path):
    points = normalize(made_up[0])
    names = [f"seal {number // 4:02d}" for number in range(240)]
    points[[7, 11, 15]] = points[3].clone()  # of a group of four
    embedded = embedded_of(points, names, tmp_path)
    left_out, line = shared_pictures(embedded)
    assert left_out == {3, 7, 11, 15}
    assert line.startswith("seal 00/3.png and seal 01/7.png are one picture in several classes: left out")

    def calibrate(rows=(), **options):
        return calibrated(
            Enrolled(embedded, rows), "id", "embeddings", Wanted(0.025, "image"), lambda _: set(), **options
        )

    found = calibrate(left_out)
    assert (found.images, found.classes, found.others) == (236, 60, 236)
    assert calibrate().threshold < 1e-6 < 0.1 < found.threshold
    strangers = embedded_of(normalize(made_up[1])[:200], [f"stranger {number // 4}" for number in range(200)], tmp_path)
    strangers.embeddings[:5] = points[20:25]  # photographs that are enrolled
    again = calibrate(others=strangers)
    assert (again.others, again.other_classes) == (195, 49)
