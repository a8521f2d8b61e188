"""The choice of what to train on somebody's images: the simplest of what is best on held-out classes."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext.cli.train import train
from pml_ext.errors import ConfigError, UnknownNameError
from pml_ext.recipe import load_recipe
from pml_ext.recipe.images import describe_images
from pml_ext.training import choice
from pml_ext.training.listener import Silence

from .made_up_photos import write_photos


def by_class(mean, spread=0.01, classes=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return mean + spread * torch.randn(classes, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("means", "spread", "wanted"),
    [
        ((0.3, 0.2, 0.25, 0.5), 0.01, "last blocks"),
        ((0.5, 0.2, 0.25, 0.3), 0.01, "frozen"),
        ((0.30, 0.301, 0.29, 0.302), 0.1, "frozen"),  # differences as large as chance gives
        ((0.3, 0.4, 0.35, 0.401), 0.02, "whitened"),
        ((0.3, 0.3, 0.5, 0.4), 0.01, "head"),
    ],
)
def test_the_simplest_of_the_best_is_taken(means, spread, wanted):
    titles = ("frozen", "whitened", "head", "last blocks")
    values = {}
    for number, (title, mean) in enumerate(zip(titles, means, strict=True)):
        values[title] = by_class(mean, spread, seed=number)
    assert choice.simplest_of_the_best(values) == wanted
    description = choice.description_of(wanted, values)
    assert description.startswith(f"The {wanted}, chosen by MAP@R in % on 12 held-out training classes: frozen ")


def test_equal_candidates_leave_the_simplest():
    same = by_class(0.5)
    assert choice.simplest_of_the_best({"frozen": same, "head": same.clone()}) == "frozen"


def test_many_images_get_fewer_views():
    assert [choice.views_of(count) for count in (10, 1_875, 4_052, 15_000, 10**6)] == [8, 8, 3, 1, 1]


# Folders


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of 24 classes of six photographs, each of a color with noise."""
    place = tmp_path_factory.mktemp("photos")
    write_photos(place, classes=24, each=6)
    return place


def test_candidates_are_recipes_in_the_order_of_cost(photos):
    found = describe_images(photos)
    known = choice.candidates(found)
    assert [candidate.title for candidate in known] == [
        "frozen features", "frozen features, whitened", "head on frozen features", "last blocks",
        "small network from scratch",
    ]  # fmt: skip
    if choice.why_not():
        pytest.skip("the extra photos is not installed, whose trunk the recipes name")
    recipes = [load_recipe(candidate.recipe, candidate.settings) for candidate in known]
    assert [recipe.model.embedder for recipe in recipes] == ["none", "pca", "linear", "linear", "linear"]
    assert recipes[3].model.freeze.until == "blocks.5"
    assert {recipe.data.images.crop for recipe in recipes[:4]} == {160}
    assert recipes[3].sampler.iterations == 20


def test_candidates_may_see_whole_images(photos):
    found = describe_images(photos)
    assert found.aspect == 1
    known = choice.candidates(found, squash=True)
    assert known[0].title == "frozen features of whole images"
    for candidate in known[:4]:
        assert "data.images.squash=true" in candidate.settings
    assert "data.images.squash=true" not in known[4].settings


def test_without_the_extra_a_small_network_is_trained(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "timm", None)
    begun = []
    monkeypatch.setattr("pml_ext.training.launch.train", lambda *given: begun.append(given) or [])
    train(images=photos, out=tmp_path / "run")
    assert begun[0][0] == "pml/photographs"
    assert "trains a small network from scratch; with ImageNet weights" in capsys.readouterr().err


def test_several_processes_try_nothing(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    begun = []
    monkeypatch.setattr("pml_ext.training.launch.train", lambda *given: begun.append(given) or [])
    train(images=photos, out=tmp_path / "run")
    assert begun[0][0] == "pml/photographs"
    assert "several processes try nothing" in capsys.readouterr().err


def test_settings_of_the_model_are_not_chosen_again(photos, tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr("pml_ext.training.launch.train", lambda *given: begun.append(given) or [])
    monkeypatch.setattr(choice, "choose", None)
    train(images=photos, out=tmp_path / "run", overrides=["model.trunk.width=8"])
    assert begun[0][0] == "pml/photographs"


def test_a_resumed_run_keeps_what_was_chosen(photos, tmp_path):
    found = describe_images(photos)
    assert choice.recipe_of_run(tmp_path, found) is None
    (tmp_path / "seed-1").mkdir()
    file = tmp_path / "seed-1" / "recipe.toml"
    file.write_text(f'[data]\nname = "folder:{photos}"\n[run]\nseed = 1\n')
    assert Path(choice.recipe_of_run(tmp_path, found)) == file
    file.write_text('[data]\nname = "folder:others"\n[run]\nseed = 1\n')
    with pytest.raises(ConfigError, match="holds a run of folder:others, not of folder:"):
        choice.recipe_of_run(tmp_path, found)


# Whole choices, with ImageNet weights


def chosen(photos, *overrides):
    if choice.why_not():
        pytest.skip("the extra photos is not installed")
    lines = []
    found = choice.choose(describe_images(photos), overrides, 0, "cpu", None, None, lines.append)
    return found, lines


@pytest.mark.slow
def test_all_candidates_are_tried_on_held_out_classes(photos):
    found, lines = chosen(photos, "schedule.epochs=1", "sampler.iterations=1")
    text = "\n".join(lines)
    assert "on 3 of the training classes, held out for that" in lines[0]
    for title in ("frozen features", "frozen features, whitened", "head on frozen features", "last blocks", "small"):
        assert f"  {title}" in text
    settings = dict(setting.split("=", 1) for setting in found.settings)
    assert json.loads(settings["description"]) in lines[-1]
    load_recipe(found.recipe, found.settings)


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
    [([], True), (["data.images.crop=96"], False), (["data.images.squash=false"], False)],
)
def test_whole_images_are_preferred_where_they_tell_more(wide_photos, tmp_path, overrides, whole):
    if choice.why_not():
        pytest.skip("the extra photos is not installed")
    found = describe_images(wide_photos)
    assert found.aspect == 2
    lines = []
    trials = choice._Trials(found, overrides, tmp_path, 0, "cpu", None, Silence(), lines.append)
    assert trials.prefer_whole_images() == whole
    assert len(lines) == len(trials.values) == (2 if whole else 0)


@pytest.mark.slow
def test_few_classes_get_frozen_features(photos, tmp_path):
    place = tmp_path / "few"
    for label in range(3):
        (place / str(label)).mkdir(parents=True)
        for number in range(6):
            source = photos / f"class-{label:02d}" / f"{number}.png"
            (place / str(label) / source.name).write_bytes(source.read_bytes())
    found, lines = chosen(place)
    assert "takes frozen features of efficientnet-lite0" in lines[0]
    assert load_recipe(found.recipe, found.settings).model.embedder == "none"


def test_a_recipe_of_ones_own_is_not_chosen(photos, monkeypatch):
    monkeypatch.setattr(choice, "choose", None)
    with pytest.raises(UnknownNameError, match="no recipe 'pml/photograph'"):
        train("pml/photograph", images=photos)
