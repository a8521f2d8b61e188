"""Recipes, overrides and settings that nobody meant."""

import random

import pytest

pytest.importorskip("hypothesis")
from hypothesis import given, settings, strategies as st

from pml_ext.errors import ConfigError
from pml_ext_train.recipe import load_recipes, read_tables, validate

from ..overrides import typed
from . import fuzz

TABLES = read_tables("cbml/digits")


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(st.integers(0, 2**32))
def test_mutated_recipes_give_one_line(seed):
    tables = fuzz.mutated(TABLES, random.Random(seed))
    assert fuzz.told(lambda: validate(tables, "recipe.toml")) == ""


@settings(max_examples=40, derandomize=True, deadline=None, database=None)
@given(st.integers(0, 2**32))
def test_overrides_give_at_most_one_line(seed):
    text = fuzz.override(TABLES, random.Random(seed))
    assert fuzz.told(lambda: load_recipes("cbml/digits", typed([text]))) == ""


def test_single_settings_give_one_line():
    raw = {text: case for case, text in fuzz.settings(100, 1, largest=10_000) if text}
    assert raw == {}


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ("optimizer.betas={name=''}", r"optimizer.*betas.*found \{'name': ''\}|optimizer.*refuses"),
        ("loss={name='pml/contrastive', pos_margin={name='pml/mean'}}", r"loss.pos_margin: found"),
        (
            "loss={name='pml/contrastive', reducer='mean'}",
            r"loss.reducer: found 'mean'; wanted a table .* of a reducer",
        ),
        ("loss.mvc_weight=" + "9" * 5000, r"integer"),
        ("loss.mvc_weight=" + "[" * 3000, r"nested too deep"),
        ("loss.name=" + "x" * 9000, r"^--set loss.name=xxx"),
    ],
)
def test_former_raw_errors_are_lines(override, wanted):
    with pytest.raises(ConfigError, match=wanted) as caught:
        load_recipes("cbml/digits", typed([override]))
    assert len(str(caught.value)) <= 600
    assert str(caught.value).isprintable()
