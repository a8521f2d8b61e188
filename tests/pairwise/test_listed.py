"""Listed pairs and triplets: their batches against a loop, subsets, samples, and what is refused."""

import pytest
import torch

from pml_ext.pairwise import ListedTuples, sample_tuples

PAIRS = ListedTuples([[5, 2], [2, 9], [9, 5], [0, 1]], [True, False, True, False])
TRIPLETS = ListedTuples([[5, 2, 9], [0, 1, 2], [9, 2, 0]])


def as_items(batch):
    """The tuples of a batch by the rows of their items."""
    return [[batch.items[place] for place in index.tolist()] for index in batch.indices_tuple]


@pytest.mark.parametrize("numbers", [[0, 1, 2, 3], [3, 0], [2], [1, 3]])
def test_a_batch_of_pairs_has_each_item_once(numbers):
    batch = PAIRS.batch(numbers)
    assert batch.tuples == numbers
    assert batch.items == sorted({item for number in numbers for item in PAIRS.rows[number].tolist()})
    same = [PAIRS.rows[number].tolist() for number in numbers if PAIRS.same[number]]
    other = [PAIRS.rows[number].tolist() for number in numbers if not PAIRS.same[number]]
    wanted = [[a for a, _ in same], [b for _, b in same], [a for a, _ in other], [b for _, b in other]]
    assert as_items(batch) == wanted
    assert all(index.dtype == torch.int64 for index in batch.indices_tuple)


def test_a_batch_of_triplets_numbers_its_items():
    batch = TRIPLETS.batch(torch.tensor([2, 0]))
    assert batch.items == [0, 2, 5, 9]
    assert as_items(batch) == [[9, 5], [2, 2], [0, 9]]
    assert TRIPLETS.kind == "triplets"
    assert len(TRIPLETS) == 3


def test_tuples_among_some_items_are_renumbered():
    found = PAIRS.among([9, 5, 2], 10)
    assert found.rows.tolist() == [[1, 2], [2, 0], [0, 1]]
    assert found.same.tolist() == [True, False, True]
    assert TRIPLETS.among([0, 1, 2, 9], 10).rows.tolist() == [[0, 1, 2], [3, 2, 0]]
    assert len(PAIRS.among([0, 5], 10)) == 0
    assert PAIRS.some(PAIRS.same).rows.tolist() == [[5, 2], [9, 5]]


def test_a_positive_that_is_also_a_negative():
    assert TRIPLETS.conflict() is None
    assert PAIRS.conflict() is None
    assert ListedTuples([[5, 2, 9], [9, 5, 2], [5, 7, 2]]).conflict() == (5, 2)
    assert ListedTuples(torch.empty(0, 3, dtype=torch.int64)).conflict() is None


def test_a_sample_keeps_the_shares_of_both_kinds():
    rows = torch.arange(2000).view(-1, 2)
    pairs = ListedTuples(rows, torch.arange(1000) % 10 == 0)
    sample = sample_tuples(pairs, 100, seed=0)
    assert len(sample) == 100
    assert int(sample.same.sum()) == 10
    assert sample.rows[:, 0].tolist() == sorted(sample.rows[:, 0].tolist())
    assert torch.equal(sample.rows, sample_tuples(pairs, 100, seed=0).rows)
    assert not torch.equal(sample.rows, sample_tuples(pairs, 100, seed=1).rows)
    assert sample_tuples(pairs, 1, seed=0).same.tolist().count(True) == 1
    assert sample_tuples(pairs, 1000, seed=0) is pairs
    assert len(sample_tuples(TRIPLETS, 2, seed=0)) == 2


@pytest.mark.parametrize(
    ("rows", "same", "error", "text"),
    [
        ([[0.0, 1.0]], [True], TypeError, "rows of listed tuples must be integers"),
        ([[0, 1, 2]], [True], ValueError, r"rows of listed pairs, \[T, 2\]: got the shape \[1, 3\]"),
        ([[0, 1]], None, ValueError, r"rows of listed triplets, \[T, 3\]: got the shape \[1, 2\]"),
        ([[0, 1]], [1], TypeError, "same must be booleans"),
        ([[0, 1]], [True, False], ValueError, r"same must have the shape \[1\], one for each pair; got \[2\]"),
        ([[0, 1], [3, 3]], [True, False], ValueError, r"pair 1 has one item twice: \[3, 3\]"),
        ([[0, 1, 2], [3, 4, 3]], None, ValueError, r"triplet 1 has one item twice: \[3, 4, 3\]"),
    ],
)
def test_lists_that_do_not_serve(rows, same, error, text):
    with pytest.raises(error, match=text):
        ListedTuples(rows, same)
