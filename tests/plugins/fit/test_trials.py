"""Trials on held-out items."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pml_ext.errors import NothingToLearnError
from pml_ext_fit import trials
from pml_ext_fit.candidates import last_blocks, small_network
from pml_ext_fit.closed_forms import AS_THEY_ARE, CLOSED_FORMS, WITHIN_CLASSES
from pml_ext_fit.folds import folds_of
from pml_ext_fit.trials import Trials
from pml_ext_train.data import DataSplits, LabeledImages
from pml_ext_train.recipe import build_dataset

from ...overrides import typed
from .helpers import recipe_of, workplace


@pytest.mark.usefixtures("weights")
def test_validation_images_do_not_validate_trials(tmp_path, images):
    candidate = last_blocks(replace(images, data={"evaluation.select_on": "split"}))
    recipe = workplace(tmp_path).recipe_of(candidate, {})
    assert recipe.evaluation.select_on != "split"


def trials_of(images, folder, overrides=(), say=print):
    """Return trials of last blocks in folds of 12 classes, and the candidate."""
    candidate = last_blocks(images)
    splits = build_dataset(recipe_of(candidate).data, None)
    folds = folds_of(splits.train.labels, shared=False, seed=0)
    features = torch.randn(len(splits.train), 8)
    return Trials(workplace(folder, typed(overrides), say), splits, folds, features), candidate


@pytest.mark.parametrize(
    ("overrides", "m", "batch_size"),
    [
        ([], 6, 54),  # 9 of 12 classes
        (["sampler.iterations=3"], 6, 54),
        (["sampler.batch_size=30"], 5, 30),
        (["sampler.batch_size=60"], 5, 45),  # the final run has the classes for it
        (["sampler.m=4", "sampler.batch_size=48"], 4, 36),
    ],
)
@pytest.mark.usefixtures("weights")
def test_trials_have_the_batches_of_the_options(images, tmp_path, overrides, m, batch_size):
    tried, candidate = trials_of(images, tmp_path, overrides)
    run = tried.run_of(candidate, tried.folds.parts[0])
    assert (run.recipe.sampler.settings["m"], run.recipe.sampler.batch_size) == (m, batch_size)
    assert run.data.noun == "images"
    assert {name: len(images) for name, images in run.splits.items()} == {"train": 54, "test": 18}


@pytest.mark.usefixtures("weights")
def test_a_small_network_has_its_own_size(images, tmp_path):
    tried, _ = trials_of(images, tmp_path)  # of splits that were built for the pretrained trunk
    run = tried.run_of(small_network(images), tried.folds.parts[0])
    assert run.data.preprocessing.image_size == images.side == 48


@pytest.mark.parametrize("override", ["evaluation.validation=0.5", "evaluation={validation=0.5}", "track=mlflow"])
@pytest.mark.usefixtures("weights")
def test_trials_train_on_everything_not_held_out(images, tmp_path, override):
    tried, candidate = trials_of(images, tmp_path, [override])
    recipe = tried.run_of(candidate, tried.folds.parts[0]).recipe
    assert (recipe.evaluation.validation, recipe.evaluation.baselines, recipe.track) == (0, False, [])


@pytest.mark.parametrize(("size", "left_out"), [(10**6, False), (10**9, True)])
@pytest.mark.usefixtures("weights")
def test_activations_that_take_too_much_are_left_out(images, tmp_path, size, left_out):
    lines = []
    tried, candidate = trials_of(images, tmp_path, say=lines.append)
    cut = SimpleNamespace(table=SimpleNamespace(gigabytes=8.0), bytes_per_image=size)
    recipe = SimpleNamespace(model=SimpleNamespace(views=1))
    run = SimpleNamespace(inputs=SimpleNamespace(cut_of=lambda stage: cut), stages=[None], recipe=recipe)
    assert tried._takes_too_much(candidate, run) == left_out
    text = "  last blocks: left out, since their activations would take 72 GB, and 8 GB is the most; "
    assert [line.startswith(text) for line in lines] == [True] * left_out


@pytest.mark.usefixtures("weights")
def test_training_without_anything_to_learn_is_left_out(images, tmp_path, monkeypatch):
    lines = []
    tried, candidate = trials_of(images, tmp_path, say=lines.append)

    def nothing(run, finish):
        raise NothingToLearnError("the loss was 0 in all 20 iterations", folder=tmp_path)

    monkeypatch.setattr(trials, "train_run", nothing)
    assert tried.scores_of_trained(candidate, tried.folds.parts[0]) is None
    assert lines[0].startswith("  last blocks: a trial takes about ")
    assert lines[1:] == ["  last blocks: left out, since no pair of the images adds to the loss"]


def trials_of_vectors(folder, rows, labels):
    images = LabeledImages(torch.from_numpy(rows), labels, [str(label) for label in np.unique(labels)])
    splits = DataSplits(images, images)
    folds = folds_of(labels, shared=False, seed=0)
    return Trials(workplace(folder), splits, folds, images.vectors)


def test_whitening_is_fitted_on_the_other_classes(tmp_path):
    """Each class has a direction of its own, and all of them a direction with a greater variance within classes."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(24), 6)
    rows = generator.normal(size=(24, 40))[labels] + 0.3 * generator.normal(size=(144, 40))
    rows[:, 0] += 10 * generator.normal(size=144)
    tried = trials_of_vectors(tmp_path, rows.astype(np.float32), labels)
    as_they_are, whitened, within = [tried.scores_of_closed_form(form) for form in CLOSED_FORMS]
    assert [len(scores.both) for scores in within] == [6, 6, 6, 6]
    for scores, other in zip(within, as_they_are, strict=True):
        assert scores.map_at_r.mean() > other.map_at_r.mean() + 0.3
    assert len(whitened) == 4


def test_features_that_do_not_vary_cannot_be_whitened(tmp_path):
    labels = np.repeat(np.arange(12), 3)
    rows = np.eye(12, dtype=np.float32)[labels]
    tried = trials_of_vectors(tmp_path, rows, labels)
    assert tried.scores_of_closed_form(WITHIN_CLASSES) is None
    assert tried.scores_of_closed_form(AS_THEY_ARE) is not None
