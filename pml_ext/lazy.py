"""Packages whose names are imported when they are asked for, so that a command pays for what it uses alone."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable, Iterable
from typing import Any

from .errors import needs_extra


def check_there(packages: Iterable[str], extra: str, what: str) -> None:
    """Refuses to go on without the packages of an extra, and imports none of them.

    Args:
        packages: which.
        extra: of ``pml-ext``, which brings them.
        what: needs them, as the start of a sentence.

    Raises:
        MissingExtraError: one of them is not installed.
    """
    with needs_extra(extra, what):
        for name in packages:
            if importlib.util.find_spec(name) is None:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def lazily(package: str, extra: str = "", what: str = "", needs: Iterable[str] = ()) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package that imports a module when one of its names is asked for.

    The names are what the package's ``__init__.py`` imports ``if TYPE_CHECKING``, so that each stands there once. None
    may be that of a module of the package as well: once that is imported, Python gives the module.

    Args:
        package: its name.
        extra: of ``pml-ext``, which the modules need.
        what: needs it, as the start of a sentence.
        needs: packages of that extra, which have to be there when the package is imported, and are not imported.

    Raises:
        MissingExtraError: one of these is not installed.
    """
    check_there(needs, extra, what)
    places: dict[str, str] = {}

    def get(name: str) -> Any:
        if not places:
            places.update(_imports(package))
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with needs_extra(extra, what):
            value = getattr(importlib.import_module(places[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    return get


def _imports(package: str) -> dict[str, str]:
    """By name, the module that a package imports it from for type checkers, ``".runs"``."""
    loader: Any = sys.modules[package].__loader__
    blocks = [node for node in ast.parse(loader.get_source(package)).body if isinstance(node, ast.If)]
    return {
        alias.name: f"{'.' * node.level}{node.module}"
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
