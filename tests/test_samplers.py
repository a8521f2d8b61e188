"""Samplers of label sets, of trees, and of listed pairs and triplets."""

from collections import Counter

import pytest
import torch

from pml_ext import Hierarchy, MPerLabelSampler, SharedLabel, TreeSampler
from pml_ext.pairwise import ListedTuples
from pml_ext.samplers import TupleSampler

SETS = [[0], [0, 1], [1], [1, 2], [2], [0, 2], [3], []]
LABELS = torch.arange(80) % 8


def batches(sampler):
    drawn = list(sampler)
    assert len(drawn) == len(sampler)
    return [drawn[start : start + sampler.batch_size] for start in range(0, len(drawn), sampler.batch_size)]


def multi_hot():
    return torch.stack([torch.tensor([label in SETS[each] for label in range(4)]) for each in LABELS])


@pytest.mark.parametrize("given", ["multi-hot", "lists", "classes"])
def test_m_images_of_each_label(given):
    labels, relation = {
        "multi-hot": (multi_hot().float(), None),
        "lists": ([SETS[each] for each in LABELS], None),
        "classes": (LABELS.numpy(), SharedLabel(sets=SETS)),
    }[given]
    sampler = MPerLabelSampler(labels, m=3, batch_size=12, length_before_new_iter=600, relation=relation)
    drawn = Counter()
    for batch in batches(sampler):
        assert len(set(batch)) == 12
        of = Counter(label for image in batch for label in SETS[LABELS[image]])
        assert all(of[label] >= 3 for label in range(4))
        drawn.update(batch)
    assert all(SETS[LABELS[image]] for image in drawn)  # none without labels
    assert len(drawn) == 70


def test_many_single_labels_need_no_matrix(monkeypatch):
    monkeypatch.setattr(torch.nn.functional, "one_hot", None)  # 3,200 MB of 20,000 classes
    for batch in batches(MPerLabelSampler(torch.arange(20_000).repeat(2) + 7, m=2, batch_size=100)):
        assert set(Counter(label % 20_000 for label in batch).values()) == {2}


def test_batches_have_classes_of_some_parents():
    tree = Hierarchy([f"{'ab'[k % 2] if k < 6 else 'c'}/{k}" for k in range(8)])  # c has two classes
    sampler = TreeSampler(LABELS.tolist(), tree, m=2, batch_size=12, parents=2, length_before_new_iter=240)
    parents = Counter()
    for batch in batches(sampler):
        assert len(set(batch)) == 12
        classes = Counter(LABELS[batch].tolist())
        assert set(classes.values()) == {2}
        of = Counter(tree.paths[each][0] for each in classes)
        assert len(of) in (2, 3)
        assert max(of.values()) == 3
        parents.update(of.keys())
    assert min(parents.values()) >= 12


PAIRS = ListedTuples(torch.arange(40).view(20, 2), torch.arange(20) % 2 == 0)


def test_each_tuple_is_drawn_at_most_once():
    sampler = TupleSampler(PAIRS, batch_size=6, seed=3)
    assert len(sampler) == 3
    passes = [list(sampler), list(sampler)]
    for batches in passes:
        drawn = [number for batch in batches for number in batch.tuples]
        assert len(set(drawn)) == len(drawn) == 18
        for batch in batches:
            assert batch.items == sorted(PAIRS.rows[batch.tuples].flatten().tolist())
            assert sum(len(index) for index in batch.indices_tuple[::2]) == 6
    assert passes[0] != passes[1]


def test_a_resumed_sampler_of_tuples_goes_on():
    sampler = TupleSampler(PAIRS, batch_size=5)
    list(sampler)
    state = sampler.state_dict()
    expected = [batch.tuples for batch in sampler]
    other = TupleSampler(PAIRS, batch_size=5, seed=1)
    other.load_state_dict(state)
    assert [batch.tuples for batch in other] == expected


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: TupleSampler(PAIRS, 21), "batch_size of TupleSampler must be at most the 20 listed pairs; got 21"),
        (lambda: TupleSampler([[0, 1]], 1), "tuples of TupleSampler must be ListedTuples"),
        (lambda: MPerLabelSampler(multi_hot(), m=2, batch_size=71), "at most the 70 images with labels; got 71"),
    ],
)
def test_unusable_tuples_and_batch_sizes_are_refused(make, text):
    with pytest.raises((TypeError, ValueError), match=text):
        make()
