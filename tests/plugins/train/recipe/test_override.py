"""Overrides: one place reads ``KEY=VALUE``, and errors quote what was typed."""

import re
from pathlib import Path

import pytest

from pml_ext.errors import ConfigError
from pml_ext_train.launch.launch import QUICK
from pml_ext_train.recipe import Override, load_recipe, load_recipes, overrides_of, parse_override, tables_of


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


def test_python_gives_a_mapping_and_no_text():
    given = {"loss.delta": 1.5, "model.trunk": {"name": "convnet"}}
    assert overrides_of(given) == [Override("loss.delta", 1.5), Override("model.trunk", {"name": "convnet"})]
    assert load_recipe("cbml/digits", {"schedule.epochs": 16}).schedule.epochs == 16
    for wrong in ("schedule.epochs=16", ["schedule.epochs=16"]):
        with pytest.raises(ConfigError, match=r"^overrides: found 'schedule.epochs=16'; wanted values by key"):
            load_recipe("cbml/digits", wrong)
    with pytest.raises(ConfigError, match="^overrides: found the key 3; wanted"):
        load_recipe("cbml/digits", {3: "a"})


def test_errors_quote_what_was_typed():
    for call, text in (
        (
            lambda: load_recipe("cbml/digits", {"schedule.epochs": 0}),
            r"^override schedule\.epochs=0: schedule\.epochs: ",
        ),
        (
            lambda: load_recipe("cbml/digits", [parse_override("schedule.epochs=0")]),
            r"^--set schedule\.epochs=0: schedule\.epochs: ",
        ),
        (lambda: load_recipe("cbml/digits", [Override("track", 3, "--track nothing")]), r"^--track nothing: track"),
        (
            lambda: load_recipe("cbml/digits", [*QUICK, Override("evaluation.figures", "none", "--quick")]),
            r"^--quick: evaluation\.figures: found 'none'",
        ),
        (
            lambda: load_recipe("cbml/digits", {"loss": "cbml"}),
            r"^override loss=cbml: loss is a table; wanted loss\.name=cbml",
        ),
    ):
        with pytest.raises(ConfigError, match=text):
            call()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["engine.compile=false", "trainer.epochs=1"], "--set trainer.epochs=1: no key 'trainer'; nearest: "),
        (["loss.alpha_pos=0.3", "loss.beta_pos=-1"], "--set loss.beta_pos=-1: loss: cbml refuses "),
        (["loss.margin=1", "loss.name=pml/contrastive"], "--set loss.margin=1: loss.margin: no setting of pml/contras"),
        (["loss.name=pml/contrastive", "loss.pos_margin=x"], "--set loss.pos_margin=x: loss.pos_margin: found 'x'"),
        (["engine.compile=false"], "{file}: loss: cbml refuses "),
    ],
)
def test_an_error_names_its_override_or_the_file(tmp_path, settings, message):
    recipe = "cbml/digits"
    if "{file}" in message:
        recipe = str(tmp_path / "mine.toml")
        Path(recipe).write_text('extends = "cbml/digits"\nloss.beta_pos = -1\n')
    with pytest.raises(ConfigError) as error:
        load_recipe(recipe, [parse_override(text) for text in settings])
    assert str(error.value).startswith(message.format(file=recipe))


def test_of_two_overrides_of_a_key_the_last_is_quoted():
    given = [parse_override("schedule.epochs=3"), parse_override("schedule.epochs=-1")]
    with pytest.raises(ConfigError, match=r"^--set schedule\.epochs=-1: "):
        load_recipes("cbml/digits", given)


def test_tables_of_overrides():
    assert tables_of({"data.relation": "near", "data.relation.within": 2}) == {
        "data": {"relation": {"name": "near", "within": 2}}
    }
