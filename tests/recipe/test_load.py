"""Recipes with everything that goes over them, checked."""

from pathlib import Path

import pytest
import tomli_w

from pml_ext.errors import ConfigError
from pml_ext.recipe import load_recipes
from pml_ext.recipe.tables import merged

from ..overrides import typed


def one(name: str, *overrides: str):
    recipes = load_recipes(name, typed(overrides))
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


def test_overrides():
    assert one("cbml/digits", "loss.mvc_weight=0.25").loss.settings["mvc_weight"] == 0.25
    assert one("cbml/digits", "loss.averaging=sqrt").loss.settings["averaging"] == "sqrt"
    assert one("cbml/digits", "evaluation.recall_at=[1, 2, 4, 8, 16]").evaluation.recall_at == [1, 2, 4, 8, 16]
    assert one("cbml/digits", "loss.name=pml/contrastive").loss.settings == {}
    assert one("cbml/digits", "data.name=digits-unseen", "model.trunk=mlp").model.trunk.name == "mlp"
    both = "loss.name=pml/contrastive", "loss.neg_margin=0.5"
    assert one("cbml/digits", *both) == one("cbml/digits", *reversed(both))
    assert one("cbml/digits", *both).loss.settings == {"neg_margin": 0.5}


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
            load_recipes("cbml/digits", typed([override]), check=False)
        assert len(str(caught.value)) <= 600


def test_a_recipe_survives_being_written(tmp_path):
    recipe = one("pml/proxy-anchor/digits", "evaluation.validation=0.3", "evaluation.select=map_at_r")
    file = write(tmp_path, tomli_w.dumps(recipe.as_dict()))
    assert one(file).as_dict() == recipe.as_dict()
