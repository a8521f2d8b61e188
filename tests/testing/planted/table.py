"""The table of planted bugs, and how a bug is planted."""

import re
import sys
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from pml_ext import registry
from pml_ext.testing import check_component
from pml_ext.testing.runner import checks_of

from .correct import loop, near_negatives

REFERENCE = "check_reference"  # finds what is wrong in an equation, which nothing but a reference knows


class Planted(NamedTuple):
    """A class with a bug, the check that finds the bug, and a pattern of the check's text."""

    cls: Any
    kind: str
    words: str
    check: str
    text: str


PLANTED: dict[str, Planted] = {}


def planted(words: str, check: str, text: str = ""):
    """Class decorator: enter the class into the table."""

    def enter(cls):
        assert cls.__name__ not in PLANTED, cls
        PLANTED[cls.__name__] = Planted(cls, registry.kind_of(cls), words, check, text)
        return cls

    return enter


def plant(name: str, base: type, words: str, check: str, text: str = ""):
    """Return a function that plants a bug in the calling module: an override or two of a correct component."""
    module = sys._getframe(1).f_globals

    def override(**overrides):
        module[name] = planted(words, check, text)(type(name, (base,), {"__module__": module["__name__"], **overrides}))

    return override


def planted_for(module: ModuleType) -> list[Any]:
    """Return the bugs that the checks of a module find, as parameters of a test."""
    checks = {
        check.__name__ for kind in registry.KINDS for check in checks_of(kind) if check.__module__ == module.__name__
    }
    assert checks
    return [pytest.param(bug, id=name) for name, bug in PLANTED.items() if bug.check in checks]


def text_of(bug: Planted) -> str:
    """Return what the check of a bug says of it; empty where it finds nothing."""
    given = {}
    if bug.check == REFERENCE:
        given["reference"] = near_negatives if bug.kind == "miner" else loop
    return failing(bug.cls, checks=[bug.check], **given).get(bug.check, "")


def assert_found_and_named(bug: Planted) -> None:
    """Fail unless the check of a bug finds it, and says what its row expects."""
    text = text_of(bug)
    assert len(text) > 25, text
    assert re.search(bug.text, text), text


def failing(component: Any, **given: Any) -> dict[str, str]:
    """Return the checks that a component fails, with their texts."""
    return {r.check: r.text for r in check_component(component, on_fail=None, **given) if r.fails}
