"""Tests beside training: which epochs are tested, which weights are kept."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from pml_ext.errors import DataError
from pml_ext_train.recipe import load_recipe
from pml_ext_train.results.finish import finish
from pml_ext_train.training.checks import check_validation
from pml_ext_train.training.loop import train_run
from pml_ext_train.training.run import Run, RunHistory
from pml_ext_train.training.validation import validate

from ....overrides import typed

SETTINGS = [
    "schedule.epochs=3",
    "schedule.milestones=[2]",
    "sampler.iterations=2",
    "model.trunk.width=8",
    "evaluation.baselines=false",
    "evaluation.training_images=0",
]
pytestmark = pytest.mark.usefixtures("without_report")


def test_validates_every_second_epoch_and_the_last(tmp_path):
    seen = []
    recipe = load_recipe(
        "cbml/digits",
        typed(
            [
                *SETTINGS,
                "evaluation.validation=0.3",
                "sampler.batch_size=56",
                "evaluation.select='map_at_r'",
                "evaluation.every=2",
            ]
        ),
    )
    run = Run(recipe, "cbml/digits", tmp_path / "run", 0, "cpu")
    train_run(run, finish, after_validation=lambda epoch, best: seen.append((epoch, best)))
    assert [epoch for epoch, _ in seen] == [2, 3]
    assert all(0 <= best <= 1 for _, best in seen)
    assert seen[1][1] >= seen[0][1]  # the best value so far


def test_validation_classes_of_one_image_choose_nothing(tmp_path):
    held_out = ["evaluation.validation=0.3", "evaluation.select=recall_at_1", "sampler.batch_size=56"]
    recipe = load_recipe("cbml/digits", typed([*SETTINGS, *held_out]))
    run = Run(recipe, "cbml/digits", tmp_path / "run", 0, "cpu")
    check_validation(run)
    images = run.splits["validation"]
    _, first = np.unique(images.labels, return_index=True)
    run.splits["validation"] = images.subset(first)
    with pytest.raises(DataError, match="no class has two of the 3 validation images, .* leave out select"):
        train_run(run, finish)


def test_an_epoch_whose_metric_is_nan_is_named(monkeypatch):
    measured = {"validation": {"map_at_r": math.nan}}
    monkeypatch.setattr("pml_ext_train.training.validation.evaluate_split", lambda run, split: measured[split])
    recipe = load_recipe("cbml/digits", typed([*SETTINGS, "evaluation.validation=0.3", "evaluation.select=map_at_r"]))
    history = RunHistory()
    told = []
    listener = SimpleNamespace(step=lambda text: None)
    run = SimpleNamespace(recipe=recipe, epoch=1, history=history, listener=listener, queries="test", warn=told.append)
    records = SimpleNamespace(add=lambda *_: None, save=lambda: None)
    validate(run, records, checkpointer=None)
    assert told == ["evaluation.select: map_at_r of validation is NaN; an epoch with NaN is not chosen"]
    assert history.best["epoch"] is None
