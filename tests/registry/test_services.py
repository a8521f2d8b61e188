"""What tools do for one another: found by name, and what is said where its plugin is missing."""

import pytest

from pml_ext import registry
from pml_ext.errors import PluginError
from pml_ext.registry.services import service

MINE = """
from pml_ext.plugin import hookimpl

class Greeting:
    def greet(self, name):
        return f"hello {name}"

@hookimpl
def pml_ext_services():
    return {"greeting": Greeting}
"""


def test_a_service_of_any_plugin_is_found(install_plugin):
    install_plugin("greets", MINE)
    with registry.isolated():
        assert service("greeting", "--greet").greet("you") == "hello you"


def test_the_error_says_which_plugin_is_missing(monkeypatch):
    with pytest.raises(PluginError, match="--greet needs the plugin 'greeting', which is not installed; type: pip"):
        service("greeting", "--greet")
    monkeypatch.setenv("PML_EXT_BLOCK", "stores")
    with registry.isolated():
        with pytest.raises(
            PluginError, match=r"--to X needs the plugin 'stores', which is blocked \(by PML_EXT_BLOCK\)"
        ):
            service("stores", "--to X")
        assert service("search", "pml-ext browse").load_run is not None
