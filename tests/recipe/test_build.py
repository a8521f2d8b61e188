"""What is built from the tables of a recipe."""

from collections.abc import Sequence  # in an annotation that is a text
from enum import StrEnum
from pathlib import Path

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ArcFaceLoss, TripletMarginLoss
from pytorch_metric_learning.reducers import ClassWeightedReducer

from pml_ext import CrossBatchMemory, HardPairMiner, RegularizedLoss, registry
from pml_ext.data import DataSplits, LabeledImages, digits
from pml_ext.errors import ConfigError
from pml_ext.recipe import (
    augmentation_of,
    build_dataset,
    build_loss,
    load_recipes,
    loss_context,
    names_in,
    origin_of,
    plugins_in,
    preprocessing_of,
    reported_phases,
    stage_before_whole,
    variant_tables,
)
from pml_ext.recipe.build import build_trunk
from pml_ext.training.stages import build_stages

from ..overrides import typed


def one(name: str, *overrides: str):
    recipes = load_recipes(name, typed(overrides))
    assert len(recipes) == 1
    return next(iter(recipes.values()))


def write(folder: Path, text: str, name: str = "mine.toml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_learned_metric_takes_its_size_from_the_model():
    recipe = one("pddm/digits", "model.embedding_size=24")
    for table in (recipe.loss, type(recipe.loss)(name="pddm")):  # the class says what it needs
        loss, _ = build_loss(table, {"embedding_size": 24, "collect_stats": True})
        assert loss.distance.embedding_size == 24
    assert one("pddm/digits", "evaluation.shortlist=8").evaluation.shortlist == 8
    with pytest.raises(ConfigError, match="loss.miner: hard-quadruplet has parameters here"):
        one("pddm/digits", 'loss.miner={name="hard-quadruplet", distance={name="pddm"}}')
    assert one("pddm/digits", "loss.miner.name=hard-quadruplet").loss.miner is not None


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
    embeddings = torch.randn(6, recipe.model.embedding_size, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([1, 4, 9, 9, 4, 1])
    loss, _ = build_loss(recipe.loss, loss_context(recipe, [1, 4, 9]))
    plain, _ = build_loss(recipe.loss, loss_context(recipe, [0, 1, 2]))
    plain.load_state_dict(loss.state_dict())
    expected = plain(embeddings, torch.tensor([0, 1, 2, 2, 1, 0]))
    assert loss(embeddings, labels) == loss(embeddings, labels=labels) == expected


LOSS = 'loss={name="cbml"}'


@pytest.mark.parametrize(
    ("stages", "wanted"),
    [
        (f'{{epochs=2, freeze="trunk", {LOSS}}}', ("head", 2)),
        (f'{{epochs=2, freeze={{until="head"}}, {LOSS}}}', ("head", 2)),
        (f'{{epochs=2, freeze={{until="4"}}, {LOSS}}}', ("blocks", 2)),
        (f'{{epochs=2, freeze=["0"], {LOSS}}}', ("blocks", 2)),
        (f'{{epochs=2, freeze={{until="head"}}, {LOSS}}}, {{epochs=1, freeze={{until="4"}}, {LOSS}}}', ("blocks", 3)),
        (f'{{epochs=2, freeze="trunk", {LOSS}}}, {{epochs=1, {LOSS}}}', ("head", 2)),
        (f"{{epochs=2, {LOSS}}}", None),
    ],
)
def test_the_stage_before_the_whole_network_is_a_phase(tmp_path, stages, wanted):
    trunk = f'model.trunk={{name="convnet", blocks=2, width=8, weights="{tmp_path / "weights.pth"}"}}'
    recipe = one("cbml/digits", trunk, f"stages=[{stages}]")
    assert stage_before_whole(recipe) == wanted
    phases = {"head", "blocks"} & set(reported_phases(recipe))
    assert phases == (set() if wanted is None else {wanted[0]})
    random = one("cbml/digits", "model.trunk.weights=random", f"stages=[{stages}]")
    assert stage_before_whole(random) is None


def test_weights_of_classes_are_a_list_in_a_recipe():
    """One weight for each training class; labels need not be 0, 1, 2, ..."""
    table = "loss={name='pml/triplet-margin', reducer={name='pml/class-weighted', weights=[1, 0.5, 3]}}"
    recipe = one("cbml/digits", table)
    embeddings = torch.randn(6, recipe.model.embedding_size, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([1, 4, 9, 9, 4, 1])
    loss, _ = build_loss(recipe.loss, loss_context(recipe, [1, 4, 9]))
    weights = torch.zeros(10)
    weights[[1, 4, 9]] = torch.tensor([1, 0.5, 3])
    theirs = TripletMarginLoss(reducer=ClassWeightedReducer(weights))
    torch.testing.assert_close(loss(embeddings, labels), theirs(embeddings, labels))
    images = LabeledImages(torch.zeros(64, 1, 8, 8, dtype=torch.uint8), np.arange(64) % 4, list("abcd"))
    with pytest.raises(ConfigError, match="must be 4 numbers, one for each training class .* got 3"):
        build_stages(recipe, images, torch.device("cpu"), 0)
    with pytest.raises(ConfigError, match="weights of pml/class-weighted must be numbers"):
        one("cbml/digits", table.replace("0.5", "'0.5'"))


def test_weights_of_classes_follow_labels_that_a_loss_renumbers():
    table = "loss={name='pml/arcface', reducer={name='pml/class-weighted', weights=[1, 0.5, 3]}}"
    recipe = one("cbml/digits", table)
    embeddings = torch.randn(6, recipe.model.embedding_size, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    loss, _ = build_loss(recipe.loss, loss_context(recipe, [1, 4, 9]))
    torch.manual_seed(0)
    weights = torch.tensor([1, 0.5, 3])
    theirs = ArcFaceLoss(3, recipe.model.embedding_size, reducer=ClassWeightedReducer(weights))
    wanted = theirs(embeddings, torch.tensor([0, 1, 2, 2, 1, 0]))
    torch.testing.assert_close(loss(embeddings, torch.tensor([1, 4, 9, 9, 4, 1])), wanted)
    by_label = one("cbml/digits", table.replace("3]", "3, 1, 1, 1, 1, 1, 1, 1]"))
    with pytest.raises(ConfigError, match="must be 4 numbers, one for each training class .* got 10"):
        build_loss(by_label.loss, loss_context(recipe, [1, 4, 8, 9]))


def test_origins_are_of_the_nearest_group_and_change_nothing(tmp_path):
    parent = write(
        tmp_path, 'extends = "cbml/digits"\n[origin]\nloss = "paper"\n"loss.beta_pos" = "ours"\n', "parent.toml"
    )
    child = write(tmp_path, 'extends = "parent.toml"\n[origin]\nloss = "program"\nsampler = "ours"\n', "child.toml")
    own = write(tmp_path, 'extends = "child.toml"\n[loss]\nbeta_pos = 0.3\n[origin]\nloss = "program"\n', "own.toml")
    of = {file: variant_tables(file)[file]["origin"] for file in (parent, child, own)}
    keys = ("loss.beta_pos", "loss.beta_neg", "lossy")
    assert [origin_of(key, of[parent]) for key in keys] == ["ours", "paper", ""]
    assert [origin_of(key, of[child]) for key in (*keys, "sampler.m")] == ["ours", "program", "", "ours"]
    assert origin_of("loss.beta_pos", of[own]) == "program"  # its own value has its own origin
    assert one(child).as_dict() == one(parent).as_dict()
    assert "origin" not in one(parent).as_dict()


class Mode(StrEnum):
    fast = "fast"


def plugins_images(
    root: "Path | None" = None,
    *,
    mode: "Mode" = Mode.fast,
    mask: "Path | None" = None,
    size: "Unknown" = 3,  # noqa: F821
    parts: "Sequence['Unknown']" = (),  # noqa: F821
    path: str = "",
) -> DataSplits:
    """A data set whose annotations are texts, and two of which stand for nothing."""
    assert mask is None or mask.name == "mask.png"
    if size > 5:
        raise ValueError(f"size must be at most 5, not {size}")
    assert mode is Mode.fast
    return digits()


def test_options_of_data_sets_are_checked_by_their_annotations(monkeypatch):
    for override, message in (
        ("split=classes", r"data.split: found 'classes'; input should be 'class' or 'image'"),
        ("image_size=16.0", r"data.image_size: found 16.0; input should be a valid integer"),
        ("path=elsewhere", r"data.path: no setting of folder:photos 'path'"),
    ):
        with pytest.raises(ConfigError, match=message):
            one("cbml/digits", "data.name=folder:photos", f"data.{override}")
    monkeypatch.setattr(registry, "factory", lambda what, name: plugins_images)
    for override, message in (
        ("mode=slow", "data.mode: found 'slow'; input should be 'fast'"),
        ("mask=3", "data.mask: found 3; input should be a valid string"),
        ("size=big", "data.size: found 'big'; input should be a valid number"),
    ):
        with pytest.raises(ConfigError, match=message):
            one("cbml/digits", f"data.{override}")
    overrides = ("data.mask=mask.png", "data.size=4", "data.parts=[1.5]", "data.path=p", "data.mode=fast")
    assert isinstance(build_dataset(one("cbml/digits", *overrides).data, None), DataSplits)
    with pytest.raises(ConfigError, match=r"data: digits refuses size = 7: size must be at most 5, not 7"):
        build_dataset(one("cbml/digits", "data.size=7").data, None)


FACTORIES_OF_NOTHING = """
from pml_ext.plugin import hookimpl

@hookimpl
def pml_ext_datasets():
    return {"nothing": lambda root: None, "unread": lambda root, size=1: 1 / 0}

@hookimpl
def pml_ext_trunks():
    return {"nothing": lambda in_channels, image_size: None}
"""


@pytest.mark.usefixtures("isolated_registry")
def test_factories_that_fail_are_named_with_their_plugin(install_plugin):
    install_plugin("careless", FACTORIES_OF_NOTHING)
    text = "data: nothing of the plugin 'careless' gives NoneType; wanted pml_ext.plugin.DataSplits"
    with pytest.raises(ConfigError, match=text):
        build_dataset(one("cbml/digits", "data.name=nothing").data, None)
    text = r"data: unread fails: ZeroDivisionError.*, in .*lambda> of the plugin 'careless', careless/__init__.py:6"
    with pytest.raises(ConfigError, match=text):
        build_dataset(one("cbml/digits", "data.name=unread").data, None)
    with pytest.raises(ConfigError, match="data: unread refuses size = 2: ZeroDivisionError"):
        build_dataset(one("cbml/digits", "data.name=unread", "data.size=2").data, None)
    text = "model.trunk: nothing of the plugin 'careless' gives NoneType; wanted a torch.nn.Module"
    with pytest.raises(ConfigError, match=text):
        build_trunk(one("cbml/digits", "model.trunk={name='nothing'}").model.trunk, 1, 8)


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
def test_transforms_of_torchvision_and_of_plugins_are_built_with_their_settings(install_plugin):
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


def test_a_transform_that_does_not_fit_the_images_is_refused_by_its_place():
    recipe = one("cbml/digits", "data.augment.transforms=['RandomInvert', {name='Resize', size=9}]")
    preprocessing, _ = preprocessing_of(recipe, build_dataset(recipe.data, None))
    wanted = r"data.augment.transforms.1: Resize gives uint8 \[1, 9, 9\]; wanted uint8 \[1, 8, 8\]"
    with pytest.raises(ConfigError, match=wanted):
        augmentation_of(recipe.data, preprocessing)


def test_transforms_that_a_recipe_names_are_found():
    assert ("transform", "RandomAffine") in names_in("pml/ntxent/digits-unlabeled")
