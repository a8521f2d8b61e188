"""``[data.images]`` from the recipe to retrieval: what training does to photographs, a trained run does too."""

import json
import shutil

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from pml_ext import load_run
from pml_ext.errors import ConfigError, DataError, MissingExtraError, UnknownNameError
from pml_ext.experiment import train
from pml_ext.experiment.recipe import build_loss, load_recipes, loss_context, pipelines, read_tables
from pml_ext.experiment.recipe.schema import ImagesTable
from pml_ext.experiment.view import View
from pml_ext.registry import recipes

RECIPE = """
description = "photographs"
extends = ["pml/contrastive/digits", "pipelines/bn-inception"]
[data]
name = "folder:PHOTOS"
split = "image"
image_size = 16
[data.images]
crop = 18
resize = 24
squash = true
random_crop = true
flip = true
[model]
embedding_size = 4
trunk = { name = "convnet", blocks = 2, width = 4 }
[sampler]
name = "shuffle"
batch_size = 8
iterations = 1
[schedule]
name = "constant"
epochs = 1
milestones = []
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    place = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    for number in range(24):
        small = generator.integers(256, size=(6, 8, 3), dtype=np.uint8)
        (place / str(number % 3)).mkdir(exist_ok=True)
        Image.fromarray(small).resize((80, 60)).save(place / str(number % 3) / f"{number}.jpg", quality=90)
    return place


def recipe_file(place, photos, text=RECIPE):
    (place / "mine.toml").write_text(text.replace("PHOTOS", str(photos)))
    return str(place / "mine.toml")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, photos):
    place = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pml_ext.experiment.run.write_run_report", lambda *_: None)
        train(recipe_file(place, photos), out=place / "run", device="cpu")
    return place / "run"


def test_retrieval_does_to_images_what_the_run_did(trained, photos, tmp_path):
    facts = json.loads((trained / "network.json").read_text())
    keys = ("image_size", "resize", "squash", "bgr", "value_range")
    assert [facts[key] for key in keys] == [18, 24, True, True, 255]
    assert facts["normalize"] == {"mean": [104, 117, 128], "std": [1, 1, 1]}
    run = load_run(trained, device="cpu")
    view = View(run.recipe, tmp_path / "view")
    view.network.load_state_dict(run.network.state_dict())
    embedded = view.embeddings("test")
    torch.testing.assert_close(run.embed(view.splits["test"].paths), torch.nn.functional.normalize(embedded))
    exported = json.loads((run.export(tmp_path / "out") / "preprocess.json").read_text())
    assert [exported[key] for key in keys[1:]] == [[24, 24], True, True, 255]


def test_images_are_cut_in_one_way_and_gray_ones_have_no_colors(tmp_path, photos):
    file = recipe_file(tmp_path, photos)
    with pytest.raises(ConfigError, match=r"both say how images are cut; leave out augment.random_crop"):
        load_recipes(file, ["data.augment.random_crop=true"])
    gray = next(iter(load_recipes(file, ["data.channels=1"]).values()))
    with pytest.raises(ConfigError, match=r"are for color; folder:.* is gray"):
        View(gray, tmp_path)
    large = next(iter(load_recipes("pml/contrastive/digits", ["data.images.resize=7"]).values()))
    with pytest.raises(ConfigError, match=r"data.images.resize: found 7; wanted at least the 8 pixels"):
        View(large, tmp_path)


def test_packaged_pipelines_hold_the_numbers_of_the_papers(tmp_path):
    tables = {name: read_tables(name) for name in pipelines()}
    assert all(list(table) == ["data"] and list(table["data"]) == ["images"] for table in tables.values())
    images = {name: ImagesTable.model_validate(table["data"]["images"]) for name, table in tables.items()}
    cbml = images["pipelines/cbml"]
    assert (cbml.resize, cbml.crop, cbml.random_crop_scale, cbml.flip) == (256, 227, [0.16, 1.0], True)
    assert images["pipelines/angular"].squash
    (tmp_path / "child.toml").write_text('extends = ["pml/contrastive/digits", "pipelines/cbm"]')
    with pytest.raises(ConfigError, match="no pipeline 'pipelines/cbm'; nearest: pipelines/cbml"):
        load_recipes(str(tmp_path / "child.toml"))
    with pytest.raises(UnknownNameError, match="no recipe 'nothing'"):
        load_recipes("nothing")
    (tmp_path / "child.toml").write_text("extends = [3]")
    with pytest.raises(ConfigError, match=r"extends: found 3, wanted the name of a recipe, or several"):
        load_recipes(str(tmp_path / "child.toml"))


def test_packaged_recipes_name_their_weights():
    assert "DEFAULT" not in "".join(file.read_text("utf-8") for file in recipes().values())


def test_a_trunk_of_timm_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    with pytest.raises(
        (ConfigError, MissingExtraError), match=r'needs the package \'timm\'.*pip install "pml-ext\[timm\]"'
    ):
        load_recipes("pml/contrastive/digits", ["model.trunk=timm/resnet18"])


@pytest.mark.parametrize("setting", ["data.cache=memory", "data.workers=1"])
def test_the_numbers_of_a_run_do_not_change_with_how_it_reads(
    trained, photos, tmp_path, monkeypatch, without_report, setting
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    train(recipe_file(tmp_path, photos), out=tmp_path / "run", device="cpu", overrides=[setting])
    phases = [json.loads((run / "metrics.json").read_text()) for run in (trained, tmp_path / "run")]
    assert [phases[0][phase] for phase in ("raw", "before", "after", "training")] == [
        phases[1][phase] for phase in ("raw", "before", "after", "training")
    ]
    states = [torch.load(run / "checkpoints" / "model.pt")["trunk"] for run in (trained, tmp_path / "run")]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_unreadable_photographs_stop_a_run_or_are_counted(photos, tmp_path):
    shutil.copytree(photos, tmp_path / "photos")
    file = recipe_file(tmp_path, tmp_path / "photos")
    for number in (0, 1, 4):
        (tmp_path / "photos" / str(number % 3) / f"{number}.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"\d.jpg: not a readable image"):
        train(file, out=tmp_path / "stopped", device="cpu")
    train(file, out=tmp_path / "run", device="cpu", overrides=["data.unreadable=skip"])
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert sum(part.get("unreadable", 0) for part in metrics["images"].values()) == 3
    assert [text for text in metrics["warnings"] if "that cannot be read; the first:" in text]
    assert "that cannot be read; the first:" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.slow
def test_a_named_networks_weights_move_as_by_hand(photos, tmp_path, monkeypatch, without_report):
    """One step of SGD on resnet18 at 224 x 224: frozen batch norms keep their statistics, the head moves ten times."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    weights = torchvision.models.get_model_weights("resnet18")["IMAGENET1K_V1"]
    file = tmp_path / "hub" / "checkpoints" / weights.url.rsplit("/", 1)[-1]
    file.parent.mkdir(parents=True)
    torch.manual_seed(5)
    made_up = torchvision.models.resnet18()
    torch.save(made_up.state_dict(), file)
    few = tmp_path / "few"
    for number in range(6):
        place = few / str(number % 2)
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(photos / str(number % 3) / f"{number}.jpg", place)
    text = (
        RECIPE.partition("[data.images]")[0]
        .replace("image_size = 16", "image_size = 224")
        .replace(', "pipelines/bn-inception"', "")
        + """
train_fraction = 0.67
[model]
embedding_size = 4
freeze_batch_norm = true
trunk = { name = "torchvision/resnet18", weights = "IMAGENET1K_V1" }
[optimizer]
name = "sgd"
lr = 0.01
head_lr_factor = 10
[sampler]
name = "shuffle"
batch_size = 4
iterations = 1
[schedule]
name = "constant"
epochs = 1
milestones = []
"""
    )
    recipe = recipe_file(tmp_path, few, text)
    view = View(next(iter(load_recipes(recipe).values())), tmp_path / "view")
    network = view.network.eval()
    assert torch.equal(network.trunk.conv1.weight, made_up.conv1.weight)
    assert view.network.preprocessing.normalize.mean == pytest.approx([0.485, 0.456, 0.406])
    images, labels = zip(*(view.training_images[index] for index in range(4)), strict=True)
    loss, _ = build_loss(view.recipe.loss, loss_context(view.recipe, [0, 1]))
    loss(network(torch.stack(images)), torch.tensor(labels)).backward()
    train(recipe, out=tmp_path / "run", device="cpu")
    state = torch.load(tmp_path / "run" / "checkpoints" / "model.pt")
    for part, factor in (("trunk", 0.01), ("embedder", 0.1)):
        for name, old in network.get_submodule(part).named_parameters():
            moved = state[part][name] - old
            assert moved.abs().max() > 0
            torch.testing.assert_close(moved, -factor * old.grad, rtol=2e-2, atol=1e-6)
    for name, old in network.trunk.named_buffers():
        assert torch.equal(state["trunk"][name], old), name
