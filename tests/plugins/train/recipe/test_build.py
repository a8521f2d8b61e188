"""What is built from the tables of a recipe, the plugins that it names, and its images from training to retrieval."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from pytorch_metric_learning.losses import ArcFaceLoss, TripletMarginLoss
from pytorch_metric_learning.reducers import ClassWeightedReducer

from pml_ext import ConfigError, CrossBatchMemory, DataError, HardPairMiner, RegularizedLoss, load_run, registry, train
from pml_ext.errors import PluginError
from pml_ext_train.data import LabeledImages
from pml_ext_train.launch.plan import plan
from pml_ext_train.recipe import (
    augmentation_of,
    build_dataset,
    build_loss,
    load_recipes,
    loss_context,
    names_in,
    pipelines,
    plugins_in,
    preprocessing_of,
    read_tables,
)
from pml_ext_train.recipe.schema import ImagesTable
from pml_ext_train.training.stages import build_stages
from pml_ext_train.training.view import View

from ....overrides import typed
from .recipes import one


def test_a_learned_metric_has_the_models_size():
    recipe = one("pddm/digits", "model.embedding_size=24")
    for table in (recipe.loss, type(recipe.loss)(name="pddm")):  # the class says what it needs
        loss, _ = build_loss(table, {"embedding_size": 24, "collect_stats": True})
        assert loss.distance.embedding_size == 24
    assert one("pddm/digits", "evaluation.shortlist=8").evaluation.shortlist == 8
    with pytest.raises(ConfigError, match="loss.miner: hard-quadruplet has parameters"):
        one("pddm/digits", 'loss.miner={name="hard-quadruplet", distance={name="pddm"}}')
    assert one("pddm/digits", "loss.miner.name=hard-quadruplet").loss.miner is not None


PLUGIN_WITH_A_TRANSFORM = """
from pml_ext.plugin import hookimpl

class Noise:
    '''Noise of one strength.'''
    def __init__(self, strength: int = 10):
        self.strength = strength
    def __call__(self, image):
        import torch
        noise = torch.randint(self.strength + 1, image.shape)
        return (image + noise).clamp(max=255).to(torch.uint8)

@hookimpl
def pml_ext_transforms():
    return {"noise": Noise}
