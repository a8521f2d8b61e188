"""Recipes: merging, sweeps, overrides, and one line for everything that is wrong."""

from collections.abc import Sequence  # in an annotation that is a text
from enum import StrEnum
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from pytorch_metric_learning.losses import TripletMarginLoss
from pytorch_metric_learning.reducers import ClassWeightedReducer

from pml_ext import CrossBatchMemory, HardPairMiner, RegularizedLoss, registry
from pml_ext.data import DataSplits, LabeledImages
from pml_ext.errors import ConfigError, UnknownNameError
from pml_ext.recipe import build_dataset, build_loss, load_recipes, loss_context, origin_of, read_tables, variant_tables
from pml_ext.recipe.build import merged
from pml_ext.training.stages import build_stages


def one(name: str, *overrides: str):
    recipes = load_recipes(name, overrides)
    assert len(recipes) == 1
    return next(iter(recipes.values()))


def write(folder: Path, text: str, name: str = "mine.toml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_extends_merges_and_another_name_replaces():
    recipe = one("cbml/digits")
    assert recipe.loss.name == "cbml"
    assert recipe.loss.miner is None  # the parent's miner belongs to the parent's loss
    assert recipe.sampler == one("pml/multi-similarity/digits").sampler
    assert merged({"a": {"name": "x", "p": 1}}, {"a": {"q": 2}}) == {"a": {"name": "x", "p": 1, "q": 2}}
    assert merged({"a": {"name": "x", "p": 1}}, {"a": {"name": "y"}}) == {"a": {"name": "y"}}
    assert merged({"a": {"name": "x", "p": 1}}, {"a": {"name": "x", "p": 3}}) == {"a": {"name": "x", "p": 3}}


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


def test_overrides():
    assert one("cbml/digits", "loss.mvc_weight=0.25").loss.settings["mvc_weight"] == 0.25
    assert one("cbml/digits", "loss.averaging=sqrt").loss.settings["averaging"] == "sqrt"
    assert one("cbml/digits", "evaluation.recall_at=[1, 2, 4, 8, 16]").evaluation.recall_at == [1, 2, 4, 8, 16]
    assert one("cbml/digits", "loss.name=pml/contrastive").loss.settings == {}
    assert one("cbml/digits", "data.name=digits-unseen", "model.trunk=mlp").model.trunk.name == "mlp"
    both = "loss.name=pml/contrastive", "loss.neg_margin=0.5"
    assert one("cbml/digits", *both) == one("cbml/digits", *reversed(both))
    assert one("cbml/digits", *both).loss.settings == {"neg_margin": 0.5}


def test_sweeps():
    recipes = load_recipes("cbml/omniglot-small-mvc-weight")
    assert [r.loss.settings["mvc_weight"] for r in recipes.values()] == [0.0, 0.1, 1.0, 2.0]
    assert list(recipes)[1] == "cbml/omniglot-small-mvc-weight@0.1"
    assert one("cbml/omniglot-small-mvc-weight@2.0").loss.settings["mvc_weight"] == 2.0
    swept = load_recipes("cbml/omniglot-small-gamma")
    assert [r.loss.settings["mvc_gamma"] for r in swept.values()] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert one("cbml/omniglot-small-gamma", "loss.mvc_gamma=0.7").loss.settings["mvc_gamma"] == 0.7
    with pytest.raises(UnknownNameError, match="variants: .*@0.0"):
        load_recipes("cbml/omniglot-small-mvc-weight@7")


def test_a_loss_of_pml_with_classes_takes_the_labels_that_held_out_classes_leave():
    (recipe,) = load_recipes("pml/proxy-anchor/digits").values()
    embeddings = torch.randn(6, recipe.model.embedding_size, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([1, 4, 9, 9, 4, 1])
    loss, _ = build_loss(recipe.loss, loss_context(recipe, [1, 4, 9]))
    plain, _ = build_loss(recipe.loss, loss_context(recipe, [0, 1, 2]))
    plain.load_state_dict(loss.state_dict())
    expected = plain(embeddings, torch.tensor([0, 1, 2, 2, 1, 0]))
    assert loss(embeddings, labels) == loss(embeddings, labels=labels) == expected


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


def test_a_sweep_over_tables_by_name(tmp_path):
    text = """extends = "cbml/digits"
[sweep]
"schedule.epochs" = [13, 15]
[sweep.rows.const]
loss = { averaging = "const", delta = 0.25 }
[sweep.rows.triplets]
extends = ["pml/triplet-margin/digits", "pipelines/googlenet"]
data.name = "digits-unseen"
"""
    file = write(tmp_path, text)
    recipes = load_recipes(file)
    assert [name.partition("@")[2] for name in recipes] == ["13,const", "13,triplets", "15,const", "15,triplets"]
    const, triplets = list(recipes.values())[:2]
    assert (const.loss.settings["delta"], const.loss.settings["alpha_pos"], const.schedule.epochs) == (0.25, 0.5, 13)
    found = triplets.loss.name, triplets.data.name, triplets.data.images.resize
    assert found == ("pml/triplet-margin", "digits-unseen", 256)
    assert triplets.sampler == const.sampler
    overridden = load_recipes(file, ["loss.delta=2.0", "loss.name=cbml"])
    assert {recipe.loss.settings["delta"] for recipe in overridden.values()} == {2.0}
    (chosen,) = load_recipes(f"{file}@15,const").values()
    assert chosen.schedule.epochs == 15


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ("sweep = 3", r"\[sweep\]: found 3; wanted a list of values by key"),
        ("[sweep.rows.a]\nextends = 3", "sweep: a: extends: found 3, wanted the name of a recipe"),
        ("[sweep.rows.a]\nextends = 'cmbl/digits'", "sweep: a: extends: no recipe 'cmbl/digits'"),
        ("[sweep.rows.a]\nloss.averging = 'log'", "loss.averging: no setting of cbml 'averging'; nearest: averaging"),
        ('[origin]\nlos = "paper"', r"origin.los: no table 'los'; nearest: loss"),
        (
            '[origin]\n"schedule.epoch" = "us"',
            r"origin.schedule.epoch: no key of \[schedule\] 'epoch'; nearest: epochs",
        ),
    ],
)
def test_a_sweep_or_an_origin_that_is_none(tmp_path, tables, message):
    with pytest.raises(ConfigError, match=message):
        load_recipes(write(tmp_path, f'extends = "cbml/digits"\n{tables}\n'))


