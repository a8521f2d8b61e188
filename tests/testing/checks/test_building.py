"""Checks of the constructor and of the line that lists a component."""

import re

import pml_ext
from pml_ext.plugin import Component
from pml_ext.testing import check_component
from tests.testing.planted import Deviance, failing


class NeedsGpu(Deviance):
    def __init__(self, **kwargs):
        raise RuntimeError("no device")


def test_raising_constructor_fails_one_check_and_skips_others():
    results = check_component(NeedsGpu, on_fail=None, fast=True)
    (failed,) = [result for result in results if result.fails]
    assert failed.check == "check_constructor"
    assert re.search(r"its constructor raises RuntimeError: no device \(at test_building.py:\d+\)", failed.text)
    assert {result.status for result in results} == {"failed", "skipped"}


def test_registered_component_needs_a_listed_line():
    without = failing(Component(NeedsGpu, name="needs-gpu"), checks=["check_docstring"])
    assert "it has no docstring, which `pml-ext list` shows" in without["check_docstring"]
    for component in (Component(NeedsGpu, name="needs-gpu", summary="A loss"), pml_ext.registry.get("cbml")):
        assert failing(component, checks=["check_docstring"]) == {}
