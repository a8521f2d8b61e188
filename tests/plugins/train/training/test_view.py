"""The view of a run: its data and network, embeddings that follow the weights, and its tests."""

import itertools
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext.errors import DataError, TrainingError
from pml_ext.evaluation import pairs_of_classes, verify
from pml_ext.pml import LpDistance
from pml_ext_train.data import LabeledImages
from pml_ext_train.networks.modes import is_batch_norm
from pml_ext_train.recipe import load_recipe
from pml_ext_train.results.finish import finish
from pml_ext_train.training import Checkpointer, Run, evaluate_split, nearest, train_run
from pml_ext_train.training.batch_norm import JoinedBatchNorm
from pml_ext_train.training.checks import check_validation
from pml_ext_train.training.loop import train_epoch
from pml_ext_train.training.protocols import first_halves
from pml_ext_train.training.run_data import SAMPLE, listing_of, load_run_data, some_of_each_class
from pml_ext_train.training.validation import validate

from ....overrides import typed
from .whole_runs import built


def test_embeddings_that_are_not_finite_are_not_ranked(tmp_path):
    run = built(tmp_path)
    torch.nn.init.constant_(run.embedder.bias, float("nan"))
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
    weights = [
        parameter
        for parameter in built(tmp_path, *settings).trunk.parameters()
        if parameter.ndim == 4 and parameter.shape[1] > 1
    ]
    assert weights
    assert all(weight.is_contiguous(memory_format=torch.channels_last) == expected for weight in weights)


class Reading(torch.nn.Module):
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


# Data


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
    with pytest.raises(
        DataError, match="run: the images have changed since the run began: test had 7 images of 1 class, now "
    ):
        data.check_listing(Path("run"), {**data.listing, "test": {"images": 7, "classes": 1, "digest": "0"}})
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
    assert (np.unique(labels[chosen], return_counts=True)[1] != 5).sum() <= 1


def test_large_classes_give_as_many_as_are_needed():
    labels = labels_of(*[400] * 30, 3)
    assert {*np.unique(labels[some_of_each_class(labels, 200)], return_counts=True)[1]} <= {20, 3, 17}
    labels = labels_of(*[90] * 10)  # the limit per class is the smallest that suffices
    assert np.unique(labels[some_of_each_class(labels, 300)], return_counts=True)[1].tolist() == [30] * 10


# Tests of a run


def test_a_run_leaves_out_a_querys_group(tmp_path):
    """Every image has a copy in its sequence: with the column, copies are not found."""
    generator = np.random.default_rng(0)
    for number in range(24):
        pixels = generator.integers(0, 255, (18, 18, 3)).astype(np.uint8)
        for copy in "ab":
            Image.fromarray(pixels).save(tmp_path / f"{number}{copy}.png")
    found = {}
    for column in ("none", "sequence"):
        lines = [f"label,path,split,{column}"]
        for number in range(24):
            part = "train" if number < 8 else "validation"
            lines += [f"{number % 4 + 4 * (number < 8)},{number}{copy}.png,{part},{number}" for copy in "ab"]
        (tmp_path / f"{column}.csv").write_text("\n".join(lines))
        settings = (
            "data.image_size=16",
            "model.trunk={name='convnet', blocks=2, width=4}",
            "model.embedding_size=8",
            "sampler.batch_size=8",
        )
        run = Run(
            load_recipe("fit/photographs", typed([f"data.name=table:{tmp_path / column}.csv", *settings])),
            column,
            tmp_path / column,
        )
        found[column] = nearest(run, run.queries)
    assert found["none"].accuracies["recall_at_1"] == 1
    assert found["sequence"].accuracies["recall_at_1"] < 1
    for query, others in enumerate(found["sequence"].indices.tolist()):
        assert {query, query ^ 1}.isdisjoint(others)  # a copy is the row before or after
    assert int(found["none"].relevant[0]) == int(found["sequence"].relevant[0]) + 1


def test_a_run_measures_verification_pairs(tmp_path):
    run = built(tmp_path, "evaluation.verification=200")
    found = evaluate_split(run, run.queries)
    expected = verify(
        torch.nn.functional.normalize(run.embeddings(run.queries)),
        pairs_of_classes(run.true_labels(run.queries), most=200),
        distance=LpDistance(normalize_embeddings=False),
    )
    assert {name: found[f"verification_{name}"] for name in expected} == expected
    assert {"verification_eer", "recall_at_1"} <= set(run.recipe.evaluation.metric_names())
    assert "verification_eer" not in built(tmp_path / "plain").recipe.evaluation.metric_names()


def test_verification_that_does_not_fit(tmp_path):
    run = built(tmp_path, "evaluation.verification=2")
    with pytest.raises(DataError, match="the images of test cannot be tested: ten folds need ten pairs of each kind"):
        evaluate_split(run, run.queries)


SETTINGS = [
    "schedule.epochs=3",
    "evaluation.baselines=false",
    "evaluation.training_images=0",
    "evaluation.validation=0.3",
    "sampler.batch_size=56",
]


@pytest.mark.usefixtures("without_report")
def test_validates_every_second_epoch_and_the_last(tmp_path):
    seen = []
    train_run(
        built(tmp_path / "run", *SETTINGS, "evaluation.select='map_at_r'", "evaluation.every=2", recipe="cbml/digits"),
        finish,
        after_validation=lambda epoch, best: seen.append((epoch, best)),
    )
    assert [epoch for epoch, _ in seen] == [2, 3]
    assert all(0 <= best <= 1 for _, best in seen)
    assert seen[1][1] >= seen[0][1]  # the best value so far


@pytest.mark.usefixtures("without_report")
def test_validation_classes_of_one_image_choose_nothing(tmp_path):
    run = built(tmp_path / "run", *SETTINGS, "evaluation.select=recall_at_1", recipe="cbml/digits")
    check_validation(run)
    images = run.splits["validation"]
    _, first = np.unique(images.labels, return_index=True)
    run.splits["validation"] = images.subset(first)
    with pytest.raises(DataError, match="no class has two of the 3 validation images, .* leave out select"):
        train_run(run, finish)


@pytest.mark.usefixtures("without_report")
def test_an_epoch_whose_metric_is_nan_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("pml_ext_train.training.validation.evaluate_split", lambda *_: {"map_at_r": float("nan")})
    run = built(tmp_path / "run", *SETTINGS, "evaluation.select=map_at_r", recipe="cbml/digits")
    run.epoch = 1
    validate(run, Mock(), checkpointer=None)
    assert "evaluation.select: map_at_r of validation is NaN; an epoch with NaN is not chosen" in run.history.warnings
    assert run.history.best["epoch"] is None


@pytest.mark.parametrize("seed", [0, 7])
def test_half_of_every_class_is_drawn(seed):
    labels = np.array([2] * 5 + [0] * 4 + [9])
    chosen = first_halves(labels, seed)
    for label, half in ((2, 3), (0, 2), (9, 1)):  # rounded up
        assert chosen[labels == label].sum() == half
    assert (chosen == first_halves(labels, seed)).all()
    assert any((chosen != first_halves(labels, other)).any() for other in (1, 2, 3))
