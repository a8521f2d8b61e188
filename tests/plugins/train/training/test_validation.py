"""Tests beside training: which epochs are tested, which weights are kept."""

import math
from unittest.mock import Mock

import numpy as np
import pytest

from pml_ext.errors import DataError
from pml_ext_train.results.finish import finish
from pml_ext_train.training import train_run
from pml_ext_train.training.checks import check_validation
from pml_ext_train.training.validation import validate

from .whole_runs import built

SETTINGS = ["schedule.epochs=3", "evaluation.baselines=false", "evaluation.training_images=0"]
SETTINGS += ["evaluation.validation=0.3", "sampler.batch_size=56"]
pytestmark = pytest.mark.usefixtures("without_report")


def test_validates_every_second_epoch_and_the_last(tmp_path):
    seen = []
    every_second = ("evaluation.select='map_at_r'", "evaluation.every=2")
    run = built(tmp_path / "run", *SETTINGS, *every_second, recipe="cbml/digits")
    train_run(run, finish, after_validation=lambda epoch, best: seen.append((epoch, best)))
    assert [epoch for epoch, _ in seen] == [2, 3]
    assert all(0 <= best <= 1 for _, best in seen)
    assert seen[1][1] >= seen[0][1]  # the best value so far


def test_validation_classes_of_one_image_choose_nothing(tmp_path):
    run = built(tmp_path / "run", *SETTINGS, "evaluation.select=recall_at_1", recipe="cbml/digits")
    check_validation(run)
    images = run.splits["validation"]
    _, first = np.unique(images.labels, return_index=True)
    run.splits["validation"] = images.subset(first)
    with pytest.raises(DataError, match="no class has two of the 3 validation images, .* leave out select"):
        train_run(run, finish)


def test_an_epoch_whose_metric_is_nan_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("pml_ext_train.training.validation.evaluate_split", lambda *_: {"map_at_r": math.nan})
    run = built(tmp_path / "run", *SETTINGS, "evaluation.select=map_at_r", recipe="cbml/digits")
    run.epoch = 1
    validate(run, Mock(), checkpointer=None)
    text = "evaluation.select: map_at_r of validation is NaN; an epoch with NaN is not chosen"
    assert text in run.history.warnings
    assert run.history.best["epoch"] is None
