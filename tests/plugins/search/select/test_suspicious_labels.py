"""Images that look like another class, against a slow loop; made-up wrong labels are found."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from pml_ext.errors import DataError
from pml_ext_search.collection.embedded import Embedded
from pml_ext_search.select.suspicious_labels import suspicious_labels


def embedded(points, classes):
    names = tuple(sorted(set(classes)))
    numbers = np.array([names.index(name) for name in classes])
    ids = [str(row) for row in range(len(points))]
    return Embedded("vectors.npz", ids, points, class_numbers=numbers, class_names=names)


def unit(rows, size=6, seed=0):
    points = torch.randn(rows, size, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(points)


def similarity(row, name, points, classes, groups):
    """The mean cosine to the five nearest images of a class; None if there is none to compare with."""
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
    points = torch.nn.functional.normalize(unit(40).double())
    classes = [("a", "b", "c", "")[row % 4] for row in range(39)] + ["alone"]
    found = suspicious_labels(embedded(points, classes), groups)
    expected = {}
    for row, given in enumerate(classes):
        if given:
            of = {
                name: similarity(row, name, points, classes, groups or [""] * 40) for name in ("a", "b", "c", "alone")
            }
            own = of.pop(given)
            if own is not None:
                best = max((name for name in of if of[name] is not None), key=of.get)
                expected[str(row)] = (best, of[best] - own)
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
    points = torch.nn.functional.normalize(torch.from_numpy(digits.data[rows]).float())
    found = suspicious_labels(embedded(points, labels))
    assert sum(int(path) in wrong for path in found.paths[:30]) >= 27


def test_one_class_is_an_error():
    with pytest.raises(DataError, match="vectors.npz: found a; labels need two classes or more"):
        suspicious_labels(embedded(unit(4), ["a"] * 4))
