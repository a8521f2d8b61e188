"""Modules whose names are imported on first use, so that a command imports nothing else."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any

from .errors import needs_extra, unknown


def check_there(packages: Iterable[str], extra: str, what: str) -> None:
    """Raise :class:`MissingExtraError` unless the packages of an extra are installed; import none of them."""
    with needs_extra(extra, what):
        for name in packages:
            if importlib.util.find_spec(name) is None:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def lazily(module: str, extra: str = "", what: str = "", needs: Iterable[str] = ()) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a module: it imports a name of the ``if TYPE_CHECKING`` block on first use."""
    check_there(needs, extra, what)

    def get(name: str) -> Any:
        this = sys.modules[module]
        names = {} if name.startswith("__") else relative_imports(inspect.getsource(this))
        if name not in names:
            raise AttributeError(f"module {module!r}: {unknown('name', name, names)}")
        with needs_extra(extra, what):
            value = imported(this.__package__ or "", names[name], name)
        setattr(this, name, value)
        return value

    return get


@functools.cache
def relative_imports(source: str) -> dict[str, str]:
    """Return the relative imports of a source by name: ``{"Run": ".run"}`` of ``from .run import Run``."""
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom) and node.level)
    return {alias.name: f"{'.' * node.level}{node.module or ''}" for node in nodes for alias in node.names}


def imported(package: str, module: str, name: str) -> Any:
    """Return a name of a relative module, or a submodule of that name."""
    if module != "." and hasattr(found := importlib.import_module(module, package), name):
        return getattr(found, name)
    return importlib.import_module(f"{module.rstrip('.')}.{name}", package)
