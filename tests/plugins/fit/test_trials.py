"""Trials on held-out classes."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext.errors import NothingToLearnError
from pml_ext.training.listener import Silence
from pml_ext_fit import trials
from pml_ext_fit.candidates import HeadOnFeatures, LastBlocks
from pml_ext_fit.images import describe_images
from pml_ext_fit.trials import Trials

from ...overrides import typed
from .helpers import needs_weights


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
def test_trials_have_the_batches_of_the_options(photos, tmp_path, overrides, m, batch_size):
    needs_weights()
    found = describe_images(photos)
    trials = Trials(found, typed(overrides), tmp_path, 0, "cpu", None, Silence(), print)
    sampler = trials._recipe_of(HeadOnFeatures(found)).sampler
    assert (sampler.settings["m"], sampler.batch_size) == (m, batch_size)


@pytest.mark.parametrize("override", ["evaluation.select_on=split", "evaluation.held_out=last"])
def test_trials_validate_in_their_own_way(photos, tmp_path, override):
    needs_weights()
    found = describe_images(photos)
    overrides = [override, "evaluation.select=nmi"]
    trials = Trials(found, typed(overrides), tmp_path, 0, "cpu", None, Silence(), print)
    table = trials._recipe_of(HeadOnFeatures(found)).evaluation
    assert (table.validation, table.select, table.select_on, table.held_out) == (
        0.25,
        "map_at_r",
        "validation",
        "drawn",
    )


@pytest.mark.parametrize(("size", "left_out"), [(10**6, False), (10**8, True)])
def test_activations_that_take_too_much_are_left_out(photos, tmp_path, size, left_out):
    lines = []
    trials = Trials(describe_images(photos), [], tmp_path, 0, "cpu", None, Silence(), lines.append)
    cut = SimpleNamespace(table=SimpleNamespace(gigabytes=8.0), bytes_per_image=size)
    recipe = SimpleNamespace(model=SimpleNamespace(views=8))
    run = SimpleNamespace(inputs=SimpleNamespace(cut_of=lambda stage: cut), stages=[None], recipe=recipe)
    candidate = LastBlocks(describe_images(photos))
    assert trials._takes_too_much(candidate, run) == left_out
    text = "  last blocks: left out, since their activations would take 57.6 GB, and 8 GB is the most; "
    assert [line.startswith(text) for line in lines] == [True] * left_out


def test_a_candidate_with_nothing_to_learn_is_left_out(photos, tmp_path, monkeypatch):
    def satisfied(*_, **__):
        raise NothingToLearnError("the loss was 0 in all iterations")

    lines = []
    found = Trials(describe_images(photos), [], tmp_path, 0, "cpu", None, Silence(), lines.append)
    monkeypatch.setattr(
        found, "_run", lambda _: SimpleNamespace(inputs=SimpleNamespace(cut_of=lambda _: None), stages=[0])
    )
    monkeypatch.setattr(trials, "train_run", satisfied)
    assert found.score_of_trained(LastBlocks(describe_images(photos))) is None
    assert lines == ["  last blocks: left out, since no pair of the images adds to the loss"]


def test_values_by_class_are_those_of_classes_with_two_images():
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(60, 4, generator=generator)
    labels = torch.cat([torch.arange(9).repeat(6), torch.tensor([3, 3, 7, 7, 7, 9])])  # one image of the last
    run = SimpleNamespace(device=torch.device("cpu"), true_labels=lambda split: labels)
    similarities = torch.nn.functional.normalize(points) @ torch.nn.functional.normalize(points).T
    wanted = []
    for label in range(9):
        values = []
        for query in (labels == label).nonzero().flatten().tolist():
            order = similarities[query].argsort(descending=True)
            right = labels[order[order != query]] == label
            relevant = int(right.sum())
            precision = right.double().cumsum(0) / torch.arange(1, len(right) + 1)
            values.append(float((precision * right)[:relevant].sum()) / relevant)
        wanted.append(sum(values) / len(values))
    found = trials.map_at_r_by_class(run, points)
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), atol=1e-6, rtol=0)


def test_large_classes_are_searched_without_keeping_neighbors(monkeypatch):
    kept = []
    evaluate = trials.RetrievalAccuracyCalculator.evaluate
    monkeypatch.setattr(
        trials.RetrievalAccuracyCalculator,
        "evaluate",
        lambda self, *given, keep=0: kept.append(keep) or evaluate(self, *given, keep=keep),
    )
    run = SimpleNamespace(device=torch.device("cpu"), true_labels=lambda split: torch.arange(2).repeat(20))
    trials.map_at_r_by_class(run, torch.randn(40, 3))
    assert kept == [0]


@pytest.fixture
def wide_photos(tmp_path):
    """48 classes of four photographs, whose left and right quarters have the color of the class, with noise."""
    generator = np.random.default_rng(0)
    for label in range(48):
        folder = tmp_path / "wide" / f"{label:02d}"
        folder.mkdir(parents=True)
        colors = generator.integers(0, 256, size=(2, 3))
        for number in range(4):
            pixels = generator.normal(128, 30, size=(48, 96, 3))
            pixels[:, :24] += colors[0] - 128
            pixels[:, 72:] += colors[1] - 128
            Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(folder / f"{number}.png")
    return tmp_path / "wide"


@pytest.mark.parametrize(
    ("overrides", "whole"),
    [
        ([], True),
        (["data.images.flip=false"], True),
        (["data.images.crop=96"], False),
        (["data.images.squash=false"], False),
        (["data.images={squash=false}"], False),
    ],
)
def test_whole_images_are_preferred_where_they_tell_more(wide_photos, tmp_path, overrides, whole):
    needs_weights()
    found = describe_images(wide_photos)
    assert found.aspect == 2
    lines = []
    trials = Trials(found, typed(overrides), tmp_path, 0, "cpu", None, Silence(), lines.append)
    assert trials.prefer_whole_images() == whole
    assert len(lines) == len(trials.scored) == (2 if whole else 0)
