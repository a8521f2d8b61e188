"""Writes ``__init__.pyi``, by which type checkers know the names of ``pml_ext``: ``python -m pml_ext.stub``.

The names themselves are found when they are asked for, so that no checker can read them off ``__init__.py``.
"""

from __future__ import annotations

from pathlib import Path

import pml_ext

from . import registry
from .plugins import BUILTIN

PATH = Path(pml_ext.__file__).with_suffix(".pyi")
_DISTRIBUTION = "pml-ext"
_HEAD = """\
# Written by python -m pml_ext.stub; a test holds it to the registry.
from typing import Any

"""
_TAIL = """
__version__: str

def __getattr__(name: str) -> Any: ...  # classes of other distributions and of the running process
def __dir__() -> list[str]: ...
"""


def text() -> str:
    """The file: public names of the core, its submodules, and the registered classes of this distribution's plugins."""
    own = {record.name for record in registry.plugins() if record.distribution == _DISTRIBUTION} | {BUILTIN}
    classes = {
        f"from {component.cls.__module__} import {name} as {name}\n"
        for name, components in registry.class_names().items()
        for component in components
        if component.plugin in own and name not in pml_ext._PUBLIC
    }
    modules = [f"from . import {name} as {name}\n" for name in sorted(pml_ext._SUBMODULES)]
    public = {
        f"from {module.removeprefix('pml_ext')} import {name} as {name}\n" for name, module in pml_ext._PUBLIC.items()
    }
    return "".join([_HEAD, *sorted(classes), "\n", *modules, *sorted(public), _TAIL])


if __name__ == "__main__":
    PATH.write_text(text(), "utf-8")
