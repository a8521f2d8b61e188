"""A sample of images by class."""

import numpy as np
import pytest

from pml_ext_train.training.run_data import some_of_each_class


def labels_of(*counts):
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)) + 7, counts))


@pytest.mark.parametrize("most", [20, 120, 1000, 4999])
def test_small_classes_are_whole_but_for_one(most):
    labels = labels_of(*[5] * 1000)
    chosen = some_of_each_class(labels, most)
    assert len(chosen) == len(set(chosen.tolist())) == most
    assert (np.diff(chosen) > 0).all()
    sizes = np.unique(labels[chosen], return_counts=True)[1]
    assert (sizes != 5).sum() <= 1


def test_large_classes_give_as_many_as_are_needed():
    labels = labels_of(*[400] * 30, 3)
    sizes = dict(zip(*np.unique(labels[some_of_each_class(labels, 200)], return_counts=True), strict=True))
    assert set(sizes.values()) <= {20, 3, 17}
    labels = labels_of(*[90] * 10)  # the limit per class is the smallest that suffices
    assert np.unique(labels[some_of_each_class(labels, 300)], return_counts=True)[1].tolist() == [30] * 10
