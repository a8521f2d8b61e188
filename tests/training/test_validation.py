"""Tests beside training: which epochs are tested, which weights are kept."""

import json

import pytest

from pml_ext.recipe import load_recipe
from pml_ext.training import train
from pml_ext.training.loop import train_run
from pml_ext.training.run import Run

SETTINGS = [
    "schedule.epochs=3",
    "schedule.milestones=[2]",
    "sampler.iterations=2",
    "model.trunk.width=8",
    "evaluation.baselines=false",
]


def test_validates_every_second_epoch_and_the_last(tmp_path):
    seen = []
    recipe = load_recipe(
        "cbml/digits",
        [
            *SETTINGS,
            "evaluation.validation=0.3",
            "sampler.batch_size=56",
            "evaluation.select='map_at_r'",
            "evaluation.every=2",
        ],
    )
    run = Run(recipe, "cbml/digits", tmp_path / "run", 0, "cpu")
    train_run(run, after_validation=lambda epoch, best: seen.append((epoch, best)))
    assert [epoch for epoch, _ in seen] == [2, 3]
    assert all(0 <= best <= 1 for _, best in seen)
    assert seen[1][1] >= seen[0][1]  # the best value so far


@pytest.mark.parametrize("baselines", [False, True])
def test_untrained_network_is_tested_if_asked(tmp_path, baselines):
    train("cbml/digits", out=tmp_path / "run", overrides=[*SETTINGS, f"evaluation.baselines={str(baselines).lower()}"])
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert ("before" in metrics) is baselines
    assert ("raw" in metrics) is baselines