def test_stages():
    recipe = one("cbml/digits", "stages=[{epochs = 2, loss = {name = 'pml/triplet-margin', margin = 0.2}}]")
    stages = recipe.all_stages()
    assert [(stage.epochs, stage.loss.name) for stage in stages] == [(2, "pml/triplet-margin"), (13, "cbml")]
    assert stages[0].sampler == recipe.sampler
    with pytest.raises(ConfigError, match="stages take 20 epochs"):
        one("cbml/digits", "stages=[{epochs = 20, loss = {name = 'pml/triplet-margin'}}]")
    with pytest.raises(ConfigError, match=r"stages.0.loss.margn: no setting of pml/triplet-margin 'margn'; nearest: m"):
        one("cbml/digits", "stages=[{epochs = 2, loss = {name = 'pml/triplet-margin', margn = 1}}]")


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


def test_more_than_anybody_means_is_refused_in_a_line(tmp_path):
    deep = ".".join("a" * 100_000)
    lists = "\n".join(f'"loss.{key}" = {list(range(100_000))}' for key in ("beta_pos", "beta_neg"))
    for text, message in (
        (
            f'extends = "cbml/digits"\n[sweep]\n{lists}\n',
            r"\[sweep\] has 10,000,000,000 variants; wanted at most 10,000",
        ),
        (f'extends = "cbml/digits"\nloss.{deep} = 1\n', "mine.toml: a key is nested too deep"),
        (f'extends = "cbml/digits"\n[loss."a".{deep}]\n', "mine.toml: a key is nested too deep"),
        (f'description = "{"many words. " * 1000}"\nextends = "cbml/digit"\n', "no recipe 'cbml/digit'"),
    ):
        with pytest.raises(ConfigError, match=message) as caught:
            load_recipes(write(tmp_path, text), check=False)
        assert len(str(caught.value)) <= 600
    for override, message in (
        (f"{deep}=1", r"^--set a.a.a.*: nested too deep; wanted a key of few parts"),
        (f"loss={{{deep}=1}}", r"^--set loss={a.a.a.*: nested too deep; wanted a key of few parts"),
        (f"schedule.epochs={2**62}", rf"epochs: found {2**62}; .* less than or equal to 1000000000$"),
        (f"sampler.batch_size={2**62}", "less than or equal to 1000000000"),
        (f"data.workers={2**62}", "less than or equal to 1000000000"),
    ):
        with pytest.raises(ConfigError, match=message) as caught:
            load_recipes("cbml/digits", [override], check=False)
        assert len(str(caught.value)) <= 600


def test_another_data_set_keeps_how_images_are_read(tmp_path):
    data = 'data = { workers = 2, unreadable = "skip", labels = "clusters", pseudo = { clusters = 7 } }'
    parent = write(tmp_path, f'extends = "cbml/digits"\n{data}\n', "parent.toml")
    child = write(tmp_path, 'extends = "parent.toml"\n[data]\nname = "digits-unseen"\n', "child.toml")
    for recipe in (one(child), one(parent, "data.name=digits-unseen")):
        assert recipe.data.name == "digits-unseen"
        assert (recipe.data.workers, recipe.data.unreadable) == (2, "skip")
        assert (recipe.data.labels, recipe.data.pseudo.clusters) == ("clusters", 7)


