"""Overrides: one place reads ``KEY=VALUE``, and errors quote what was typed."""

import re
from pathlib import Path

import pytest

from pml_ext.errors import ConfigError
from pml_ext_train.launch.launch import QUICK
from pml_ext_train.recipe import Override, load_recipe, overrides_of, parse_override, tables_of


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
    given = {"loss.delta": 1.5, "model.trunk": {"name": "convnet"}}
    assert overrides_of(given) == [Override("loss.delta", 1.5), Override("model.trunk", {"name": "convnet"})]
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
    ],
)
def test_errors_quote_what_was_typed(overrides, text):
    with pytest.raises(ConfigError, match=text):
        load_recipe("cbml/digits", overrides)


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


def test_overrides_are_turned_into_tables():
    assert tables_of({"data.relation": "near", "data.relation.within": 2}) == {
        "data": {"relation": {"name": "near", "within": 2}}
    }
