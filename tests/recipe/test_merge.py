"""Recipes: merging, sweeps and overrides, and one line for a file that is wrong."""

from pathlib import Path

import pytest
import tomli_w

from pml_ext.errors import ConfigError, UnknownNameError
from pml_ext.recipe import load_recipes, origin_of, overridden, pipelines, ranges_of, read_tables, variant_tables
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


def test_names_go_before_settings():
    tables = {"optimizer": {"name": "adam", "lr": 1}}
    found = overridden(tables, [("optimizer.lr", 2), ("optimizer.name", "sgd")])
    assert found == {"optimizer": {"name": "sgd", "lr": 2}}
    assert tables == {"optimizer": {"name": "adam", "lr": 1}}


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (["sampler.m=4", "sampler={m=2, batch_size=32}"], {"name": "pml/m-per-class", "m": 2, "batch_size": 32}),
        (["sampler={m=2}", "sampler.m=4"], {"name": "pml/m-per-class", "m": 4, "batch_size": 120}),
        (["sampler.batch_size=64", "sampler={name='shuffle'}"], {"name": "shuffle", "batch_size": 64}),
        (["sampler={name='shuffle', batch_size=32}", "sampler.name=tree"], {"name": "tree"}),
        (["sampler.batch_size=64", "sampler={name='shuffle', batch_size=32}"], {"name": "shuffle", "batch_size": 32}),
    ],
)
def test_the_last_value_of_a_key_holds_in_tables_too(tmp_path, overrides, wanted):
    tables = {"sampler": {"name": "pml/m-per-class", "m": 8, "batch_size": 120}}
    settings = [(override.key, override.value) for override in typed(overrides)]
    assert overridden(tables, settings) == {"sampler": wanted}


def test_names_inside_of_tables_go_first():
    tables = {"model": {"trunk": "convnet"}, "origin": {"loss.name": "paper"}}
    settings = [("model.trunk.width", 8), ("model", {"trunk": {"name": "mlp"}, "embedding_size": 4})]
    found = overridden(tables, [*settings, ("origin", {"loss.name": "ours"})])
    assert found["model"] == {"trunk": {"name": "mlp", "width": 8}, "embedding_size": 4}
    assert found["origin"] == {"loss.name": "ours"}
    found = overridden(tables, [("model", {"trunk": {"name": "mlp", "width": 8}}), ("model.trunk", "convnet")])
    assert found["model"] == {"trunk": {"name": "convnet"}}


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (
            ["loss.optimizer={name='sgd', lr=1}", "loss.name=b"],
            {"name": "b", "optimizer": {"name": "sgd", "lr": 1}},
        ),
        (["loss={miner='m', name='b'}"], {"name": "b", "miner": "m"}),
        (
            ["loss.miner={name='m', k=2}", "loss={name='b'}"],
            {"name": "b", "miner": {"name": "m", "k": 2}},
        ),
        (["loss.miner=m", "loss.name=b"], {"name": "b", "miner": "m"}),
    ],
)
def test_names_of_parts_hold_whatever_the_order(overrides, wanted):
    settings = [(override.key, override.value) for override in typed(overrides)]
    for given in (settings, settings[::-1]):
        assert overridden({"loss": {"name": "a", "margin": 0.1}}, given) == {"loss": wanted}


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
        ConfigError, match=rf"leaves the variants {weights}@0.1 and {weights}@1.0 equal; .*: {weights}@0.1$"
    ):
        load_recipes(weights, typed(["loss={mvc_weight=2.0}"]))
    with pytest.raises(ConfigError, match=rf"leaves the variants {weights}@0.0 and {weights}@0.1 equal"):
        load_recipes(weights, typed(["loss.name=pml/contrastive"]))
    assert one(f"{weights}@1.0", "loss.name=pml/contrastive").loss.name == "pml/contrastive"


def test_a_variant_of_a_file_beside_it_is_extended(tmp_path, monkeypatch):
    write(tmp_path, 'extends = "cbml/digits"\n[sweep]\n"loss.mvc_weight" = [0.5, 1.0]\n', "base.toml")
    child = write(tmp_path, 'extends = "base.toml@0.5"\n')
    monkeypatch.chdir("/")
    assert one(child).loss.settings["mvc_weight"] == 0.5


def test_files_that_are_no_recipes_are_no_pipelines(tmp_path, monkeypatch):
    (tmp_path / "pipelines").mkdir()
    for name in ("mine.toml", "mine.toml~", ".DS_Store"):
        write(tmp_path / "pipelines", "", name)
    monkeypatch.setattr("pml_ext.recipe.merge.importlib.resources.files", lambda _: tmp_path)
    assert list(pipelines()) == ["pipelines/mine"]
