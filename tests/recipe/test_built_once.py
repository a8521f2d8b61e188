"""A run builds its loss and its optimizers once; of several runs, the recipes behind the first are checked before."""

import functools

import pytest
import torch

from pml_ext.errors import ConfigError
from pml_ext.training.launch import QUICK, train
from pml_ext_cbml.losses import CBMLLoss

from ..overrides import typed

SMALL = [*QUICK, "schedule.epochs=1", "schedule.milestones=[1]", "sampler.iterations=2"]


def count_calls(monkeypatch, cls):
    """Return a list that grows by one with each object of a class."""
    made = []
    init = cls.__init__

    @functools.wraps(init)  # a recipe's settings are those of the signature
    def counted(self, *arguments, **settings):
        made.append(cls)
        init(self, *arguments, **settings)

    monkeypatch.setattr(cls, "__init__", counted)
    return made


def test_a_run_builds_everything_once(tmp_path, monkeypatch):
    losses = count_calls(monkeypatch, CBMLLoss)
    optimizers = count_calls(monkeypatch, torch.optim.Adam)
    train("cbml/digits", tmp_path / "run", overrides=typed(SMALL))
    assert len(losses) == 1
    assert len(optimizers) == 2  # of the trunk and of the embedder


def test_a_wrong_value_names_its_option(tmp_path):
    with pytest.raises(ConfigError, match=r"^--set loss.delta=-1: loss: cbml refuses .* delta = -1: delta of CBMLLoss"):
        train("cbml/digits", tmp_path / "run", overrides=typed([*SMALL, "loss.delta=-1"]))
    with pytest.raises(ConfigError, match=r"^--set optimizer.betas=.2, 2.: optimizer: adam refuses betas = .2, 2."):
        train("cbml/digits", tmp_path / "run", overrides=typed([*SMALL, "optimizer.betas=[2, 2]"]))
    assert not (tmp_path / "run").exists()


def test_a_wrong_variant_is_refused_before_any_run(tmp_path):
    recipe = tmp_path / "one.toml"
    recipe.write_text('extends = "cbml/digits"\n[sweep]\n"loss.mvc_weight" = [1.0, -1.0]\n')
    with pytest.raises(ConfigError, match="mvc_weight of CBMLLoss must be a finite number at least 0"):
        train(str(recipe), tmp_path / "runs", overrides=typed(SMALL))
    assert not (tmp_path / "runs").exists()
