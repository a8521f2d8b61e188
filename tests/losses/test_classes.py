"""A class's row by its label, and batches grouped by class, against dictionaries and lists."""

import pytest
import torch

from pml_ext.losses.classes import ClassLabels, class_members


@pytest.mark.parametrize("labels", [None, [7, -2, 40, 3], torch.tensor([3, 2, 1, 0])])
def test_a_label_has_the_row_of_its_place(labels):
    given = list(range(4)) if labels is None else [int(label) for label in labels]
    table = ClassLabels(4, labels)
    asked = torch.tensor([given[2], given[0], given[3], given[0]])
    assert table(asked).tolist() == [given.index(label) for label in asked.tolist()] == [2, 0, 3, 0]
    assert table.known(torch.tensor([*given, 99, -50])).tolist() == [True] * 4 + [False] * 2
    assert table(torch.tensor([99, -50])).max() < 4  # any row, but one that exists
    assert not table.state_dict()


def test_unknown_labels_are_named_with_what_to_type():
    table = ClassLabels(3)
    table.check(torch.tensor([2, 0]), "Owner")
    with pytest.raises(ValueError, match=r"labels \[5, 7\] have no class: Owner has num_classes=3 with labels 0 to 2"):
        table.check(torch.tensor([7, 2, 5, 7]), "Owner")
    with pytest.raises(ValueError, match=r"for example class_labels=range\(10, 13\)$"):
        table.check(torch.arange(10, 20), "Owner")


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ([0, 1], "must be 3 different integers, one for each class; got 2 of dtype torch.int64, 2 of them different"),
        ([0, 1, 1], "got 3 of dtype torch.int64, 2 of them different"),
        ([0.0, 1.0, 2.0], "got 3 of dtype torch.float32, 3 of them different"),
    ],
)
def test_labels_that_name_no_classes_are_refused(labels, text):
    with pytest.raises(ValueError, match=text):
        ClassLabels(3, labels)


@pytest.mark.parametrize(("small", "most_fill"), [(60, 4), (10, 1)])
def test_one_product_is_cheaper_than_two(small, most_fill):
    """For a batch that is small, and for one whose classes differ in size so much that the padding would be most."""
    labels = torch.arange(60) // 4 * (torch.arange(60) < 20)
    assert class_members(labels, small, most_fill) is None
    assert class_members(labels, small=10) is not None
