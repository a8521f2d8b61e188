"""Pairs to verify, against lists of all."""

import math

import numpy as np
import pytest
import torch

from pml_ext.evaluation import (
    listed_pairs,
    pairs_of_classes,
)


def as_set(pairs):
    return {(a, b, s) for a, b, s in zip(*(x.tolist() for x in vars(pairs).values()), strict=True)}


LABELS = torch.tensor([3, 1, 3, 2, 1, 3, 7])


REFERENCES = torch.tensor([1, 3, 3, 9, 2])


@pytest.mark.parametrize("reference_labels", [None, REFERENCES])
def test_pairs_of_classes_equal_a_loop(reference_labels):
    expected = set()
    for i, label in enumerate(LABELS.tolist()):
        for j, other in enumerate((LABELS if reference_labels is None else reference_labels).tolist()):
            if reference_labels is not None or i < j:
                expected.add((i, j, label == other))
    everything = pairs_of_classes(LABELS, reference_labels)
    assert as_set(everything) == expected
    assert len(everything) == len(expected)
    assert as_set(pairs_of_classes(LABELS, reference_labels, most=100)) == expected

    some = pairs_of_classes(LABELS, reference_labels, most=3)
    assert as_set(some) < expected
    assert len(as_set(some)) == 6
    assert int(some.same.sum()) == 3
    assert as_set(some) == as_set(pairs_of_classes(LABELS, reference_labels, most=3))
    assert as_set(some) != as_set(pairs_of_classes(LABELS, reference_labels, most=3, seed=1))


def test_sampled_pairs_are_drawn_equally_often():
    """Each of the 15 + 21 pairs is drawn about as often as any other."""
    counts = dict.fromkeys(as_set(pairs_of_classes(LABELS, REFERENCES)), 0)
    for seed in range(600):
        for pair in as_set(pairs_of_classes(LABELS, REFERENCES, most=3, seed=seed)):
            counts[pair] += 1
    for kind in (True, False):
        drawn = np.array([count for pair, count in counts.items() if pair[2] is kind])
        mean = drawn.mean()
        assert drawn.sum() == 1800
        assert abs(drawn - mean).max() < 5 * math.sqrt(mean)


def test_class_of_nearly_all_items_is_sampled():
    labels = torch.zeros(60_000, dtype=torch.long)
    labels[7] = 1
    pairs = pairs_of_classes(labels, most=100_000)
    assert int(pairs.same.sum()) == 100_000
    assert len(as_set(pairs)) == len(pairs) == 100_000 + 59_999


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: listed_pairs([0, 2], [1, 2], [1, 0], 3), "pair 1 is row 2 with itself"),
        (lambda: listed_pairs([0, 5], [1, 2], [1, 0], 3), "pair 1 names row 5 as its first item; rows are from 0 to 2"),
        (lambda: listed_pairs([0, 1], [1, 2], [1, 0], 3, 2), "pair 1 names row 2 as its second item; .* from 0 to 1"),
        (lambda: listed_pairs([0], [1, 2], [1, 0], 3), "one value for each pair; got shapes"),
        (lambda: listed_pairs([0, 1], [1, 2], [1, 3], 3), "same must be 1 or 0 .* got 3"),
        (lambda: listed_pairs([0, 1], [1, 2], [1, math.nan], 3), "same must be 1 or 0 .* got nan"),
        (lambda: listed_pairs([0.5, 1], [1, 2], [1, 0], 3), "first must be integers of one dimension"),
        (lambda: pairs_of_classes(torch.zeros(3, 2, dtype=torch.long)), "labels must be integers of one dimension"),
        (lambda: pairs_of_classes([1, 2], most=0), "most must be a whole number of at least 1"),
        (lambda: pairs_of_classes(torch.zeros(20_000).long()), "199,990,000 pairs; type most="),
        (lambda: listed_pairs([True, False], [1, 2], [1, 0], 4), "first must be integers of one dimension"),
        (lambda: pairs_of_classes(["a", "b"]), "labels must be numbers, a tensor, an array or a list"),
    ],
)
def test_invalid_pairs_raise_with_a_reason(call, text):
    with pytest.raises((TypeError, ValueError), match=text) as error:
        call()
    assert "\n" not in str(error.value)
