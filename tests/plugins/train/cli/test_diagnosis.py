"""What ``pml-ext plugins`` says of plugins; asking for it changes nothing that is loaded."""

import copy

import pytest

from pml_ext import registry
from pml_ext_train.cli.diagnosis import diagnosis

pytestmark = pytest.mark.usefixtures("isolated_registry")
MISSING = """
from pml_ext.plugin import Command, Component, hookimpl

@hookimpl
def pml_ext_components():
    return [Component("theirs.gone:GoneLoss", "gone")]

@hookimpl
def pml_ext_commands():
    return {"greet": Command("theirs.gone:greet", "Greet somebody.")}
"""


def of(name, records):
    (found,) = [record for record in records if record.name == name]
    return found


def test_a_diagnosis_changes_no_record(install_plugin):
    install_plugin("theirs", MISSING)
    before = copy.deepcopy(registry.plugins())
    found = of("theirs", diagnosis())
    assert (found.status, found.commands) == ("broken", ["greet"])
    assert "the component 'gone' of the plugin 'theirs' cannot be imported" in found.error
    assert "the command 'greet' of the plugin 'theirs' cannot be imported" in found.error
    assert registry.plugins() == before
    assert of("theirs", registry.plugins()).status == "ok"
