"""The variants of ``[sweep]``, and their ranges of ``[tune]``."""

import pytest

from pml_ext.errors import ConfigError, UnknownNameError
from pml_ext_train.recipe import load_recipes, ranges_of

from ....overrides import typed
from .recipes import one, write


def test_a_sweep_gives_one_recipe_per_value():
    recipes = load_recipes("cbml/omniglot-small-mvc-weight")
    assert [r.loss.settings["mvc_weight"] for r in recipes.values()] == [0.0, 0.1, 1.0, 2.0]
    assert list(recipes)[1] == "cbml/omniglot-small-mvc-weight@0.1"
    assert one("cbml/omniglot-small-mvc-weight@2.0").loss.settings["mvc_weight"] == 2.0
    swept = load_recipes("cbml/omniglot-small-gamma")
    assert [r.loss.settings["mvc_gamma"] for r in swept.values()] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert one("cbml/omniglot-small-gamma", "loss.mvc_gamma=0.7").loss.settings["mvc_gamma"] == 0.7
    with pytest.raises(UnknownNameError, match="variants: .*@0.0"):
        load_recipes("cbml/omniglot-small-mvc-weight@7")


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
    overridden = load_recipes(file, {"loss.delta": 2.0, "loss.name": "cbml"})
    assert {recipe.loss.settings["delta"] for recipe in overridden.values()} == {2.0}
    (chosen,) = load_recipes(f"{file}@15,const").values()
    assert chosen.schedule.epochs == 15


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ("sweep = 3", r"\[sweep\]: found 3; wanted a list of values by key"),
        (
            '[sweep]\n"loss.miner" = [{name = "pml/multi-similarity"}, {name = "pml/multi-similarity", epsilon = 0.2}]',
            r"\[sweep\]: two variants have the name 'pml/multi-similarity'; wanted tables by name",
        ),
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


TUNED = """extends = "cbml/digits"
[tune]
"optimizer.lr" = { low = 1e-4, high = 1e-2, log = true }
"loss.mvc_weight" = { low = 0.1, high = 10.0, log = true }
"""


def ranges_by_variant(file: str, *overrides: str):
    found = {}
    for name, ranges in ranges_of(file, typed(overrides)).items():
        found[name.removeprefix(file).removeprefix("@")] = [*ranges]
    return found


def test_what_a_variant_sets_is_not_tuned(tmp_path):
    rows = """[sweep.rows.fixed.loss]
mvc_weight = 0.0
[sweep.rows.free]
[sweep.rows.ranged]
loss = { mvc_weight = 1.0 }
tune = { "loss.mvc_weight" = { low = 0.5, high = 2.0 } }
"""
    file = write(tmp_path, TUNED + rows)
    both = ["optimizer.lr", "loss.mvc_weight"]
    assert ranges_by_variant(file) == {"fixed": ["optimizer.lr"], "free": both, "ranged": both}
    assert ranges_of(file)[f"{file}@ranged"]["loss.mvc_weight"].low == 0.5
    for label in ("fixed", "free", "ranged"):
        held = ranges_of(f"{file}@{label}", {"loss": {"mvc_weight": 2.0}})
        assert list(held[f"{file}@{label}"]) == ["optimizer.lr"]
    listed = TUNED + '[sweep]\n"optimizer" = [{ lr = 0.1 }, { weight_decay = 0.1 }]\n'
    assert [*ranges_by_variant(write(tmp_path, listed, "listed.toml")).values()] == [["loss.mvc_weight"], both]
    child = write(tmp_path, f'extends = "{file}@fixed"\n', "child.toml")
    assert ranges_by_variant(child) == {"": ["optimizer.lr"]}


def test_what_a_variant_inherits_is_tuned(tmp_path):
    base = 'extends = "cbml/digits"\noptimizer = { lr = 0.5 }\nloss = { mvc_weight = 0.5 }\n'
    write(tmp_path, base + '[tune]\n"loss.mvc_gamma" = { low = 0.1, high = 1.0 }\n', "base.toml")
    row = '[sweep.rows.other]\nextends = "base.toml"\nloss = { mvc_weight = 0.1, mvc_gamma = 0.2 }\n'
    file = write(tmp_path, TUNED + row)
    assert ranges_by_variant(file) == {"other": ["optimizer.lr"]}  # not those that the row itself sets
    assert load_recipes(file)[f"{file}@other"].optimizer.lr == 0.5
    child = write(tmp_path, 'extends = "mine.toml"\nsweep.rows.other.optimizer.weight_decay = 0.1\n', "child.toml")
    assert ranges_by_variant(child) == {"other": ["optimizer.lr"]}
    child = write(tmp_path, 'extends = "mine.toml"\nsweep.rows.other.optimizer.lr = 0.1\n', "child.toml")
    assert ranges_by_variant(child) == {"other": []}


@pytest.mark.parametrize("override", ["loss={mvc_gamma=0.7}", "loss.name=pml/contrastive", "loss={name='pml/angular'}"])
def test_a_list_that_overrides_replace_leaves_the_sweep(override):
    assert list(load_recipes("cbml/omniglot-small-gamma", typed([override]))) == ["cbml/omniglot-small-gamma"]
    assert len(load_recipes("cbml/omniglot-small-gamma", {"loss.name": "cbml", "loss.mvc_weight": 3.0})) == 6


def test_overrides_of_other_keys_leave_the_sweep(tmp_path):
    stage = '{ epochs = 1, loss = { name = "pml/contrastive", pos_margin = 0.%d } }'
    stages = f'"stages" = [[{stage % 1}], [{stage % 2}]]\n'
    trunks = '"model.trunk" = ["convnet", "mlp"]\n'
    sizes = '"optimizer" = [{ lr = 0.1 }, { weight_decay = 0.1 }]\n'
    file = write(tmp_path, f'extends = "cbml/digits"\n[sweep]\n{stages}{trunks}{sizes}')
    assert len(load_recipes(file, {"model.trunk.width": 8, "engine.deterministic": True}, check=False)) == 8


def test_overrides_that_make_variants_equal_are_refused():
    weights = "cbml/omniglot-small-mvc-weight"
    with pytest.raises(
        ConfigError, match=rf"makes the variants {weights}@0.1 and {weights}@1.0 equal; .*: {weights}@0.1$"
    ):
        load_recipes(weights, typed(["loss={mvc_weight=2.0}"]))
    with pytest.raises(ConfigError, match=rf"makes the variants {weights}@0.0 and {weights}@0.1 equal"):
        load_recipes(weights, typed(["loss.name=pml/contrastive"]))
    assert one(f"{weights}@1.0", "loss.name=pml/contrastive").loss.name == "pml/contrastive"
