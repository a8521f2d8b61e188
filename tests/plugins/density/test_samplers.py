"""WholeClassSampler."""

from collections import Counter

import numpy as np
import pytest
import torch

from pml_ext import WholeClassSampler

LABELS = [0] * 3 + [1] * 5 + [2] * 2 + [3] * 7 + [4] * 4 + [9] * 6


def batches(sampler):
    drawn = list(sampler)
    assert len(drawn) == len(sampler)
    return [drawn[i : i + sampler.batch_size] for i in range(0, len(drawn), sampler.batch_size)]


def test_a_batch_is_whole_classes_and_a_part_of_the_last():
    labels = np.array(LABELS)
    for seed in range(20):
        for batch in batches(WholeClassSampler(LABELS, 12, seed)):
            assert len(set(batch)) == 12
            classes = labels[batch]
            order = list(dict.fromkeys(classes))
            assert all(np.all(np.diff(np.flatnonzero(classes == c)) == 1) for c in order)  # one after the other
            for label in order[:-1]:
                assert (classes == label).sum() == (labels == label).sum()


def test_every_class_is_drawn_before_one_is_again():
    labels = [c for c in range(30) for _ in range(4)]
    sampler = WholeClassSampler(labels, 20, seed=1)
    counts = Counter(labels[i] for _ in range(3) for i in sampler)
    assert set(counts) == set(range(30))
    assert max(counts.values()) == min(counts.values()) == 12


def test_seeds_and_state():
    one, same, other = (WholeClassSampler(LABELS, 12, seed) for seed in (0, 0, 1))
    first = list(one)
    assert list(same) == first != list(other)
    state = one.state_dict()
    following = list(one)
    assert following != first
    fresh = WholeClassSampler(torch.tensor(LABELS), 12, seed=5)
    fresh.load_state_dict(state)
    assert list(fresh) == following


def test_what_does_not_fit():
    with pytest.raises(ValueError, match="class 3 has 7 images and would fill a batch of 7 alone"):
        WholeClassSampler(LABELS, 7)
    with pytest.raises(ValueError, match="between 1 and the 27 images"):
        WholeClassSampler(LABELS, 40)
