"""The data of a run: listings, tested training images, and samples by class."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pml_ext.errors import DataError
from pml_ext_train.data import LabeledImages
from pml_ext_train.recipe import load_recipe
from pml_ext_train.training.run_data import SAMPLE, listing_of, load_run_data, some_of_each_class

from ....overrides import typed


def data_of(*overrides):
    return load_run_data(load_recipe("cbml/digits", typed(overrides)), 0, None, lambda text: None)


def test_a_listing_depends_on_labels_and_relative_paths(tmp_path):
    def listing(place, names, labels=(0, 0, 1), boxes=None):
        return listing_of(LabeledImages([place / name for name in names], labels, ["a", "b"], boxes=boxes))

    names = ["a/1.png", "a/2.png", "b/1.png"]
    one = listing(tmp_path, names)
    assert one == listing(tmp_path / "moved", names)
    others = [
        listing(tmp_path, ["a/1.png", "a/3.png", "b/1.png"]),
        listing(tmp_path, names, (0, 1, 1)),
        listing(tmp_path, names, boxes=np.ones((3, 4))),
    ]
    assert [(each["images"], each["classes"]) for each in (one, *others)] == [(3, 2)] * 4
    assert len({each["digest"] for each in (one, *others)}) == 4
    arrays = [listing_of(LabeledImages(torch.zeros(len(labels), 1, 2, 2), labels, ["a"])) for labels in ([0], [0, 0])]
    assert arrays[0]["digest"] != arrays[1]["digest"]


def test_tested_training_images_may_be_a_sample():
    every = data_of("evaluation.training_images=100000")
    sample = data_of("evaluation.training_images=50")
    none = data_of("evaluation.training_images=0")
    assert [each.tested_training for each in (every, sample, none)] == ["train", SAMPLE, None]
    assert len(every.splits["train"]) == len(sample.training_images) > len(sample.splits[SAMPLE]) == 50
    assert list(none.splits) == ["test", "train"]


def test_changed_data_are_refused_by_difference():
    data = data_of()
    data.check_listing(Path("run"), data.listing)
    fewer = {**data.listing, "test": {"images": 7, "classes": 1, "digest": "0"}}
    with pytest.raises(
        DataError, match="run: the images have changed since the run began: test had 7 images of 1 class, now "
    ):
        data.check_listing(Path("run"), fewer)
    others = {name: {**listing, "digest": "0"} for name, listing in data.listing.items()}
    with pytest.raises(
        DataError, match="train has other files or labels; test has other files or labels. Restore them"
    ):
        data.check_listing(Path("run"), others)
    with pytest.raises(ValueError, match="no split 'query'; splits: test, train"):
        data.images("query")


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
