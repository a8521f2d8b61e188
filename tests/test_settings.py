"""Checks of settings, and the settings of classes."""

import functools
import math
from fractions import Fraction

import numpy as np
import pytest
from pytorch_metric_learning import losses

import pml_ext
from pml_ext import CBMLLoss
from pml_ext.settings import (
    check_choice,
    check_count,
    check_flag,
    check_number,
    check_tile_size,
    number_settings,
    settings_of,
    settings_repr,
)


class Owner:
    """Something with settings."""

    def __init__(self, margin: float = 0.5, count: "int" = 3, name: str = "x", tile_size: int | None = None):
        self.margin = margin
        self.count = count
        self.name = name
        self.tile_size = tile_size


@pytest.mark.parametrize("value", [0, 0.25, 1, np.float32(0.5), np.int64(1)])
def test_numbers_in_their_range_pass(value):
    check_number(Owner(), "margin", value, least=0, most=1)
    check_number(Owner(), "margin", value, above=-0.1, below=1.1)


@pytest.mark.parametrize(
    ("value", "limits", "error", "text"),
    [
        (-1, {"least": 0}, ValueError, "must be a finite number at least 0, not -1"),
        (0, {"above": 0, "most": 2}, ValueError, "must be a finite number at most 2 and above 0, not 0"),
        (2.0, {"below": 2}, ValueError, "must be a finite number below 2, not 2.0"),
        (math.nan, {}, ValueError, "must be a finite number, not nan"),
        (math.inf, {}, ValueError, "must be a finite number, not inf"),
        (True, {}, TypeError, "must be a finite number, not True"),
        (Fraction(1, 2), {}, TypeError, r"must be a finite number, not Fraction\(1, 2\)"),
        ("1", {}, TypeError, "must be a finite number, not '1'"),
        ("other", {"or_else": "'auto'"}, ValueError, "must be a finite number or 'auto', not 'other'"),
    ],
)
def test_numbers_outside_their_range_are_refused(value, limits, error, text):
    with pytest.raises(error, match=f"^margin of Owner {text}$"):
        check_number(Owner(), "margin", value, **limits)


def test_counts_flags_and_choices_are_accepted():
    check_count(Owner(), "count", 1)
    check_tile_size(Owner(), None)
    check_flag(Owner(), "swap", False)
    check_choice(Owner(), "kind", "a", iter(("b", "a")))


WHOLE = "must be a whole number of at least"


@pytest.mark.parametrize(
    ("check", "given", "text"),
    [
        *[
            (check_tile_size, (Owner(), value), f"tile_size of Owner {WHOLE} 1, not {value!r}")
            for value in (0, True, 1.0, "1")
        ],
        (functools.partial(check_count, least=2), ("MyLoss", "count", 1), f"count of MyLoss {WHOLE} 2, not 1"),
        (check_flag, (Owner(), "swap", 1), "swap of Owner must be True or False, not 1"),
        (check_choice, (Owner(), "kind", "c", ("a", "b")), "kind of Owner must be 'a' or 'b', not 'c'"),
    ],
)
def test_other_counts_flags_and_choices_are_refused(check, given, text):
    with pytest.raises((TypeError, ValueError), match=text):
        check(*given)


@pytest.mark.parametrize(
    ("cls", "given", "text"),
    [
        (pml_ext.CBMLLoss, {"alpha_poss": 1}, "CBMLLoss has no setting 'alpha_poss'; nearest: alpha_pos, "),
        (pml_ext.HardPairMiner, {"margn": 1}, "HardPairMiner has no setting 'margn'"),
        (pml_ext.MetricVarianceRegularizer, {"gama": 1}, "Regularizer has no setting 'gama'; nearest: gamma"),
        (pml_ext.CBMLLoss, {"mining": "yes"}, "mining of CBMLLoss must be True or False, not 'yes'"),
    ],
)
def test_an_unknown_keyword_names_the_class(cls, given, text):
    with pytest.raises(TypeError, match=text):
        cls(**given)


def test_a_repr_has_the_settings():
    assert settings_repr(Owner(0.1)) == "margin=0.1, count=3, name='x'"
    assert settings_repr(Owner(tile_size=4)).endswith("name='x', tile_size=4")
    assert number_settings(Owner) == ("margin", "count")


def test_settings_of_base_classes_are_included():
    class Base:
        def __init__(self, margin: float = 1.0, base: "int" = 2) -> None: ...

    class Passing(Base):
        def __init__(self, margin: float = 3.0, *, more: str = "", **kwargs) -> None: ...

    class Alone(Base):
        def __init__(self, other=None) -> None: ...

    found = settings_of(Passing)
    assert {name: setting.default for name, setting in found.items()} == {"margin": 3.0, "more": "", "base": 2}
    assert found["base"].annotation is int
    assert [*settings_of(Alone)] == ["other"]
    assert [*settings_of(functools.partial(Passing.__init__, None))] == ["margin", "more"]
    assert [*settings_of(lambda root, size=3, *rest, **more: None)] == ["root", "size"]
    assert {"reducer", "distance", "pos_margin"} <= set(settings_of(losses.ContrastiveLoss))
    assert {"tile_size", "relation", "reducer"} <= set(settings_of(CBMLLoss))
