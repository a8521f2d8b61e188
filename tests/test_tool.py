"""The module ``pml_ext.tool``: its names, and when they are imported."""

import subprocess
import sys

import pytest

from pml_ext import __version__, tool
from pml_ext.lazy import own_imports


def test_every_listed_name_exists():
    names = own_imports("pml_ext.tool")
    assert len(names) > 100
    for name, origin in names.items():
        value = getattr(tool, name)
        module, _, attribute = origin.rpartition(".")
        assert value is getattr(sys.modules[module], attribute)
        assert vars(tool)[name] is value  # the next use is that of an attribute
    assert tool.__version__ == __version__


def test_an_unknown_name_has_the_nearest():
    with pytest.raises(AttributeError, match="module 'pml_ext.tool': no name 'open_runs'; nearest: open_run"):
        tool.open_runs  # noqa: B018


def test_a_command_imports_what_it_uses():
    script = "import sys; from pml_ext.tool import ConfigError, read_json; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
