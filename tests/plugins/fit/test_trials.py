"""Trials on held-out items, and how long everything takes."""

import shutil
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from pml_ext.errors import NothingToLearnError
from pml_ext_fit import duration, timing, trials
from pml_ext_fit.candidates import features_of_images, last_blocks, small_network
from pml_ext_fit.closed_forms import AS_THEY_ARE, CLOSED_FORMS, WITHIN_CLASSES
from pml_ext_fit.folds import folds_of
from pml_ext_fit.images import describe_images
from pml_ext_fit.timing import PerImage
from pml_ext_fit.trials import Trials
from pml_ext_fit.trunk import LITE0
from pml_ext_train.data import DataSplits, LabeledImages
from pml_ext_train.recipe import build_dataset

from ...overrides import typed
from ..train.training.made_up_photos import write_photos
from .helpers import recipe_of, training_files, workplace


@pytest.mark.usefixtures("weights")
def test_validation_images_do_not_validate_trials(tmp_path, images):
    candidate = last_blocks(replace(images, data={"evaluation.select_on": "split"}))
    assert workplace(tmp_path).recipe_of(candidate, {}).evaluation.select_on != "split"


def trials_of(images, folder, overrides=(), say=print):
    """Return trials of last blocks in folds of 12 classes, and the candidate."""
    candidate = last_blocks(images)
    splits = build_dataset(recipe_of(candidate).data, None)
    folds = folds_of(splits.train.labels, shared=False, seed=0)
    return Trials(workplace(folder, typed(overrides), say), splits, folds, torch.randn(72, 8)), candidate


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
    assert tried.run_of(small_network(images), tried.folds.parts[0]).data.preprocessing.image_size == images.side == 48


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
    nothing = NothingToLearnError("the loss was 0 in all 20 iterations", folder=tmp_path)
    monkeypatch.setattr(trials, "train_run", Mock(side_effect=nothing))
    assert tried.scores_of_trained(candidate, tried.folds.parts[0]) is None
    assert lines[0].startswith("  last blocks: a trial takes about ")
    assert lines[1:] == ["  last blocks: left out, since no pair of the images adds to the loss"]


def trials_of_vectors(folder, rows, labels):
    images = LabeledImages(torch.from_numpy(rows), labels, [str(label) for label in np.unique(labels)])
    return Trials(workplace(folder), DataSplits(images, images), folds_of(labels, shared=False, seed=0), images.vectors)


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
    tried = trials_of_vectors(tmp_path, np.eye(12, dtype=np.float32)[labels], labels)
    assert tried.scores_of_closed_form(WITHIN_CLASSES) is None
    assert tried.scores_of_closed_form(AS_THEY_ARE) is not None


LONG = "about 10 minutes to 30 minutes in all, depending on what is trained; trials take 320 steps a fold"


@pytest.mark.parametrize(("trains", "text"), [(True, LONG), (False, "about 10 s in all")])
@pytest.mark.usefixtures("weights")
def test_the_whole_is_the_sum_of_the_steps(tmp_path, monkeypatch, trains, text, images):
    """72 images to train and 72 to test, and a training of ten minutes."""
    splits = build_dataset(recipe_of(features_of_images(images)).data, None)
    folds = folds_of(splits.train.labels, shared=False, seed=0)
    monkeypatch.setattr(duration, "seconds_per_image", lambda *_: PerImage(0.01, 0.03))
    monkeypatch.setattr(duration, "seconds_of_training", lambda run: 600.0)
    monkeypatch.setattr(duration, "REPORT", 0.0)
    left = duration.expected(images, LITE0, splits, folds, 72, workplace(tmp_path), trains)
    framing = 72 * (0.01 + 0.03 * ((160 / 224) ** 2 + 1))  # squares, in two sizes
    tests = 144 * 0.01 + 72 * 0.03
    closed = framing + 72 * 0.04 + tests
    trial = 600 if trains else 0  # the fewest iterations
    deeper = 600 + 72 * 0.03 if trains else 0  # with the activations before an earlier block
    assert left.seconds(duration.TRAINING, duration.DEPTH) == pytest.approx(closed + trial)
    assert left.seconds() == pytest.approx(closed + trial + deeper + 600 * trains)
    left.trains("frozen features")
    assert left.seconds() == pytest.approx(closed + trial + deeper)
    if trains:
        left.trains("last blocks from blocks.3")
    assert duration.described(left) == text


def test_without_readable_images_nothing_is_estimated(tmp_path, monkeypatch, images):
    monkeypatch.setattr(duration, "seconds_per_image", lambda *_: None)
    assert duration.expected(images, LITE0, None, None, 72, workplace(tmp_path), True) is None


def test_images_are_timed_as_the_options_say(tmp_path):
    write_photos(tmp_path / "photos" / "ALL", classes=4, each=6)
    overrides = typed(["data.classes=leaf"])
    small = small_network(describe_images(tmp_path / "photos", overrides))
    assert timing.seconds_per_image(small, overrides, "cpu", None).reading > 0


def test_broken_files_do_not_end_the_estimate(photos, tmp_path):
    place = shutil.copytree(photos, tmp_path / "photos")
    small = small_network(describe_images(place))
    files = training_files(place)
    for file in files[: timing.TIMED_IMAGES]:
        file.write_bytes(b"broken")
    assert timing.seconds_per_image(small, [], "cpu", None).passing > 0
    for file in files:
        file.write_bytes(b"broken")
    assert timing.seconds_per_image(small, [], "cpu", None) is None


@pytest.mark.usefixtures("weights")
def test_training_from_activations_is_timed_by_a_batch(tmp_path, monkeypatch, images):
    """12 epochs of 20 iterations of one second."""
    candidate = last_blocks(images)
    splits = build_dataset(recipe_of(candidate).data, None)
    half = splits.train.subset(range(36))
    place = workplace(tmp_path, typed(["schedule.epochs=12"]))
    run = place.run_of(candidate, splits, half, half, candidate.trial_settings(6, 0.5))
    assert timing.seconds_of_training(run) > 0
    assert all(parameter.grad is None for parameter in run.trunk.parameters())
    monkeypatch.setattr(timing, "_seconds", lambda compute: 1.0)
    assert timing.seconds_of_training(run) == pytest.approx(12 * 20)


def test_a_network_without_kept_activations_is_not_timed(tmp_path, images):
    candidate = small_network(images)
    splits = build_dataset(recipe_of(candidate).data, None)
    run = workplace(tmp_path).run_of(candidate, splits, splits.train, splits.train, {})
    assert timing.seconds_of_training(run) is None


def test_remaining_time_follows_the_measured_pace(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    left = timing.TimeLeft({"features": 60, "trial": 120, "training": 180})
    assert (left.seconds(), left.seconds("training")) == (360, 180)
    now[0] += 120
    left.end("features")
    assert left.seconds() == pytest.approx(300 * (120 + 300) / (60 + 300))
    left.leave_out("training")
    assert left.seconds() == pytest.approx(120 * (120 + 120) / (60 + 120))
    assert str(left) == "; about 3 minutes left"
    now[0] += 240
    left.end("trial")
    assert left.seconds() == 0
    left = timing.TimeLeft({"framing": 4, "training": 300})
    now[0] += 20  # five times the estimate, of a step that tells little about the others
    left.end("framing")
    assert 300 < left.seconds() < 330
    assert str(timing.TimeLeft({})) == ""
