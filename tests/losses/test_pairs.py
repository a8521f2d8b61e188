"""The pairs that an equation sees, and its terms, against lists of them."""

import pytest
import torch

from pml_ext.losses import per_anchor, per_pair, per_triplet, reduced
from pml_ext.losses.pairs import Pairs


def products(x, y):
    return x @ y.T


def pairs_of(labels, **given):
    """The pairs of a whole batch of these labels."""
    points = torch.randn(len(labels), 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    same = labels[:, None] == labels
    return Pairs(
        products(points, points),
        torch.stack((same & ~torch.eye(len(labels), dtype=torch.bool), ~same)),
        weights=None,
        embeddings=points,
        ref_emb=points,
        points=points,
        columns=points,
        compare=products,
        has_references=False,
        **given,
    )


LABELS = torch.tensor([1, 0, 1, 1, 0, 2])
LISTED = [(0, 2), (0, 3), (1, 4), (2, 0), (2, 3), (3, 0), (3, 2), (4, 1)]


def test_positive_pairs_are_in_row_major_order():
    pairs = pairs_of(LABELS)
    assert list(zip(*(index.tolist() for index in pairs.listed), strict=True)) == LISTED
    assert pairs.listed[0] is pairs.listed[0]  # once computed


def test_a_pair_is_listed_as_often_as_counted():
    counts = torch.zeros(6, 6)
    counts[0, 3] = 2
    counts[4, 1] = 3
    pairs = pairs_of(LABELS, counts=(counts, counts))
    assert list(zip(*(index.tolist() for index in pairs.listed), strict=True)) == [(0, 3)] * 2 + [(4, 1)] * 3


@pytest.mark.parametrize("whole_classes", [False, True])
def test_partners_have_their_rows_of_the_matrix(whole_classes):
    pairs = pairs_of(LABELS, whole_classes=whole_classes)
    partners = torch.tensor([3, 0, 3])
    matrix, rows = pairs.between(partners)
    torch.testing.assert_close(matrix[rows], pairs.matrix[partners], rtol=0, atol=1e-14)
    assert len(matrix) == (6 if whole_classes else 2)
    assert pairs.between(partners[:0])[0].shape[1] == 6


def test_fixed_shapes_list_all_entries_as_pairs():
    listing = pairs_of(LABELS)
    padding = pairs_of(LABELS, lists_all=True)
    assert len(padding.listed[0]) == 36
    anchors, partners = padding.listed
    values = padding.matrix[anchors, partners]
    padded = per_pair(values, padding)["loss"]
    plain = per_pair(listing.matrix[listing.listed], listing)["loss"]
    torch.testing.assert_close(padded["losses"].sum(), plain["losses"].sum())
    assert padded["count"] == padded["divisor"] == plain["divisor"] == len(LISTED)
    assert padded["losses"].count_nonzero() == len(LISTED)
    assert per_pair(values, padding, divisor=3)["loss"]["divisor"] == 3


def test_terms_are_those_of_a_reducer():
    losses = torch.rand(6)
    anchors = per_anchor(losses)["loss"]
    assert anchors["indices"].tolist() == list(range(6))
    assert (anchors["reduction_type"], anchors["divisor"]) == ("element", 6)
    assert per_anchor(losses, 4.5)["loss"]["divisor"] == 4.5
    triplets = torch.tensor([0, 0]), torch.tensor([2, 3]), torch.tensor([1, 5])
    term = per_triplet(losses[:2], triplets)["loss"]
    assert (term["indices"], term["reduction_type"], term["divisor"]) == (triplets, "triplet", 2)
    whole = reduced(losses.sum())["loss"]
    assert (whole["losses"], whole["reduction_type"]) == (losses.sum(), "already_reduced")