"""


@pytest.mark.usefixtures("isolated_registry")
def test_transforms_are_built_with_their_settings(install_plugin):
    install_plugin("noisy", PLUGIN_WITH_A_TRANSFORM)
    inner = "{name='RandomApply', p=1.0, transforms=['RandomInvert', {name='RandomRotation', degrees=15}]}"
    recipe = one("cbml/digits", f"data.augment.transforms=[{{name='noise', strength=3}}, {inner}]")
    preprocessing, cuts = preprocessing_of(recipe, build_dataset(recipe.data, None))
    settings = augmentation_of(recipe.data, preprocessing)
    (steps,) = settings["transforms"]
    noise, apply = (transform.function for transform in steps.transforms)
    assert noise.strength == 3
    assert [type(each).__name__ for each in apply.transforms] == ["RandomInvert", "RandomRotation"]
    assert apply.transforms[1].degrees == [-15.0, 15.0]
    augmented, _ = preprocessing.transforms(cuts, **settings)
    assert '{"name": "noise", "strength": 3}' in repr(augmented)  # tells kept features apart
    assert "noisy" in plugins_in(recipe.as_dict())
    with pytest.raises(ConfigError, match="transforms.0.strength: found 'x'; input should be a valid integer"):
        one("cbml/digits", "data.augment.transforms=[{name='noise', strength='x'}]")


def test_an_unfit_transform_is_named_by_place():
    recipe = one("cbml/digits", "data.augment.transforms=['RandomInvert', {name='Resize', size=9}]")
    preprocessing, _ = preprocessing_of(recipe, build_dataset(recipe.data, None))
    with pytest.raises(
        ConfigError,
        match=r"data.augment.transforms.1: Resize returns uint8 \[1, 9, 9\]; it must return uint8 \[1, 8, 8\]",
    ):
        augmentation_of(recipe.data, preprocessing)


# Losses


EMBEDDINGS = torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([1, 4, 9, 9, 4, 1])


def test_a_memory_wraps_loss_regularizer_and_miner():
    loss, miner = build_loss(
        one("cbml/digits", "loss.regularizer=metric-variance", "loss.miner=hard-pair", "loss.memory.size=4096").loss,
        {"embedding_size": 64},
    )
    assert isinstance(loss, CrossBatchMemory)
    assert (loss.memory_size, miner) == (4096, None)
    assert isinstance(loss.loss, RegularizedLoss)
    assert isinstance(loss.miner, HardPairMiner)


def test_losses_with_classes_take_labels_without_held_out():
    (recipe,) = load_recipes("pml/proxy-anchor/digits").values()
    loss, _ = build_loss(recipe.loss, loss_context(recipe, [1, 4, 9]))
    plain, _ = build_loss(recipe.loss, loss_context(recipe, [0, 1, 2]))
    plain.load_state_dict(loss.state_dict())
    assert (
        loss(EMBEDDINGS, LABELS)
        == loss(EMBEDDINGS, labels=LABELS)
        == plain(EMBEDDINGS, torch.tensor([0, 1, 2, 2, 1, 0]))
    )


def test_class_weights_are_a_list_of_numbers():
    """One weight for each training class; labels need not be 0, 1, 2, ..."""
    recipe = one(
        "cbml/digits", "loss={name='pml/triplet-margin', reducer={name='pml/class-weighted', weights=[1, 0.5, 3]}}"
    )
    loss, _ = build_loss(recipe.loss, loss_context(recipe, [1, 4, 9]))
    weights = torch.zeros(10)
    weights[[1, 4, 9]] = torch.tensor([1, 0.5, 3])
    torch.testing.assert_close(
        loss(EMBEDDINGS, LABELS), TripletMarginLoss(reducer=ClassWeightedReducer(weights))(EMBEDDINGS, LABELS)
    )
    images = LabeledImages(torch.zeros(64, 1, 8, 8, dtype=torch.uint8), torch.arange(64) % 4, list("abcd"))
    with pytest.raises(ConfigError, match="must be 4 numbers, one for each training class .* got 3"):
        build_stages(recipe, images, torch.device("cpu"), 0)


def test_class_weights_follow_renumbered_labels():
    table = "loss={name='pml/arcface', reducer={name='pml/class-weighted', weights=[1, 0.5, 3]}}"
    recipe = one("cbml/digits", table)
    torch.manual_seed(0)
    loss, _ = build_loss(recipe.loss, loss_context(recipe, [1, 4, 9]))
    torch.manual_seed(0)
    theirs = ArcFaceLoss(3, recipe.model.embedding_size, reducer=ClassWeightedReducer(torch.tensor([1, 0.5, 3])))
    torch.testing.assert_close(loss(EMBEDDINGS, LABELS), theirs(EMBEDDINGS, torch.tensor([0, 1, 2, 2, 1, 0])))
    by_label = one("cbml/digits", table.replace("3]", "3, 1, 1, 1, 1, 1, 1, 1]"))
    with pytest.raises(ConfigError, match="must be 4 numbers, one for each training class .* got 10"):
        build_loss(by_label.loss, loss_context(recipe, [1, 4, 8, 9]))


# Plugins


@pytest.mark.usefixtures("isolated_registry")
def test_names_in_a_recipe_are_found():
    assert {("loss", "cbml"), ("data set", "digits"), ("trunk", "convnet")} <= names_in("cbml/digits")
    assert ("transform", "RandomAffine") in names_in("pml/ntxent/digits-unlabeled")
    assert names_in("nobody/knows-it") == set()


RUN = '[run]\nrecipe = "gone/digits"\nseed = 0\n[run.plugins]\ngone = {distribution = "gone-losses", version = "1.2"}\n'


@pytest.mark.usefixtures("isolated_registry")
def test_a_missing_plugin_comes_with_its_command(tmp_path, monkeypatch, install_loss):
    """A finished run, as far as it is read before that is noticed."""
    tables = registry.recipes()["cbml/digits"].read_text("utf-8")
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "recipe.toml").write_text(tables.replace('name = "cbml"', 'name = "gone"') + RUN)
    (folder / "network.json").write_text("{}")
    (folder / "metrics.json").write_text('{"recipe": "gone/digits", "seed": 0}')
    (folder / "checkpoints" / "model.pt").touch()
    text = r"recipe.toml: the plugin 'gone' of gone-losses 1.2 is not installed; run: pip install gone-losses==1.2"
    with pytest.raises(PluginError, match=text):
        load_run(folder)
    with pytest.raises(PluginError, match=text):
        plan(str(folder / "recipe.toml"), out=folder, resume=True)
    install_loss("gone", name="gone")
    monkeypatch.setenv("PML_EXT_BLOCK", "gone")
    with registry.isolated(), pytest.raises(PluginError, match="the plugin 'gone' is blocked, by PML_EXT_BLOCK"):
        load_run(folder)


# Images


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


@pytest.mark.usefixtures("without_report")
def test_retrieval_does_to_images_what_the_run_did(photos, tmp_path):
    train(recipe_file(tmp_path, photos), out=tmp_path / "run", device="cpu")
    facts = json.loads((tmp_path / "run" / "network.json").read_text())
    keys = ("image_size", "resize", "squash", "bgr", "value_range")
    assert [facts[key] for key in keys] == [18, 24, True, True, 255]
    assert facts["normalize"] == {"mean": [104, 117, 128], "std": [1, 1, 1]}
    run = load_run(tmp_path / "run", device="cpu")
    view = View(run.recipe, tmp_path / "view")
    view.network.load_state_dict(run.network.state_dict())
    torch.testing.assert_close(
        run.embed(view.splits["test"].paths), torch.nn.functional.normalize(view.embeddings("test"))
    )
    exported = json.loads((run.export(tmp_path / "out") / "preprocess.json").read_text())
    assert [exported[key] for key in keys[1:]] == [[24, 24], True, True, 255]


def test_weights_of_bn_inception_get_blue_green_red(tmp_path, photos):
    text = RECIPE.replace('"convnet", blocks = 2, width = 4', '"bn-inception", weights = "mine.pth"')
    found = []
    for given in (text, text.replace(', "pipelines/bn-inception"', "")):
        recipe = next(iter(load_recipes(recipe_file(tmp_path, photos, given)).values()))
        splits = build_dataset(recipe.data, None)
        _, transform = preprocessing_of(recipe, splits)[0].transforms()
        found.append(transform(splits.train.image(0)))
    torch.testing.assert_close(found[1], found[0], atol=1e-3, rtol=0)  # of values from -128 to 151
    own = load_recipes(recipe_file(tmp_path, photos, given), {"data.images.mean": [0.5], "data.images.std": [0.5]})
    assert not preprocessing_of(next(iter(own.values())), splits)[0].bgr


def test_contradicting_settings_of_images_are_refused(tmp_path, photos):
    file = recipe_file(tmp_path, photos)
    with pytest.raises(ConfigError, match=r"both set how images are cut; leave out augment.random_crop"):
        load_recipes(file, typed(["data.augment.random_crop=true"]))
    gray = next(iter(load_recipes(file, {"data.channels": 1}).values()))
    with pytest.raises(ConfigError, match=r"are for color; folder:.* is gray"):
        View(gray, tmp_path)
    large = next(iter(load_recipes("pml/contrastive/digits", {"data.images.resize": 7}).values()))
    with pytest.raises(ConfigError, match=r"data.images.resize: found 7; wanted at least the 8 of data.images.crop"):
        View(large, tmp_path)


def test_packaged_pipelines_hold_the_numbers_of_the_papers(tmp_path):
    tables = {name: read_tables(name) for name in pipelines()}
    trunks = {name: tables.pop(name)["model"] for name in [*tables] if "model" in tables[name]}
    assert sorted(trunks) == [f"pipelines/{name}" for name in ("clip", "dinov2", "resnet50-imagenet", "siglip2")]
    assert all(table["freeze"] == "trunk" and table["trunk"]["weights"] for table in trunks.values())
    for table in tables.values():
        assert set(table) == {"data", "origin"}
        assert list(table["data"]) == ["images"]
        assert all(key.startswith("data.images") for key in table["origin"])
    images = {name: ImagesTable.model_validate(table["data"]["images"]) for name, table in tables.items()}
    cbml = images["pipelines/cbml"]
    assert (cbml.resize, cbml.crop, cbml.random_crop_scale, cbml.flip) == (256, 227, [0.16, 1.0], True)
    assert images["pipelines/angular"].squash
    (tmp_path / "child.toml").write_text('extends = ["pml/contrastive/digits", "pipelines/cbm"]')
    with pytest.raises(ConfigError, match="no pipeline 'pipelines/cbm'; nearest: pipelines/cbml"):
        load_recipes(str(tmp_path / "child.toml"))


def test_unreadable_photographs_stop_a_run_or_are_counted(photos, tmp_path):
    shutil.copytree(photos, tmp_path / "photos")
    file = recipe_file(tmp_path, tmp_path / "photos")
    for number in (0, 1, 4):
        (tmp_path / "photos" / str(number % 3) / f"{number}.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"\d.jpg: not a readable image"):
        train(file, out=tmp_path / "stopped", device="cpu")
    train(file, out=tmp_path / "run", device="cpu", overrides={"data.unreadable": "skip"})
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert sum(part.get("unreadable", 0) for part in metrics["images"].values()) == 3
    (warning,) = [text for text in metrics["warnings"] if "3 images that cannot be read (" in text]
    assert all(f"/{number}.jpg: not a readable image" in warning for number in (0, 1, 4))
    assert "3 images that cannot be read (" in (tmp_path / "run" / "report.html").read_text()
