"""The threshold between known and new, of heads that are fitted again without the classes that are left out."""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from pml_ext.errors import DataError
from pml_ext.whitening import WithinClassWhitening
from pml_ext_search.calibration import Enrolled, calibrated
from pml_ext_search.class_folders import ClassFolders
from pml_ext_search.embedded import Embedded


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


def test_cross_fitting_tells_of_classes_that_were_not_trained_on(made_up, tmp_path):
    """The head is fitted to the enrolled classes: their own distances are too large, those of the folds are not."""
    features, new = made_up
    names = [f"seal {number // 4:02d}" for number in range(240)]
    head = WithinClassWhitening(0.3).fit(features, np.arange(240) // 4)
    with torch.no_grad():
        enrolled = Enrolled(embedded_of(normalize(head(features)), names, tmp_path))
        strangers = normalize(head(new))
    found = calibrated(enrolled, "id", "embeddings", 0.1, "center", set, refit=Refitted(features))
    assert found.on == "left out in 10 folds, with a head that is fitted to the other classes of each"
    assert (found.others, found.other_classes) == (240, 60)
    rate = (enrolled.classes("center").distances(strangers).min(1) <= found.threshold).mean()
    assert 0.1 / 1.5 < rate < 0.1 * 1.5
    with pytest.raises(DataError, match="the run was trained on all 60 enrolled classes"):
        calibrated(enrolled, "id", "embeddings", 0.1, "center", set)


def test_only_classes_that_were_not_trained_on_stand_for_new_ones(made_up, tmp_path):
    features, _ = made_up
    names = [f"seal {number // 4:02d}" for number in range(240)]
    enrolled = Enrolled(embedded_of(normalize(features), names, tmp_path))

    def trained(given):
        return set(given[:40])

    found = calibrated(enrolled, "id", "embeddings", 0.1, "image", trained, refit=Refitted(features))
    assert (found.others, found.other_classes, found.classes) == (80, 20, 60)
    points = enrolled.embedded.embeddings.double()
    smallest = [
        min(float((points[row] - points[other]).norm()) for other in range(240) if other // 4 != row // 4)
        for row in range(160, 240)
    ]
    assert found.threshold == pytest.approx(sorted(smallest)[int((1 - 0.9 ** (59 / 60)) * 81) - 1])


def test_images_without_a_class_are_not_enrolled(made_up, tmp_path):
    points = normalize(made_up[0])
    embedded = embedded_of(points[:10], ["seal"] * 5 + ["other"] * 4 + ["x"], tmp_path)
    embedded.paths[9] = "alone.png"
    enrolled = Enrolled(embedded)
    assert (enrolled.names, len(enrolled.rows)) == (["other", "seal"], 9)
    assert enrolled.numbers.tolist() == [1] * 5 + [0] * 4
