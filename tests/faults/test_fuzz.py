"""Recipes, overrides and settings that nobody meant: a valid recipe, or the project's own error of one line."""

import copy
import functools
import operator
import warnings

import pytest

pytest.importorskip("hypothesis")
from hypothesis import given, settings, strategies as st

from pml_ext import registry
from pml_ext.errors import ConfigError, PmlExtError
from pml_ext_train.recipe import load_recipes, read_tables, validate

from ..overrides import typed

TABLES = read_tables("cbml/digits")
SMALL = {
    "data": {"name": "digits"},
    "model": {"trunk": {"name": "mlp"}, "embedding_size": 4},
    "schedule": {"epochs": 2},
    "loss": {"name": "pml/contrastive"},
}
KEYS = st.sampled_from(["name", "weight", "x" * 300, "", "reducer", "distance", "miner", "a.b"])
TEXTS = st.sampled_from(["", "a", "cosine", "none", "mean", "cbml", "a" * 5000, "\x00\x1b[31m\n", "é\u202e", "../.."])
fixed = settings(derandomize=True, deadline=None, database=None)


def values_with(integers):
    """Values of the types of TOML: single ones, lists and tables."""
    single = st.booleans() | integers | st.floats() | TEXTS | st.text(max_size=9) | st.dates() | st.times()
    return st.recursive(single, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=2))


ANY = values_with(st.integers())
OF_SETTINGS = values_with(st.integers(max_value=10_000))  # what a machine can just hold takes it a while to fill


def places(tables, path=()):
    """The paths of everything in nested tables and lists."""
    items = tables.items() if isinstance(tables, dict) else enumerate(tables) if isinstance(tables, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


@st.composite
def mutated(draw):
    """The tables of a recipe with one to three things changed, taken out, put in or nested."""
    tables = copy.deepcopy(TABLES)
    for _ in range(draw(st.integers(1, 3))):
        *above, key = draw(st.sampled_from(list(places(tables))))
        owner = functools.reduce(operator.getitem, above, tables)
        change = draw(st.sampled_from(["value", "removal", "addition", "nesting"]))
        value = draw(ANY)
        if change == "removal":
            del owner[key]
        elif change == "addition" and isinstance(owner, dict):
            owner[draw(KEYS)] = value
        else:
            depth = 200 if change == "nesting" else 0
            owner[key] = functools.reduce(lambda inner, _: {"name": inner}, range(depth), value)
    return tables


@st.composite
def overrides(draw):
    """What somebody might type behind ``--set``."""
    path = ".".join(map(str, draw(st.sampled_from(list(places(TABLES))))))
    odd = ["1", "-1", "nan", "[]", "{", '{name=""}', "[" * 2000, "9" * 5000, "true", "''", "\x1b[2J", "2020-01-01"]
    value = draw(TEXTS | st.sampled_from([*odd, '{name="pml/mean", a={b=[1]}}', "\udcff", "="]))
    return draw(st.sampled_from([f"{path}={value}", f"{path}.x={value}", f"{'a.' * 500}b=1", path, "=1"]))


@st.composite
def single_settings(draw):
    """The tables of a recipe in which one setting of one component has any value."""
    component = draw(st.sampled_from(registry.components()))
    setting = draw(st.sampled_from([*component.settings, "weight", "no_such_setting"]))
    table = {"name": component.name, setting: draw(OF_SETTINGS)}
    if component.kind in ("loss", "sampler"):
        return SMALL | {component.kind: table}
    return SMALL | {"loss": {"name": "pml/contrastive", component.kind: table}}


def error_of(attempt):
    """The text of the project's own error, or an empty string; any other error is raised."""
    try:
        with warnings.catch_warnings(action="ignore"):
            attempt()
    except PmlExtError as error:
        return str(error)
    return ""


def is_one_line(text):
    return text.isprintable() and len(text) <= 600


@settings(fixed, max_examples=60)
@given(mutated())
def test_mutated_recipes_give_one_line(tables):
    assert is_one_line(error_of(lambda: validate(tables, "recipe.toml")))


@settings(fixed, max_examples=40)
@given(overrides())
def test_overrides_give_at_most_one_line(text):
    assert is_one_line(error_of(lambda: load_recipes("cbml/digits", typed([text]))))


@settings(fixed, max_examples=100)
@given(single_settings())
def test_single_settings_give_one_line(tables):
    assert is_one_line(error_of(lambda: validate(tables, "recipe.toml")))


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
    assert is_one_line(str(caught.value))
