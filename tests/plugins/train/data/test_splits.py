"""Splits of a data set."""

import pytest
import torch

from pml_ext.errors import DataError
from pml_ext_train.data import (
    DataSplits,
    LabeledImages,
    digits,
    hold_out_classes,
)


def test_held_out_classes():
    train = digits().train
    rest, held_out = hold_out_classes(train, 0.3, seed=3)
    assert len(set(held_out.labels)) == 3
    assert len(set(rest.labels)) == 7
    assert not set(rest.labels) & set(held_out.labels)
    assert set(hold_out_classes(train, 0.3, seed=4)[1].labels) != set(held_out.labels)
    rest, held_out = hold_out_classes(train, 0.3, which="last")
    assert (set(rest.labels.tolist()), set(held_out.labels.tolist())) == ({*range(7)}, {7, 8, 9})


def test_images_without_labels_are_not_tested():
    images = LabeledImages(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), [0, 0], [""], channels=1)
    about = {"image_size": 4, "channels": 1, "labeled": False}
    assert DataSplits(images, **about).tested() == {}
    with pytest.raises(DataError, match="images without labels cannot be tested; wanted train alone"):
        DataSplits(images, images, **about)


def test_splits_that_a_run_would_stumble_over_are_refused():
    def part(images, labels):
        return LabeledImages(images, labels, ["a", "b"], channels=1)

    images = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
    good = part(images, [0, 1])
    for wrong, text in (
        (part(images, [1, 2]), "labels of test are 1 to 2, but there are 2 class_names"),
        (part(images, [-1, 0]), "labels of test are -1 to 0"),
        (part(images[:0], []), "test has no image"),
        (part(images.float(), [0, 1]), r"images of test are torch.float32 .*; wanted uint8 \[N, 1, H, W\]"),
        (part(images.permute(0, 2, 3, 1), [0, 1]), "images of test are torch.uint8 of shape"),
        (part(images.expand(2, 3, 4, 4), [0, 1]), "images of test are torch.uint8 of shape"),
    ):
        with pytest.raises(ValueError, match=text):
            DataSplits(good, wrong, image_size=4, channels=1)
    dataset = torch.utils.data.TensorDataset(images)
    with pytest.raises(TypeError, match=r"train is TensorDataset; wanted pml_ext\.plugin\.LabeledImages"):
        DataSplits(dataset, good, image_size=4, channels=1)
