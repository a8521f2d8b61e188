"""What is built from the tables of a recipe, and the plugins that it names."""

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ArcFaceLoss, TripletMarginLoss
from pytorch_metric_learning.reducers import ClassWeightedReducer

from pml_ext import CrossBatchMemory, HardPairMiner, RegularizedLoss, registry
from pml_ext.errors import ConfigError, PluginError
from pml_ext_search.trained import load_run
from pml_ext_train.data import LabeledImages
from pml_ext_train.launch.plan import plan
from pml_ext_train.recipe import (
    augmentation_of,
    build_dataset,
    build_loss,
    load_recipes,
    loss_context,
    names_in,
    plugins_in,
    preprocessing_of,
)
from pml_ext_train.training.stages import build_stages

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
    wanted = r"data.augment.transforms.1: Resize returns uint8 \[1, 9, 9\]; it must return uint8 \[1, 8, 8\]"
    with pytest.raises(ConfigError, match=wanted):
        augmentation_of(recipe.data, preprocessing)


EMBEDDINGS = torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([1, 4, 9, 9, 4, 1])


def test_a_memory_wraps_loss_regularizer_and_miner():
    overrides = ("loss.regularizer=metric-variance", "loss.miner=hard-pair", "loss.memory.size=4096")
    loss, miner = build_loss(one("cbml/digits", *overrides).loss, {"embedding_size": 64})
    assert isinstance(loss, CrossBatchMemory)
    assert (loss.memory_size, miner) == (4096, None)
    assert isinstance(loss.loss, RegularizedLoss)
    assert isinstance(loss.miner, HardPairMiner)
    with pytest.raises(ConfigError, match="loss.memory: CrossBatchMemory needs a loss .* does not take references"):
        one("pml/proxy-anchor/digits", "loss.memory.size=4096")


def test_losses_with_classes_take_labels_without_held_out():
    (recipe,) = load_recipes("pml/proxy-anchor/digits").values()
    loss, _ = build_loss(recipe.loss, loss_context(recipe, [1, 4, 9]))
    plain, _ = build_loss(recipe.loss, loss_context(recipe, [0, 1, 2]))
    plain.load_state_dict(loss.state_dict())
    expected = plain(EMBEDDINGS, torch.tensor([0, 1, 2, 2, 1, 0]))
    assert loss(EMBEDDINGS, LABELS) == loss(EMBEDDINGS, labels=LABELS) == expected


def test_class_weights_are_a_list_of_numbers():
    """One weight for each training class; labels need not be 0, 1, 2, ..."""
    table = "loss={name='pml/triplet-margin', reducer={name='pml/class-weighted', weights=[1, 0.5, 3]}}"
    recipe = one("cbml/digits", table)
    loss, _ = build_loss(recipe.loss, loss_context(recipe, [1, 4, 9]))
    weights = torch.zeros(10)
    weights[[1, 4, 9]] = torch.tensor([1, 0.5, 3])
    theirs = TripletMarginLoss(reducer=ClassWeightedReducer(weights))
    torch.testing.assert_close(loss(EMBEDDINGS, LABELS), theirs(EMBEDDINGS, LABELS))
    images = LabeledImages(torch.zeros(64, 1, 8, 8, dtype=torch.uint8), np.arange(64) % 4, list("abcd"))
    with pytest.raises(ConfigError, match="must be 4 numbers, one for each training class .* got 3"):
        build_stages(recipe, images, torch.device("cpu"), 0)
    with pytest.raises(ConfigError, match="weights of pml/class-weighted must be numbers"):
        one("cbml/digits", table.replace("0.5", "'0.5'"))


def test_class_weights_follow_renumbered_labels():
    table = "loss={name='pml/arcface', reducer={name='pml/class-weighted', weights=[1, 0.5, 3]}}"
    recipe = one("cbml/digits", table)
    torch.manual_seed(0)
    loss, _ = build_loss(recipe.loss, loss_context(recipe, [1, 4, 9]))
    torch.manual_seed(0)
    weights = torch.tensor([1, 0.5, 3])
    theirs = ArcFaceLoss(3, recipe.model.embedding_size, reducer=ClassWeightedReducer(weights))
    wanted = theirs(EMBEDDINGS, torch.tensor([0, 1, 2, 2, 1, 0]))
    torch.testing.assert_close(loss(EMBEDDINGS, LABELS), wanted)
    by_label = one("cbml/digits", table.replace("3]", "3, 1, 1, 1, 1, 1, 1, 1]"))
    with pytest.raises(ConfigError, match="must be 4 numbers, one for each training class .* got 10"):
        build_loss(by_label.loss, loss_context(recipe, [1, 4, 8, 9]))


@pytest.mark.usefixtures("isolated_registry")
def test_names_in_a_recipe_are_found():
    named = names_in("cbml/digits")
    assert {("loss", "cbml"), ("data set", "digits"), ("trunk", "convnet")} <= named
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
