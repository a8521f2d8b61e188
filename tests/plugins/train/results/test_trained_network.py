"""A finished run, loaded from its folder."""

import hashlib
import json
import shutil

import pytest
import torch

from pml_ext import registry
from pml_ext.errors import DataError
from pml_ext_train.launch.launch import train
from pml_ext_train.recipe import load_recipes
from pml_ext_train.results.trained_network import LoadedRun

from ....overrides import typed


@pytest.fixture
def copied(runs, tmp_path):
    """A copy of a run, to damage."""
    return shutil.copytree(runs[0], tmp_path / "run", ignore=shutil.ignore_patterns("records", "tensorboard"))


def test_the_network_has_the_weights_of_the_run(runs):
    loaded = LoadedRun(runs[0], "cpu")
    state = torch.load(runs[0] / "checkpoints" / "model.pt", weights_only=True)
    for part, module in (("trunk", loaded.network.trunk), ("embedder", loaded.network.embedder)):
        assert all(torch.equal(value, state[part][name]) for name, value in module.state_dict().items())
    assert not loaded.network.training
    assert loaded.identity == hashlib.sha256((runs[0] / "checkpoints" / "model.pt").read_bytes()).hexdigest()[:16]
    assert loaded.identity != LoadedRun(runs[1], "cpu").identity
    (recipe,) = load_recipes(str(runs[0] / "recipe.toml")).values()
    assert loaded.recipe.as_dict() == recipe.as_dict()
    assert loaded.network.preprocessing.image_size == json.loads((runs[0] / "network.json").read_text())["image_size"]


@pytest.mark.parametrize("name", ["recipe.toml", "network.json", "checkpoints/model.pt"])
def test_a_missing_file_comes_with_a_remedy(copied, name):
    (copied / name).unlink()
    with pytest.raises(DataError, match=rf"^{copied / name} is missing; .*pml-ext (report|train)|--resume"):
        LoadedRun(copied, "cpu")
    (copied / "metrics.json").unlink()
    text = rf"^{copied}: no finished run \(no {name} in it\); type: pml-ext train RECIPE --out {copied} --resume$"
    with pytest.raises(DataError, match=text):
        LoadedRun(copied, "cpu")


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("network.json", '"channels": 1', '"channels": 2'),
        ("network.json", '"features": ', '"features": 1'),
        ("recipe.toml", "\n[run", "\n[ran"),
        ("recipe.toml", "seed = 0", "seed = 7"),
    ],
)
def test_a_changed_file_is_damage(copied, name, old, new):
    file = copied / name
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(DataError, match=str(file)) as caught:
        LoadedRun(copied, "cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("without_report")
def test_a_learned_metric_has_the_losss_weights(runs, tmp_path):
    assert LoadedRun(runs[0], "cpu").metric is None
    quick = ("schedule.epochs=7", "schedule.milestones=[6]", "sampler.iterations=2", "model.trunk.width=8")
    train("pddm/digits", tmp_path / "pddm", overrides=typed([*quick, "evaluation.baselines=false"]), device="cpu")
    metric = LoadedRun(tmp_path / "pddm", "cpu").metric
    assert isinstance(metric, registry.get("pddm", "distance").cls)
    assert not metric.training
    state = torch.load(tmp_path / "pddm" / "checkpoints" / "model.pt", weights_only=True)["loss"]
    for name, value in metric.state_dict().items():
        assert torch.equal(value, next(state[key] for key in state if key.endswith(f"distance.{name}")))
