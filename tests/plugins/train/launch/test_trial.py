"""Trials of tuning report the best value on validation classes after each epoch."""

import pytest

from pml_ext_train.launch.launch import train_and_validate
from pml_ext_train.recipe import load_recipe
from pml_ext_train.training.run import Silence

from ....overrides import typed

SETTINGS = [
    "data.name=digits-unseen",
    "sampler.batch_size=4",
    "sampler.m=2",
    "sampler.iterations=2",
    "schedule.epochs=3",
    "schedule.name=constant",
    "schedule.milestones=[]",
    "model.trunk.width=8",
    "evaluation.validation=0.4",
    "evaluation.select=map_at_r",
    "evaluation.select_on=validation",
    "evaluation.baselines=false",
]
NAME = "pml/contrastive/digits"


def train(folder, report):
    recipe = load_recipe(NAME, typed(SETTINGS))
    return train_and_validate(recipe, NAME, folder, 0, "cpu", None, Silence(), report)


def test_the_best_value_is_reported_and_returned(tmp_path):
    reported = []
    value = train(tmp_path / "run", lambda epoch, best: reported.append((epoch, best)))
    epochs, values = zip(*reported, strict=True)
    assert epochs == (1, 2, 3)
    assert list(values) == sorted(values)  # the best until then
    assert value == values[-1]
    assert not (tmp_path / "run/metrics.json").exists()
    assert not (tmp_path / "run/report.html").exists()


def test_a_pruned_trial_can_be_resumed(tmp_path):
    whole = train(tmp_path / "whole", lambda epoch, best: None)

    class PrunedError(Exception):
        pass

    def prune(epoch, best):
        raise PrunedError

    with pytest.raises(PrunedError):
        train(tmp_path / "run", prune)
    assert train(tmp_path / "run", lambda epoch, best: None) == whole
