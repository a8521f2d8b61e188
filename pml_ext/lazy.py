"""Packages whose names are imported when they are first used, so that a command pays for what it uses alone."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable, Iterable
from typing import Any

from .errors import needs_extra


def check_there(packages: Iterable[str], extra: str, what: str) -> None:
    """Raise :class:`MissingExtraError` unless the packages of an extra are installed; import none of them.

    Args:
        packages: names of packages.
        extra: the extra of ``pml-ext`` that installs them.
        what: the feature that needs them, as the start of a sentence.
    """
    with needs_extra(extra, what):
        for name in packages:
            if importlib.util.find_spec(name) is None:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def lazily(package: str, extra: str = "", what: str = "", needs: Iterable[str] = ()) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package that imports a module when one of its names is first used.

    The names come from the ``if TYPE_CHECKING`` block of the package's ``__init__.py``. None may be that of a module of
    the package as well: once that is imported, Python gives the module.

    Args:
        package: the package's name.
        extra: the extra of ``pml-ext`` that the modules need.
        what: the feature that needs it, as the start of a sentence.
        needs: packages of that extra, which are looked for at once.

    Raises:
        MissingExtraError: one of these is not installed.
    """
    check_there(needs, extra, what)
    modules: dict[str, str] = {}

    def get(name: str) -> Any:
        if not modules:
            loader: Any = sys.modules[package].__loader__
            modules.update(relative_imports(loader.get_source(package)))
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with needs_extra(extra, what):
            value = imported(package, modules[name], name)
        setattr(sys.modules[package], name, value)
        return value

    return get


def relative_imports(source: str) -> dict[str, str]:
    """Return the relative module that a source imports each name from: ``{"Run": ".run"}``."""
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom) and node.level)
    return {alias.name: f"{'.' * node.level}{node.module or ''}" for node in nodes for alias in node.names}


def imported(package: str, module: str, name: str) -> Any:
    """Return a name of a relative module; a module itself where ``module`` is ``"."``."""
    if module == ".":
        return importlib.import_module(f".{name}", package)
    return getattr(importlib.import_module(module, package), name)
