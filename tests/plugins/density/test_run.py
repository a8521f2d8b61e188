"""Density adaptivity in whole runs: base densities, targets in checkpoints, the table and the figure."""

import csv
import math

import pytest
import torch

from pml_ext_density.functional import class_densities
from pml_ext_train.launch.launch import train
from pml_ext_train.recipe import load_recipes
from pml_ext_train.training.run import Run

from ...overrides import typed

QUICK = ("schedule.epochs=3", "schedule.milestones=[2]", "sampler.iterations=4", "model.trunk.width=16")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "out"
    return out, train("density/digits", out=out, overrides=typed(QUICK), device="cpu")[0]


def rows(out):
    with (out / "records" / "density.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.nightly
def test_base_densities_come_from_the_trunks_features(finished):
    out, _ = finished
    state = torch.load(out / "checkpoints" / "model.pt")
    recipe = next(iter(load_recipes(str(out / "recipe.toml")).values()))
    fresh = Run(recipe, "again", out, seed=0)  # the untrained network of the same seed
    expected = class_densities(fresh.embeddings("train", layer="trunk").double(), fresh.labels("train"))
    torch.testing.assert_close(state["loss"]["regularizer.base_density"], expected, rtol=1e-6, atol=1e-9)
    assert expected.min() > 0.01


def test_targets_train_and_are_written_each_epoch(finished):
    out, metrics = finished
    targets = torch.load(out / "checkpoints" / "model.pt")["loss"]["regularizer.target_density"]
    assert (targets - 0.5).abs().min() > 1e-3
    table = rows(out)
    assert [(row["epoch"], row["label"]) for row in table] == [(str(e), str(c)) for e in range(4) for c in range(10)]
    assert [float(row["target"]) for row in table[-10:]] == pytest.approx(targets.tolist(), rel=1e-5)
    assert all(row["target"] == "0.5" and math.isnan(float(row["density"])) for row in table[:10])
    assert all(0 < float(row["density"]) < 1 for row in table[10:])
    assert "Target densities" in (out / "report.html").read_text()
    for name in ("densities-of-training-and-test-classes", "the-embeddings-of-training-images-in-two-dimensions-t-sne"):
        assert list((out / "figures").glob(f"{name}.*"))
    assert metrics["warnings"] == []
