"""Positive, negative and hard pairs, against loops over all pairs."""

import pytest
import torch

from pml_ext import pairwise


class TestPairMasks:
    def test_self_pairs_are_left_out_only_without_references(self):
        same = torch.tensor([0, 1])
        indices = (same, torch.tensor([0, 0]), same, torch.tensor([2, 1]))
        positives, negatives = pairwise.pair_masks(torch.empty(3, 3), None, indices)
        assert positives.nonzero().tolist() == [[1, 0]]
        assert negatives.nonzero().tolist() == [[0, 2]]
        positives, _ = pairwise.pair_masks(torch.empty(3, 3), None, indices, has_references=True)
        assert positives.nonzero().tolist() == [[0, 0], [1, 0]]

    def test_what_is_missing_is_named(self):
        for call, text in (
            (lambda: pairwise.pair_masks(torch.empty(3, 3), None), r"^labels must be given where no indices_tuple is"),
            (
                lambda: pairwise.pair_masks(torch.empty(3, 3), torch.arange(3), has_references=True),
                r"^ref_labels must be given",
            ),
            (
                lambda: pairwise.pair_masks(torch.empty(3, 3), None, (torch.arange(1),) * 2),
                r"three index tensors .* or four .* got 2",
            ),
        ):
            with pytest.raises(ValueError, match=text):
                call()


def test_the_inequalities_of_hard_pairs_are_strict():
    similarity = torch.tensor([[1.0, 0.75, 0.5]])
    masks = torch.tensor([[[False, True, False]], [[False, False, True]]])  # a positive and a negative
    assert not pairwise.hard_pair_masks(similarity, masks, 0.25).any()
    assert torch.equal(pairwise.hard_pair_masks(similarity, masks, 0.26), masks)


def test_hard_pairs_of_rows_that_lack_some():
    similarity = torch.tensor([[0.5, 0.25, 0.5], [0.5, 0.25, 0.5], [0.5, torch.nan, 0.5]])
    positives = torch.tensor([[True, True, True], [False, False, False], [True, False, True]])
    negatives = torch.tensor([[False, False, False], [True, True, True], [False, True, False]])
    hard = pairwise.hard_pair_masks(similarity, torch.stack((positives, negatives)))
    assert not hard[:, :2].any()  # without negatives, or without positives
    assert torch.equal(hard[:, 2], torch.stack((positives, negatives))[:, 2])  # NaN is left in


class TestPairsOfRows:
    labels = torch.tensor([2, 0, 2, 1, 0])
    mined = (torch.tensor([4, 0, 4]), torch.tensor([1, 2, 1]), torch.tensor([3, 0, 4]), torch.tensor([0, 1, 2]))

    def test_slices_have_the_masks_of_a_loop(self):
        pairs = pairwise.PairsOfRows(torch.device("cpu"), self.labels, None, None, has_references=False)
        for rows in (None, slice(0, 2), slice(3, 5)):
            first, last = (0, 5) if rows is None else (rows.start, rows.stop)
            positives, negatives = pairs.masks(torch.empty(last - first, 5), rows)
            numbers = self.labels.tolist()
            for i in range(first, last):
                assert positives[i - first].tolist() == [numbers[i] == numbers[j] and i != j for j in range(5)]
                assert negatives[i - first].tolist() == [numbers[i] != numbers[j] for j in range(5)]

    def test_listed_pairs_are_counted_in_their_slice(self):
        pairs = pairwise.PairsOfRows(torch.device("cpu"), None, self.mined, None, has_references=False, rows=5)
        listed = [[*zip(*map(torch.Tensor.tolist, each), strict=True)] for each in (self.mined[:2], self.mined[2:])]
        for rows in (slice(0, 3), slice(3, 5)):
            matrix = torch.empty(rows.stop - rows.start, 5)
            found = pairs.counts(matrix, rows)
            for counts, mask, given in zip(found, pairs.masks(matrix, rows), listed, strict=True):
                expected = [[given.count((i, j)) for j in range(5)] for i in range(rows.start, rows.stop)]
                assert counts.tolist() == expected
                assert mask.tolist() == [[count > 0 for count in row] for row in expected]
        assert pairs.triplets(slice(0, 3)) is None

    def test_triplets_are_counted_from_their_slice(self):
        triplets = self.mined[:2] + self.mined[3:]
        pairs = pairwise.PairsOfRows(torch.device("cpu"), None, triplets, None, has_references=False, rows=5)
        assert [index.tolist() for index in pairs.triplets(slice(3, 5))] == [[1, 1], [1, 1], [0, 2]]
        assert [len(index) for index in pairs.triplets(slice(1, 3))] == [0, 0, 0]

    def test_an_own_copy_is_no_partner(self):
        columns = torch.tensor([3, 1])
        ref_labels = torch.tensor([0, 1, 0, 0])
        pairs = pairwise.PairsOfRows(
            torch.device("cpu"), torch.tensor([0, 1]), None, ref_labels, columns, has_references=True
        )
        positives, negatives = pairs.masks(torch.empty(2, 4))
        assert positives.tolist() == [[True, False, True, False], [False] * 4]
        assert negatives.tolist() == [[False, True, False, False], [True, False, True, True]]


@pytest.mark.parametrize("anchor", [-1, 4])
def test_anchors_outside_of_the_batch_are_refused(anchor):
    rows = torch.tensor([0, anchor]), torch.tensor([1, 2]), torch.tensor([0, 1]), torch.tensor([3, 3])
    with pytest.raises(IndexError, match=f"has anchors .*{anchor}.*, and the batch has rows 0 to 3"):
        pairwise.PairsOfRows(torch.device("cpu"), None, rows, None, has_references=False, rows=4)


@pytest.mark.parametrize("shape", [(3, 5), (256, 128), (330, 104), (400, 91)])  # the second and third by words
def test_places_in_a_mask_are_those_of_torch(shape):
    masks = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0)) < torch.tensor([0.02, 0.5])[:, None, None]
    for mask in masks:
        for found, expected in zip(pairwise.places_in(mask), torch.where(mask), strict=True):
            assert torch.equal(found, expected)
