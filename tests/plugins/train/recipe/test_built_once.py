"""Wrong values are refused before a run begins, with the option; of several runs, those behind the first too."""

import pytest

from pml_ext.errors import ConfigError
from pml_ext_train.launch.launch import QUICK, train

from ....overrides import typed

SMALL = [*QUICK, "schedule.epochs=1", "schedule.milestones=[1]", "sampler.iterations=2"]


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
