"""The keys of a recipe: one line for everything that is wrong."""

import pytest
import tomli_w

from pml_ext.errors import ConfigError
from pml_ext_train.recipe import load_recipe, load_recipes

from ....overrides import typed
from .recipes import one


def test_stages_come_before_the_recipes_own_loss():
    recipe = one("cbml/digits", "stages=[{epochs = 2, loss = {name = 'pml/triplet-margin', margin = 0.2}}]")
    stages = recipe.all_stages()
    assert [(stage.epochs, stage.loss.name) for stage in stages] == [(2, "pml/triplet-margin"), (13, "cbml")]
    assert stages[0].sampler == recipe.sampler


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("loss.alpha_poss=1", r"loss.alpha_poss: no setting of cbml 'alpha_poss'; nearest: alpha_pos"),
        ("loss.alpha_pos=high", r"loss.alpha_pos: found 'high'"),
        ("loss.beta_neg=-1", r"loss: cbml refuses .*beta_neg"),
        ("loss.miner=pml/batch-hardd", r"loss.miner.name: no miner 'pml/batch-hardd'; nearest: pml/batch-hard"),
        ("schedule.epochs=0", r"schedule.epochs: found 0; input should be greater than or equal to 1"),
        ("engine.epochs=3", r"engine: no key 'epochs'; it belongs to \[schedule\]"),
        ("sampler.lr=1", r"sampler.lr: no setting of pml/m-per-class 'lr'; it belongs to \[optimizer\]"),
        ("sampler={name='shuffle', m=4}", r"sampler.m: no setting of shuffle 'm'; known: none"),
        ("model.trunk=resnet18", r"model.trunk.name: no trunk 'resnet18'; nearest: .*torchvision/resnet18"),
        ("model.trunk.in_channels=3", r"model.trunk.in_channels: no setting of convnet 'in_channels'"),
        ("data.augment.shfit=2", r"data.augment.shfit: no setting of augment 'shfit'; nearest: shift"),
        ("loss.optimizer.lr=-1", r"loss.optimizer.*lr"),
        ("evaluation.select=map", r"evaluation: select, .* goes with validation"),
        ("evaluation.select_on=test", "goes with validation .* or select_on = 'test'"),
        ("evaluation={select_on='test', select='nmi', validation=0.2}", "goes with validation"),
        ("evaluation.validation_trains=true", "validation_trains goes with validation"),
        ("evaluation.held_out=last", "held_out = 'last' goes with validation"),
        ("evaluation.every=2", "every goes with select, .* test_every is for curves"),
        ("evaluation.recall_at=[10, 100]", "recall_at includes 1, which every run reports"),
        ("evaluation.shortlist=8", r"evaluation.shortlist: found 8, but no loss .* learned metric"),
        ("loss.memory.size=40", r"loss.memory.size: found 40; it holds at least one batch, here 80"),
        ("data.images={crop=30, resize=24}", r"data.images: resize \(24\) must be at least crop \(30\)"),
        ("data.images.mean=[1.0]", "mean and std go together"),
        ("data.images.value_range=255", "value_range = 255 goes with the mean and std"),
        ("data.images.random_crop_scale=[0.9, 0.2]", "a range of areas, smaller first"),
        (
            "data={name='digits', labels='clusters', pseudo={batch_size=[40, 20]}}",
            "pseudo.batch_size: found .* smaller",
        ),
        ("loss.memory={size=80, start_epoch=99}", r"loss.memory.start_epoch: found 99, but the run has \d+ epochs"),
        ("data.images={random_crop=true, random_crop_scale=[0.2, 1.0]}", "leave out one"),
        ("epochs", r"--set epochs: wanted KEY=VALUE"),
        ("optimizer.betas=[2, 2]", r"^--set optimizer.betas=.2, 2.: optimizer: adam refuses betas = .2, 2."),
        ("loss.delta=-1", r"^--set loss.delta=-1: loss: cbml refuses .* delta = -1: delta of CBMLLoss"),
        ("stages=[{epochs=20, loss={name='pml/triplet-margin'}}]", "stages alone have 20 epochs"),
        (
            "stages=[{epochs=2, loss={name='pml/triplet-margin', margn=1}}]",
            r"stages.0.loss.margn: no setting of pml/triplet-margin 'margn'; nearest: m",
        ),
    ],
)
def test_a_wrong_setting_is_one_line_with_key(override, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_recipes("cbml/digits", typed([override]))
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


TRANSFORMS = "data.augment.transforms="


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
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
    ],
)
def test_views_and_transforms_that_do_not_fit(overrides, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_recipes("cbml/digits", typed(overrides))
    assert "\n" not in str(caught.value)


def test_transforms_are_a_list_of_tables():
    named = one("cbml/digits", TRANSFORMS + "RandomInvert").data.augment
    assert named == {"shift": 1, "transforms": [{"name": "RandomInvert"}]}
    several = one("cbml/digits", TRANSFORMS + "['RandomInvert', {name='RandomErasing', p=0.1}]").data.augment
    assert several["transforms"] == [{"name": "RandomInvert"}, {"name": "RandomErasing", "p": 0.1}]
    assert "transforms" not in one("cbml/digits").data.augment
