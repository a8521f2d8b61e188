"""The terms of tiles, joined to those of the batch."""

import pytest
import torch

from pml_ext.losses.joined_terms import JoinedTerms


def term(losses, indices, kind, **more):
    return {"loss": {"losses": losses, "indices": indices, "reduction_type": kind, **more}}


def joined(tiles, order=None):
    """Return the terms of a batch whose tiles are ``(first row, terms)``."""
    terms = JoinedTerms("Mine", order)
    parts = [terms.flat(tile, start) for start, tile in tiles]
    return terms.terms(tuple(torch.cat(part) for part in zip(*parts, strict=True)))["loss"]


def test_anchor_values_get_their_batch_rows():
    tiles = [
        (0, term(torch.tensor([1.0, 2.0]), torch.arange(2), "element")),
        (2, term(torch.tensor([3.0]), torch.arange(1), "element")),
    ]
    found = joined(tiles)
    assert (found["losses"].tolist(), found["indices"].tolist(), found["divisor"]) == ([1, 2, 3], [0, 1, 2], 3)


def test_divisors_of_tiles_are_added():
    pairs = (torch.tensor([0, 1]), torch.tensor([3, 0]))
    tile = term(torch.ones(2), pairs, "pos_pair", divisor=torch.tensor(5.0))
    found = joined([(0, tile), (2, tile)])
    assert float(found["divisor"]) == 10
    assert [index.tolist() for index in found["indices"]] == [[0, 1, 2, 3], [3, 0, 3, 0]]


def test_rows_sorted_by_class_are_put_back():
    order = torch.tensor([2, 0, 1])  # the batch row of each sorted row
    anchors, positives, negatives = torch.tensor([0, 0, 1]), torch.tensor([1, 1, 0]), torch.tensor([2, 1, 2])
    found = joined([(0, term(torch.tensor([1.0, 2.0, 3.0]), (anchors, positives, negatives), "triplet"))], order)
    assert found["losses"].tolist() == [3, 1, 2]  # equal anchors and positives stay in their order
    assert [index.tolist() for index in found["indices"]] == [[0, 2, 2], [2, 0, 0], [1, 1, 0]]


def test_one_value_for_the_batch_has_no_tiles():
    with pytest.raises(TypeError, match="Mine gives one value for the whole batch, which tiles of it do not have"):
        joined([(0, term(torch.tensor(1.0), None, "already_reduced"))])
