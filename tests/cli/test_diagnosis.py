"""What ``pml-ext plugins`` says of plugins; asking for it changes nothing that is loaded."""

import copy

import pytest

from pml_ext import registry
from pml_ext.cli.diagnosis import diagnosis

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


def test_names_of_several_plugins_are_told_to_each(install_loss):
    install_loss("first", "Same", "same")
    install_loss("second", "Same", "same")
    records = diagnosis()
    for name, other in (("first", "second"), ("second", "first")):
        text = f"loss 'same': also of {other!r}; the bare name is an error"
        assert text in of(name, records).clashes


def test_plugins_alone_call_no_hook(install_plugin):
    install_plugin("theirs", "from pml_ext.plugin import hookimpl\n@hookimpl\ndef pml_ext_trunks():\n    1 / 0\n")
    assert of("theirs", registry.plugins()).status == "ok"
    with pytest.warns(match="ZeroDivisionError"):
        assert of("theirs", diagnosis()).status == "broken"


def test_values_are_of_any_kind():
    assert registry.values("recipe") == registry.recipes()
    assert registry.values("recipe")["cbml/digits"].is_file()
    assert callable(registry.values("data set")["digits"])
