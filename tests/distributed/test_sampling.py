"""Batches of several processes against one process."""

import random

import numpy as np
import pytest
import torch
from pytorch_metric_learning.samplers import HierarchicalSampler, MPerClassSampler
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

from pml_ext import DistributedBatchSampler, MPerLabelSampler, WholeClassSampler
from pml_ext.pairwise import ListedTuples
from pml_ext.samplers import TupleSampler

TUPLES = ListedTuples([[0, 1, 2], [0, 3, 2]])

LABELS = np.repeat(np.arange(12), 8)
SAMPLERS = {
    "PML's": lambda: (MPerClassSampler(LABELS, 4, 24, 96), 24),
    "hierarchical": lambda: (HierarchicalSampler(np.stack([LABELS, LABELS // 4], 1), 24, 4), None),
    "m per label": lambda: (MPerLabelSampler(LABELS.tolist(), 24, m=3, seed=5), 24),
    "whole classes": lambda: (WholeClassSampler(LABELS, 24, 96), 24),
    "random": lambda: (RandomSampler(range(96)), 25),
    "batches": lambda: (BatchSampler(RandomSampler(range(96)), 20, drop_last=False), None),
}


def passes(name, count=3, **place):
    sampler, batch_size = SAMPLERS[name]()
    batches = DistributedBatchSampler(sampler, batch_size, seed=7, **place)
    return [list(batches) for _ in range(count)], batches


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("name", SAMPLERS)
def test_processes_divide_the_batches_of_one(name, processes):
    whole, batches = passes(name)
    assert all(len(each) == len(batches) for each in whole)
    parts = [passes(name, num_processes=processes, rank=rank)[0] for rank in range(processes)]
    for number, of_pass in enumerate(whole):
        for place, batch in enumerate(of_pass):
            of_ranks = [part[number][place] for part in parts]
            assert [index for part in of_ranks for index in part] == batch
            sizes = [len(part) for part in of_ranks]
            assert max(sizes) - min(sizes) <= 1
    assert whole[0] != whole[1]


def test_batches_are_those_of_the_sampler():
    for batch in DistributedBatchSampler(MPerClassSampler(LABELS, 4, 24, 96), 24):
        assert np.unique(LABELS[batch], return_counts=True)[1].tolist() == [4] * 6
    assert list(DistributedBatchSampler(SequentialSampler(range(7)), 3)) == [[0, 1, 2], [3, 4, 5]]
    loader = DataLoader(TensorDataset(torch.arange(7)), batch_sampler=DistributedBatchSampler(range(7), 3))
    assert [batch[0].tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5]]


def test_pass_leaves_the_process_generators_unchanged():
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    first = passes("random")[0]
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
    torch.manual_seed(5)
    np.random.seed(5)
    assert passes("random")[0] == first


@pytest.mark.parametrize("name", ["m per label", "random"])
def test_a_pass_is_resumed_by_number_or_state(name):
    whole, batches = passes(name, 2)
    state = batches.state_dict()
    third = list(batches)
    other = passes(name, 0)[1]
    other.load_state_dict(state)
    assert list(other) == third
    if name == "random":
        batches.set_epoch(1)
        assert list(batches) == whole[1]


def test_the_group_is_that_of_the_processes(collectives):
    """Rank 0 draws, though the sampler of the other process has another seed."""
    whole = collectives[0]["sampling"]["one"]
    first, second = (found["sampling"]["parts"] for found in collectives)
    assert [one + other for one, other in zip(first, second, strict=True)] == whole


@pytest.mark.parametrize("batch_size", [None, 2])
def test_an_empty_pass_has_no_batches(batch_size):
    assert list(DistributedBatchSampler([], batch_size)) == []


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: DistributedBatchSampler(5, 2), "sampler must be an object such as MPerClassSampler"),
        (lambda: DistributedBatchSampler(TupleSampler(TUPLES, 1)), "TupleSampler gives whole pairs or triplets"),
        (lambda: DistributedBatchSampler(range(5), 0), "batch_size of DistributedBatchSampler must be a whole number"),
        (lambda: DistributedBatchSampler(range(5), 2, rank=0), "num_processes and rank go together"),
        (lambda: DistributedBatchSampler(range(5), 2, 0, 2, 2), "rank must be from 0 to 1; got 2"),
        (lambda: list(DistributedBatchSampler(range(5))), "range gives single items; batch_size is missing"),
        (lambda: list(DistributedBatchSampler([[0, 1]], 2)), "list gives batches; leave out batch_size"),
        (lambda: list(DistributedBatchSampler(range(5), 2, 0, 3, 0)), "a batch of 2 items has none for some of 3"),
    ],
)
def test_unusable_samplers_and_ranks_are_refused(make, text):
    with pytest.raises((TypeError, ValueError), match=text):
        make()