def test_what_a_choice_extends_leaves_the_recipes_own_origins(tmp_path):
    write(tmp_path, 'extends = "cbml/digits"\n[origin]\nloss = "paper"\noptimizer = "program"\n', "other.toml")
    sweep = '[sweep.data.other]\nextends = "other.toml"\n[sweep.data.own]\n[sweep.rows.a]\nloss = { epsilon = 0.2 }\n'
    origin = '[origin]\n"loss.epsilon" = "paper, Table 1"\noptimizer = "ours"\n'
    file = write(tmp_path, f'extends = "cbml/digits"\n{sweep}{origin}', "swept.toml")
    of = variant_tables(file)[f"{file}@other,a"]["origin"]
    keys = ("loss.epsilon", "loss.beta_pos", "optimizer.lr")
    assert [origin_of(key, of) for key in keys] == ["paper, Table 1", "paper", "ours"]


def test_a_recipe_survives_being_written(tmp_path):
    recipe = one("pml/proxy-anchor/digits", "evaluation.validation=0.3", "evaluation.select=map_at_r")
    file = write(tmp_path, tomli_w.dumps(recipe.as_dict()))
    assert one(file).as_dict() == recipe.as_dict()


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
        ("model.trunk=resnet18", r"model.trunk.name: no trunk 'resnet18'; nearest: .*torchvision/resnet18"),
        ("model.trunk.in_channels=3", r"model.trunk.in_channels: no setting of convnet 'in_channels'"),
        ("data.augment.shfit=2", r"data.augment.shfit: no setting of augment 'shfit'; nearest: shift"),
        ("loss.optimizer.lr=-1", r"loss.optimizer.*lr"),
        ("evaluation.select=map", r"evaluation: select .* goes with validation"),
        ("evaluation.select_on=test", "goes with validation .* or select_on = 'test'"),
        ("evaluation={select_on='test', select='nmi', validation=0.2}", "goes with validation"),
        ("evaluation.validation_trains=true", "validation_trains goes with validation"),
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
        ("loss.memory={size=80, start_epoch=99}", r"loss.memory.start_epoch: found 99; the run has \d+ epochs"),
        ("data.images={random_crop=true, random_crop_scale=[0.2, 1.0]}", "leave out one"),
        ("epochs", r"--set epochs: wanted KEY=VALUE"),
    ],
)
def test_what_is_wrong_is_one_line_with_the_key(override, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_recipes("cbml/digits", [override])
    assert "\n" not in str(caught.value)


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
    return mode


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
    assert build_dataset(one("cbml/digits", *overrides).data, None) is Mode.fast
    with pytest.raises(ConfigError, match=r"data: digits refuses size = 7: size must be at most 5, not 7"):
        build_dataset(one("cbml/digits", "data.size=7").data, None)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="no such recipe file"):
        load_recipes(str(tmp_path / "absent.toml"))
    for text, message in (
        ("loss = ", "mine.toml: not valid TOML: Invalid value"),
        ('extends = "mine.toml"', "extends itself"),
        ('extends = "cbml/digit"', "extends: no recipe 'cbml/digit'; nearest: cbml/digits"),
        ("[loss]\nname = 'cbml'", "mine.toml: data: missing"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_recipes(write(tmp_path, text))
    with pytest.raises(UnknownNameError, match="no recipe 'cbml/digit'; nearest: cbml/digits"):
        load_recipes("cbml/digit")


def test_a_file_extends_a_file_beside_it(tmp_path):
    assert one("cbml/omniglot-small").paper is not None
    assert one(write(tmp_path, 'extends = "cbml/omniglot-small"\n')).paper is None  # a paper is not inherited
    write(tmp_path, 'extends = "cbml/digits"\n[loss]\nmvc_weight = 0.5\n', "parent.toml")
    child = write(tmp_path, 'extends = "parent.toml"\n[schedule]\nepochs = 13\n')
    recipe = one(child)
    assert (recipe.loss.settings["mvc_weight"], recipe.schedule.epochs) == (0.5, 13)
    assert read_tables(child)["sampler"]["m"] == 8


def test_folders_may_have_the_sign_of_variants(tmp_path):
    (tmp_path / "with@sign").mkdir()
    file = write(tmp_path / "with@sign", 'extends = "cbml/digits"\n[sweep]\n"loss.mvc_weight" = [0.0, 1.0]\n')
    assert list(load_recipes(file)) == [f"{file}@0.0", f"{file}@1.0"]
    assert one(f"{file}@1.0").loss.settings["mvc_weight"] == 1.0
