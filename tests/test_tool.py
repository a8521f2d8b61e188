"""The module ``pml_ext.tool``: its names, and when they are imported."""

import subprocess
import sys

from pml_ext import __version__, tool


def test_every_listed_name_exists():
    assert len(dir(tool)) > 100
    assert all(getattr(tool, name) is not None for name in dir(tool))
    assert tool.__version__ == __version__


def test_a_command_imports_what_it_uses():
    script = "import sys; from pml_ext.tool import ConfigError, read_json; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
