"""The view of a run: its network, its data, and embeddings that follow the weights."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from pml_ext.errors import DataError, TrainingError
from pml_ext_train.data import LabeledImages
from pml_ext_train.networks.modes import is_batch_norm
from pml_ext_train.recipe import load_recipe
from pml_ext_train.training import Checkpointer, evaluate_split
from pml_ext_train.training.batch_norm import JoinedBatchNorm
from pml_ext_train.training.loop import train_epoch
from pml_ext_train.training.run_data import SAMPLE, listing_of, load_run_data, some_of_each_class

from ....overrides import typed
from .whole_runs import built


def test_embeddings_that_are_not_finite_are_not_ranked(tmp_path):
    run = built(tmp_path)
    torch.nn.init.constant_(run.embedder.bias, math.nan)
    with pytest.raises(TrainingError, match="the network gives nan for test images"):
        evaluate_split(run, "test")


def test_processes_join_batch_norms_of_heads(tmp_path, monkeypatch):
    monkeypatch.setattr("pml_ext_train.training.view.num_processes", lambda: 2)
    run = built(tmp_path / "run", "model.hidden_sizes=[8]", "model.norm=batch")
    norms = [part for part in run.network.modules() if is_batch_norm(part)]
    assert any(part in norms for part in run.embedder.modules())
    assert all(isinstance(part, JoinedBatchNorm) for part in norms)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [([], True), (["engine.channels_last=true"], True), (["engine.channels_last=false"], False)],
)
def test_trunks_on_cpus_use_channels_last(tmp_path, settings, expected):
    run = built(tmp_path, *settings)
    weights = [parameter for parameter in run.trunk.parameters() if parameter.ndim == 4 and parameter.shape[1] > 1]
    assert weights
    assert all(weight.is_contiguous(memory_format=torch.channels_last) == expected for weight in weights)


class Reading(nn.Module):
    """A part of a loss that computes the embeddings after each step."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def after_step(self, run, indices, embeddings):
        self.seen.append(run.embeddings("train").clone())


@pytest.mark.slow
def test_embeddings_follow_the_weights_of_a_step(tmp_path):
    run = built(tmp_path)
    reading = Reading()
    run.stages[0].loss.reading = reading
    run.epoch = 1
    train_epoch(run, None, Checkpointer(run))
    assert len(reading.seen) == run.stages[0].iterations > 1
    for before, after in itertools.pairwise(reading.seen):
        assert not torch.equal(before, after)


def data_of(*overrides):
    return load_run_data(load_recipe("cbml/digits", typed(overrides)), 0, None, lambda text: None)


def test_a_listing_depends_on_labels_and_relative_paths(tmp_path):
    def listing(place, names, labels=(0, 0, 1), boxes=None):
        return listing_of(LabeledImages([place / name for name in names], labels, ["a", "b"], boxes=boxes))

    names = ["a/1.png", "a/2.png", "b/1.png"]
    one = listing(tmp_path, names)
    assert one == listing(tmp_path / "moved", names)
    others = [
        listing(tmp_path, ["a/1.png", "a/3.png", "b/1.png"]),
        listing(tmp_path, names, (0, 1, 1)),
        listing(tmp_path, names, boxes=np.ones((3, 4))),
    ]
    assert [(each["images"], each["classes"]) for each in (one, *others)] == [(3, 2)] * 4
    assert len({each["digest"] for each in (one, *others)}) == 4
    arrays = [listing_of(LabeledImages(torch.zeros(len(labels), 1, 2, 2), labels, ["a"])) for labels in ([0], [0, 0])]
    assert arrays[0]["digest"] != arrays[1]["digest"]


def test_tested_training_images_may_be_a_sample():
    every = data_of("evaluation.training_images=100000")
    sample = data_of("evaluation.training_images=50")
    none = data_of("evaluation.training_images=0")
    assert [each.tested_training for each in (every, sample, none)] == ["train", SAMPLE, None]
    assert len(every.splits["train"]) == len(sample.training_images) > len(sample.splits[SAMPLE]) == 50
    assert list(none.splits) == ["test", "train"]


def test_changed_data_are_refused_by_difference():
    data = data_of()
    data.check_listing(Path("run"), data.listing)
    fewer = {**data.listing, "test": {"images": 7, "classes": 1, "digest": "0"}}
    with pytest.raises(
        DataError, match="run: the images have changed since the run began: test had 7 images of 1 class, now "
    ):
        data.check_listing(Path("run"), fewer)
    others = {name: {**listing, "digest": "0"} for name, listing in data.listing.items()}
    with pytest.raises(
        DataError, match="train has other files or labels; test has other files or labels. Restore them"
    ):
        data.check_listing(Path("run"), others)
    with pytest.raises(ValueError, match="no split 'query'; splits: test, train"):
        data.images("query")


def labels_of(*counts):
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)) + 7, counts))


@pytest.mark.parametrize("most", [20, 120, 1000, 4999])
def test_small_classes_are_whole_but_for_one(most):
    labels = labels_of(*[5] * 1000)
    chosen = some_of_each_class(labels, most)
    assert len(chosen) == len(set(chosen.tolist())) == most
    assert (np.diff(chosen) > 0).all()
    sizes = np.unique(labels[chosen], return_counts=True)[1]
    assert (sizes != 5).sum() <= 1


def test_large_classes_give_as_many_as_are_needed():
    labels = labels_of(*[400] * 30, 3)
    sizes = dict(zip(*np.unique(labels[some_of_each_class(labels, 200)], return_counts=True), strict=True))
    assert set(sizes.values()) <= {20, 3, 17}
    labels = labels_of(*[90] * 10)  # the limit per class is the smallest that suffices
    assert np.unique(labels[some_of_each_class(labels, 300)], return_counts=True)[1].tolist() == [30] * 10
