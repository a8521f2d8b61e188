"""Recipes of listed pairs and triplets: losses and settings that need labels are refused by name."""

import pytest

from pml_ext.errors import ConfigError
from pml_ext_train.recipe import load_recipe, reported_phases

from ....overrides import typed

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
    triplets = load_recipe(recipe, typed([*TRIPLETS, "loss.name=pml/triplet-margin"]))
    assert triplets.metric_names() == ["triplet_accuracy"]
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
    settings = ["loss.regularizer=pml/lp", "evaluation.select=verification_accuracy", "evaluation.select_on=split"]
    built = load_recipe(recipe, typed(settings))
    assert built.evaluation.select == "verification_accuracy"


def test_listed_images_have_no_views(tmp_path):
    file = tmp_path / "images.toml"
    file.write_text(RECIPE.replace('vectors = "mine.npz"', "augment.shift = 1").replace('"identity"', '"convnet"'))
    assert load_recipe(str(file)).data.listed == "pairs"
    with pytest.raises(ConfigError, match="data.views: views of an image are positives by its label"):
        load_recipe(str(file), typed(["data.views=2"]))
