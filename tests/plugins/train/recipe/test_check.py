"""What a recipe may say: one line for everything that is wrong, or makes no sense for its data."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import pytest
import tomli_w

from pml_ext import ConfigError, registry
from pml_ext_train.data import DataSplits, digits
from pml_ext_train.recipe import (
    build_dataset,
    build_network,
    build_trunk,
    load_recipe,
    load_recipes,
    reported_phases,
    stage_before_whole,
    vector_input_of,
)

from ....overrides import typed
from ..data.vector_files import file_of
from .recipes import one


def test_stages_come_before_the_recipes_own_loss():
    recipe = one("cbml/digits", "stages=[{epochs = 2, loss = {name = 'pml/triplet-margin', margin = 0.2}}]")
    stages = recipe.all_stages()
    assert [(stage.epochs, stage.loss.name) for stage in stages] == [(2, "pml/triplet-margin"), (13, "cbml")]
    assert stages[0].sampler == recipe.sampler


TRANSFORMS = "data.augment.transforms="


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["loss.alpha_poss=1"], r"loss.alpha_poss: no setting of cbml 'alpha_poss'; nearest: alpha_pos"),
        (["loss.alpha_pos=high"], r"loss.alpha_pos: found 'high'"),
        (["loss.beta_neg=-1"], r"loss: cbml refuses .*beta_neg"),
        (["loss.miner=pml/batch-hardd"], r"loss.miner.name: no miner 'pml/batch-hardd'; nearest: pml/batch-hard"),
        (["schedule.epochs=0"], r"schedule.epochs: found 0; input should be greater than or equal to 1"),
        (["engine.epochs=3"], r"engine: no key 'epochs'; it belongs to \[schedule\]"),
        (["sampler.lr=1"], r"sampler.lr: no setting of pml/m-per-class 'lr'; it belongs to \[optimizer\]"),
        (["sampler={name='shuffle', m=4}"], r"sampler.m: no setting of shuffle 'm'; known: none"),
        (["model.trunk=resnet18"], r"model.trunk.name: no trunk 'resnet18'; nearest: .*torchvision/resnet18"),
        (["model.trunk.in_channels=3"], r"model.trunk.in_channels: no setting of convnet 'in_channels'"),
        (["data.augment.shfit=2"], r"data.augment.shfit: no setting of augment 'shfit'; nearest: shift"),
        (["loss.optimizer.lr=-1"], r"loss.optimizer.*lr"),
        (["evaluation.select=map"], r"evaluation: select, .* goes with validation"),
        (["evaluation.select_on=test"], "goes with validation .* or select_on = 'test'"),
        (["evaluation={select_on='test', select='nmi', validation=0.2}"], "goes with validation"),
        (["evaluation.validation_trains=true"], "validation_trains goes with validation"),
        (["evaluation.held_out=last"], "held_out = 'last' goes with validation"),
        (["evaluation.every=2"], "every goes with select, .* test_every is for curves"),
        (["evaluation.recall_at=[10, 100]"], "recall_at includes 1, which every run reports"),
        (["evaluation.shortlist=8"], r"evaluation.shortlist: found 8, but no loss .* learned metric"),
        (["loss.memory.size=40"], r"loss.memory.size: found 40; it holds at least one batch, here 80"),
        (["data.images={crop=30, resize=24}"], r"data.images: resize \(24\) must be at least crop \(30\)"),
        (["data.images.mean=[1.0]"], "mean and std go together"),
        (["data.images.value_range=255"], "value_range = 255 goes with the mean and std"),
        (["data.images.random_crop_scale=[0.9, 0.2]"], "a range of areas, smaller first"),
        (
            ["data={name='digits', labels='clusters', pseudo={batch_size=[40, 20]}}"],
            "pseudo.batch_size: found .* smaller",
        ),
        (["loss.memory={size=80, start_epoch=99}"], r"loss.memory.start_epoch: found 99, but the run has \d+ epochs"),
        (["data.images={random_crop=true, random_crop_scale=[0.2, 1.0]}"], "leave out one"),
        (["epochs"], r"--set epochs: wanted KEY=VALUE"),
        (["optimizer.betas=[2, 2]"], r"^--set optimizer.betas=.2, 2.: optimizer: adam refuses betas = .2, 2."),
        (["loss.delta=-1"], r"^--set loss.delta=-1: loss: cbml refuses .* delta = -1: delta of CBMLLoss"),
        (["stages=[{epochs=20, loss={name='pml/triplet-margin'}}]"], "stages alone have 20 epochs"),
        (
            ["stages=[{epochs=2, loss={name='pml/triplet-margin', margn=1}}]"],
            r"stages.0.loss.margn: no setting of pml/triplet-margin 'margn'; nearest: m",
        ),
        (["data.views=0"], "data.views: found 0; input should be greater than or equal to 1"),
        (["data.labels=instance"], "data.views: found 1; labels = 'instance' needs 2 or more"),
        (["data.labels=instance", "data.views=2"], "sampler.m: found 8, but with labels = 'instance' a class has 1"),
        (
            ["data.labels=instance", "data.views=2", "data.relation=hierarchy"],
            "the data's classes, which labels = 'instance' replaces",
        ),
        (["data.name=digits-unseen", "data.views=2"], "data.views: found 2, but views are equal without augment"),
        (["data.views=2", "loss.memory.size=100"], "loss.memory.size: found 100; .* at least one batch, here 160"),
        (
            ["data.views=3", "model.freeze=trunk", "model.trunk.weights=random", "model.views=2"],
            "data.views: found 3, but a frozen trunk or a cut caches only model.views = 2 .*; set model.views = 3",
        ),
        (
            ["data={labels='instance', views=2}", "sampler.m=1", "evaluation={validation=0.2, select='map_at_r'}"],
            "evaluation.validation: it holds out the data's classes, which labels = 'instance' replaces",
        ),
        (["schedule.warmup=16"], "schedule.warmup: found 16 epochs, but the run has 15"),
        (["schedule.warmup=-1"], "schedule.warmup: found -1; input should be greater than or equal to 0"),
        (["schedule.warmup=nan"], "schedule.warmup: found nan"),
        (["schedule.warmup=short"], "schedule.warmup: found 'short'; input should be a valid number"),
        ([TRANSFORMS + "3"], "data.augment.transforms.0: found 3"),
        ([TRANSFORMS + "[{p=0.5}]"], "data.augment.transforms.0.name: missing"),
        (["data.augment.transfroms=[]"], "data.augment.transfroms: no setting of augment .*; nearest: transforms"),
        ([TRANSFORMS + "RandomErasng"], "transforms.0.name: no transform 'RandomErasng'; nearest: RandomErasing"),
        ([TRANSFORMS + "MixUp"], "data.augment.transforms.0.name: no transform 'MixUp'"),
        ([TRANSFORMS + "[{name='RandomErasing', scal=[0.1, 0.2]}]"], "no setting of RandomErasing 'scal'; near.*scale"),
        ([TRANSFORMS + "[{name='RandomErasing', p='x'}]"], "transforms.0.p: found 'x'; input should be a valid number"),
        ([TRANSFORMS + "[{name='RandomErasing', p=2.0}]"], "transforms.0: RandomErasing refuses p = 2.0: .*interval"),
        ([TRANSFORMS + "RandomRotation"], "data.augment.transforms.0.degrees: missing, and RandomRotation has no"),
        (
            [TRANSFORMS + "[{name='RandomApply', transforms=['RandomInvrt']}]"],
            "data.augment.transforms.0.transforms.0.name: no transform 'RandomInvrt'; nearest: RandomInvert",
        ),
        (
            [TRANSFORMS + "[{name='RandomApply', transforms=[4]}]"],
            "data.augment.transforms.0.transforms.0: found 4",
        ),
        (["loss.optimizer.lr=3"], "--set loss.optimizer.lr=3: .*: cbml has no parameters here"),
        (["loss.optimizer.scheduled=true"], "--set loss.optimizer.scheduled=true: .* has no parameters"),
        (
            ["loss.embedding_reg_weight=2"],
            "--set loss.embedding_reg_weight=2: .*: cbml has no embedding_regularizer to weight",
        ),
        (
            ["loss.name=pml/proxy-anchor", "loss.weight_reg_weight=2"],
            "pml/proxy-anchor has no weight_regularizer to weight",
        ),
        (["schedule={name='cosine', epochs=3, gamma=0.5}"], "schedule.gamma: goes with name = 'multi-"),
        (
            [
                "model.embedder=within-class",
                "model.freeze=trunk",
                "model.trunk.weights=random",
                "optimizer.head_lr_factor=3",
            ],
            "--set optimizer.head_lr_factor=3: .*: embedder = 'within-class' is not trained",
        ),
        (
            ["model.embedder=none", "optimizer.head_lr_factor=3"],
            "--set optimizer.head_lr_factor=3: .*: embedder = 'none' is not trained",
        ),
        (["model.shrinkage=0.6"], "shrinkage: it needs 'pca'"),
        (["model.shrinkage=auto", "model.embedder=pca", "model.freeze=trunk"], "'pca' does not see"),
        (["model.refit=within-class", "model.norm=batch"], "refit: it is for embedder = 'linear'"),
        (["model.refit=within-class", "model.freeze=trunk"], "refit: the trunk is frozen"),
        (["model.start=within-class", "model.embedder=mlp"], "start: it is for embedder = 'linear'"),
        (["model.embedder=within-class"], "goes with freeze = 'trunk'"),
        (
            ["model.embedder=within-class", "model.freeze=trunk", "model.dropout=0.1"],
            "dropout: it is for a trained embedder",
        ),
        (["data.labels=clusters", "loss.name=pml/proxy-anchor"], "loss: pml/proxy-anchor keeps values for each class"),
        (["data.labels=clusters", "loss.regularizer=density"], "loss.regularizer: density keeps values for each class"),
        (["data.labels=clusters", "loss.memory.size=200"], "loss.memory: it keeps labels of past batches"),
        (
            ["data.labels=clusters", "evaluation.validation=0.2", "evaluation.select=map_at_r"],
            "evaluation.validation: it holds out the data's classes",
        ),
        (
            ["data.labels=clusters", "data.labels=given", "data.pseudo.clusters=3"],
            "pseudo goes with labels = 'clusters'",
        ),
        (
            ["data.labels=clusters", "stages=[{epochs=1, loss={name='pml/arcface'}}]"],
            "stages.0.loss: pml/arcface keeps values",
        ),
        (["data.relation=trees"], "relation: no relation 'trees'"),
        (["data.relation={name='hierarchy', depth=2}"], "data.relation.depth: no setting of hierarchy 'depth'"),
        (["data.relation={name='hierarchy', level=0}"], "data.relation: hierarchy refuses level = 0"),
        (["data.relation={name='shared-label', threshold=3.0}"], "threshold of SharedLabel"),
        (
            ["data.relation=hierarchy", "data.labels=clusters"],
            "names of the data's classes, which labels = 'clusters' replaces",
        ),
        (["data.relation={name='hierarchy', graded=true}", "loss={name='n-pair'}"], "has no weights of pairs"),
        (["data.relation=hierarchy", "loss={name='pml/proxy-anchor'}"], "does not compare pairs"),
        (["sampler.m=0"], r"--set sampler.m=0: (sampler.m: )?found 0; wanted 1 image of a class"),
        (
            ['model.trunk={name="efficientnet-lite0", weights="a1_in1k"}'],
            r"model.trunk.weights: found 'a1_in1k'; .*'imagenet'",
        ),
        (
            ["loss.name=pml/proxy-anchor", "loss.memory.size=4096"],
            "loss.memory: CrossBatchMemory needs a loss .* does not take references",
        ),
        (
            ["loss={name='pml/triplet-margin', reducer={name='pml/class-weighted', weights=[1, '0.5', 3]}}"],
            "weights of pml/class-weighted must be numbers",
        ),
        (
            ["evaluation.verification=2", "data.relation=near", "data.relation.within=2"],
            "evaluation.verification: it needs pairs of one class",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_recipes("cbml/digits", typed(overrides))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("key", "value"), [("every", 2), ("held_out", "last")])
def test_finished_runs_keep_settings_without_effect(tmp_path, key, value):
    tables = load_recipe("cbml/digits").as_dict()
    tables["evaluation"][key] = value
    file = tmp_path / "recipe.toml"
    file.write_text(tomli_w.dumps(tables))
    with pytest.raises(ConfigError, match=rf"recipe.toml: evaluation: {key} .*goes with"):
        load_recipe(str(file))
    file.write_text(tomli_w.dumps(tables | {"run": {"recipe": "cbml/digits", "seed": 0}}))
    assert getattr(load_recipe(str(file)).evaluation, key) == value


def test_transforms_are_a_list_of_tables():
    assert one("cbml/digits", TRANSFORMS + "RandomInvert").data.augment == {
        "shift": 1,
        "transforms": [{"name": "RandomInvert"}],
    }
    several = one("cbml/digits", TRANSFORMS + "['RandomInvert', {name='RandomErasing', p=0.1}]").data.augment
    assert several["transforms"] == [{"name": "RandomInvert"}, {"name": "RandomErasing", "p": 0.1}]
    assert "transforms" not in one("cbml/digits").data.augment


# Lists of pairs and triplets


RECIPE = """
[data]
name = "pairs:mine.csv"
vectors = "mine.npz"
[model]
trunk = "identity"
embedding_size = 8
[loss]
name = "pml/contrastive"
[sampler]
batch_size = 4
[schedule]
epochs = 2
"""


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "mine.toml").write_text(RECIPE)
    return str(tmp_path / "mine.toml")


TRIPLETS = ("data.name=triplets:mine.csv", "data.vectors=mine.npz")


def test_metrics_and_phases_of_lists(recipe):
    pairs = load_recipe(recipe)
    assert pairs.data.listed == "pairs"
    assert {"verification_roc_auc", "verification_accuracy", "verification_eer"} <= set(pairs.metric_names())
    assert "recall_at_1" not in pairs.metric_names()
    assert reported_phases(pairs) == ["after", "training", "raw", "before", "pca", "within_class"]
    assert load_recipe(recipe, typed([*TRIPLETS, "loss.name=pml/triplet-margin"])).metric_names() == [
        "triplet_accuracy"
    ]
    assert load_recipe("cbml/digits").data.listed is None


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            ["loss.name=pml/proxy-anchor"],
            "loss.name: pml/proxy-anchor cannot train on pairs:mine.csv, which lists pairs ",
        ),
        (["loss.name=softmax"], "softmax .* it keeps values for each class; use pml/contrastive or pml/multi-sim"),
        (["loss.name=pml/fast-ap"], "pml/fast-ap .* labels are required for this loss function; use"),
        (
            ["loss.name=pml/triplet-margin"],
            "a pair that is the same adds nothing to it by itself; use pml/contr",
        ),
        (["loss.name=pml/pnp"], "it takes no indices_tuple"),
        ([*TRIPLETS, "loss.name=pml/nca"], "pml/nca .* lists triplets .*; use pml/triplet-margin or"),
        (
            ["loss.miner=pml/multi-similarity"],
            "loss.miner: pml/multi-similarity chooses pairs by labels, but",
        ),
        (["loss.memory.size=64"], "loss.memory: it pairs past images by labels"),
        (["loss.regularizer=metric-variance"], "loss.regularizer: metric-variance needs labels"),
        (
            ["sampler.name=pml/m-per-class", "sampler.m=2"],
            "sampler: pml/m-per-class with its settings draws images by labels",
        ),
        (["data.labels=clusters"], "data.labels: clusters are labels, but pairs:mine.csv lists pairs"),
        (["data.relation=shared-label"], "data.relation: a relation is between labels"),
        (["evaluation.recall_at=[1, 10]"], "evaluation.recall_at: it is for images with labels"),
        (["evaluation.validation=0.2", "evaluation.select=verification_roc_auc"], "evaluation.validation: it is for"),
        (["evaluation.verification=100"], "evaluation.verification: it is for images with labels"),
        (["evaluation.select=map_at_r", "evaluation.select_on=split"], "evaluation.select: no metric 'map_at_r'"),
        (["evaluation.select=verification_eer", "evaluation.select_on=split"], "no metric 'verification_eer'"),
        (["data.colour=1"], "data.colour: no setting of pairs:mine.csv 'colour'"),
        (["model.trunk=convnet"], "convnet is for images, and pairs:mine.csv has vectors; --set model.trunk=identity"),
        (['stages=[{epochs=1, loss={name="pml/nca"}}]'], "stages.0.loss.name: pml/nca cannot train on"),
        (["data.name=pairs:"], r"wanted pairs:FILE.csv, a file with the columns image1, image2, same and"),
    ],
)
def test_what_needs_labels_is_refused(recipe, settings, text):
    with pytest.raises(ConfigError, match=text) as caught:
        load_recipe(recipe, typed(settings))
    assert "\n" not in str(caught.value)


def test_listed_data_allow_regularizer_and_validation(recipe):
    assert (
        load_recipe(
            recipe,
            typed(["loss.regularizer=pml/lp", "evaluation.select=verification_accuracy", "evaluation.select_on=split"]),
        ).evaluation.select
        == "verification_accuracy"
    )


def test_listed_images_have_no_views(tmp_path):
    file = tmp_path / "images.toml"
    file.write_text(RECIPE.replace('vectors = "mine.npz"', "augment.shift = 1").replace('"identity"', '"convnet"'))
    assert load_recipe(str(file)).data.listed == "pairs"
    with pytest.raises(ConfigError, match="data.views: views of an image are positives by its label"):
        load_recipe(str(file), typed(["data.views=2"]))


# Vectors


@pytest.mark.parametrize("recipe", ["fit/vectors", "cbml/digits", "density/digits", "cbml/frozen", "triplets/digits"])
def test_recipes_of_images_train_heads_on_vectors(tmp_path, recipe):
    (built,) = load_recipes(
        recipe, typed([f"data.name=vectors:{file_of(tmp_path)}", "data.split=image", "model.trunk=identity"])
    ).values()
    splits = build_dataset(built.data, None)
    network = build_network(built.model, vector_input_of(built, splits))
    assert built.model.freeze == "trunk"
    assert network(splits.train.vectors).shape == (len(splits.train), built.model.embedding_size)
    assert {"raw", "pca", "before"} <= set(reported_phases(built))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.images.crop=224", "data.images.crop: it is for images, and vectors:.* has vectors; leave it out"),
        ("data.images.flip=true", "data.images.flip: it is for images"),
        ("data.augment.shift=2", "data.augment.shift: it is for images"),
        ("data.augment.transforms=RandomInvert", "data.augment.transforms: it is for images"),
        ("data.views=2", "data.views: it is for images"),
        ("data.cache=memory", "data.cache: it is for images"),
        ("data.workers=2", "data.workers: it is for images"),
        ("data.unreadable=skip", "data.unreadable: it is for images"),
        ("data.image_size=32", "data.image_size: no setting of vectors"),
        ("engine.channels_last=true", "engine.channels_last: it is for images"),
        ("model.trunk=convnet", "model.trunk: convnet is for images, and vectors:.*; --set model.trunk=identity"),
        ("model.trunk.width=3", "model.trunk.width: "),
        ("model.views=4", "views: it is for trunks of images"),
        ("model.freeze_batch_norm=true", "freeze_batch_norm: it is for trunks of images"),
        ('model.freeze=["layer1"]', "freeze: it is for trunks of images"),
    ],
)
def test_settings_of_images_are_refused_by_name(tmp_path, setting, message):
    fitting = [f"data.name=vectors:{file_of(tmp_path)}", "data.split=image"]
    with pytest.raises(ConfigError, match=message) as raised:
        load_recipe("fit/vectors", typed([*fitting, setting]))
    assert "\n" not in str(raised.value)


def test_the_trunk_of_vectors_refuses_images():
    recipe = load_recipe("cbml/digits", {"model.trunk": "identity"})
    with pytest.raises(ConfigError, match="identity is for vectors, but digits has images; set data.name = 'vec"):
        vector_input_of(recipe, build_dataset(recipe.data, None))


def test_a_path_alone_is_answered_with_the_name(tmp_path):
    file = file_of(tmp_path)
    with pytest.raises(ConfigError, match=f"for your own data type --set data.name=vectors:{file}"):
        load_recipe("fit/vectors", typed([f"data.name={file}"]))


# Options of data sets


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
    """A data set whose annotations are texts; two stand for nothing."""
    assert mask is None or mask.name == "mask.png"
    if size > 5:
        raise ValueError(f"size must be at most 5, not {size}")
    assert mode is Mode.fast
    return digits()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.name=folder:photos", "data.split=classes"], "data.split: found 'classes'; input should be 'class' or"),
        (["data.name=folder:photos", "data.image_size=16.0"], "data.image_size: found 16.0; .* a valid integer"),
        (["data.name=folder:photos", "data.path=elsewhere"], "data.path: no setting of folder:photos 'path'"),
        (["data.mode=slow"], "data.mode: found 'slow'; input should be 'fast'"),
        (["data.mask=3"], "data.mask: found 3; input should be a valid string"),
        (["data.size=big"], "data.size: found 'big'; input should be a valid number"),
    ],
)
def test_data_options_are_checked_by_annotation(monkeypatch, overrides, message):
    monkeypatch.setattr(registry, "factory", lambda what, name: plugins_images)
    with pytest.raises(ConfigError, match=message):
        one("cbml/digits", *overrides)


def test_converted_data_options_build_the_data(monkeypatch):
    monkeypatch.setattr(registry, "factory", lambda what, name: plugins_images)
    assert isinstance(
        build_dataset(
            one(
                "cbml/digits", "data.mask=mask.png", "data.size=4", "data.parts=[1.5]", "data.path=p", "data.mode=fast"
            ).data,
            None,
        ),
        DataSplits,
    )
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
@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("{name='nothing'}", "data: nothing of the plugin 'careless' gives NoneType; wanted pml_ext.plugin.DataSplits"),
        (
            "{name='unread'}",
            r"data: unread fails: ZeroDivisionError.*, in .*lambda> of the plugin 'careless', careless/__init__.py:6",
        ),
        ("{name='unread', size=2}", "data: unread refuses size = 2: ZeroDivisionError"),
    ],
)
def test_failing_factories_are_named_with_their_plugin(install_plugin, data, text):
    install_plugin("careless", FACTORIES_OF_NOTHING)
    recipe = one("cbml/digits", f"data={data}", "model.trunk={name='nothing'}")
    with pytest.raises(ConfigError, match=text):
        build_dataset(recipe.data, None)
    with pytest.raises(
        ConfigError, match="model.trunk: nothing of the plugin 'careless' gives NoneType; wanted a torch.nn.Module"
    ):
        build_trunk(recipe.model.trunk, 1, 8)


# Phases


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
def test_stages_before_the_whole_network_are_phases(tmp_path, stages, wanted):
    recipe = one(
        "cbml/digits",
        f'model.trunk={{name="convnet", blocks=2, width=8, weights="{tmp_path / "weights.pth"}"}}',
        f"stages=[{stages}]",
    )
    assert stage_before_whole(recipe) == wanted
    assert ({"head", "blocks"} & set(reported_phases(recipe))) == (set() if wanted is None else {wanted[0]})
    assert stage_before_whole(one("cbml/digits", "model.trunk.weights=random", f"stages=[{stages}]")) is None
