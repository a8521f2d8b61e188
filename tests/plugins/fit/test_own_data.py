"""What fits somebody's own data: splits and batches."""

from pathlib import Path

import pytest
import torch

from pml_ext.errors import ConfigError, DataError
from pml_ext_fit.own_data import dataset_options, fitting_batch, fitting_split, splits_of
from pml_ext_train.data import LabeledImages

from ...overrides import typed


def part(*counts):
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    return LabeledImages(torch.zeros(len(labels), 2), labels, [str(label) for label in range(len(counts))])


@pytest.mark.parametrize(
    ("counts", "split"),
    [((4, 4), "image"), ((9,) * 19, "image"), ((9,) * 20, "class"), ((3, 3, 3, 9), "class")],
)
def test_the_split_follows_from_the_classes(counts, split):
    assert fitting_split(Path("here"), [part(*counts)]) == split


def test_too_few_of_both_are_refused():
    with pytest.raises(DataError, match="2 classes, most with fewer than 4 vectors; wanted two classes of 4 vectors"):
        fitting_split(Path("here"), [part(3, 3)])


@pytest.mark.parametrize(
    ("classes", "per_class", "size", "wanted"),
    [(100, 50.0, 64, (16, 4)), (2, 50.0, 64, (2, 16)), (10, 3.5, 128, (10, 3)), (10, 1.0, 64, (10, 2))],
)
def test_a_batch_has_several_of_several_classes(classes, per_class, size, wanted):
    assert fitting_batch(classes, per_class, size) == wanted


@pytest.mark.parametrize(
    ("overrides", "options"),
    [
        (
            typed(["data.split=image", "data.workers=2", "data.images.crop=3", "loss=cbml", "data.seed = 4"]),
            {"split": "image", "seed": 4},
        ),
        ({"data.relation": {"name": "near", "within": 2}}, {"relation": {"name": "near", "within": 2}}),
        ({"data.relation.name": "near", "data.relation.within": 2}, {"relation": {"name": "near", "within": 2}}),
        ({"data.relation": "near", "data.relation.within": 2}, {"relation": {"name": "near", "within": 2}}),
        ({"data.relation": "shared-label"}, {"relation": "shared-label"}),
    ],
)
def test_data_set_options_are_found_among_overrides(overrides, options):
    assert dataset_options(overrides) == options


def test_a_wrong_relation_is_one_line():
    with pytest.raises(ConfigError, match="^data.relation: no relation 'nearr'; nearest: near, hierarchy$"):
        splits_of("folder:photos", {"relation": "nearr"}, None)
