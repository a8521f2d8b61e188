"""Sums over the triplets of each pair, against lists of them."""

import pytest
import torch

from pml_ext_triplets import functional

MARGIN = 0.3


@pytest.mark.parametrize("labels", [[0, 0, 0, 1, 2, 2], [0, 1, 0, 1, 2, 2]], ids=["padded", "without padding"])
def test_values_of_pairs_come_back_as_listed(labels):
    labels = torch.tensor(labels)
    mask = (labels[:, None] == labels) & ~torch.eye(6, dtype=torch.bool)
    pairs = functional.lay_out(*torch.where(mask), len(mask))
    assert (pairs.columns is None) == bool((mask.sum(1) == 1).all())
    for each in (pairs, functional.all_positions(mask)):
        values = torch.arange(1.0, len(each.anchors) + 1)
        found = each.listed(each.laid_out(values, 0.0, 6))
        assert torch.equal(found, values * mask[each.anchors, each.positives])
