"""WholeClassSampler."""

from collections import Counter

import numpy as np

from pml_ext import WholeClassSampler

from ...test_samplers import batches

LABELS = [0] * 3 + [1] * 5 + [2] * 2 + [3] * 7 + [4] * 4 + [9] * 6


def test_batches_have_whole_classes_but_the_last():
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
