"""Lazy imports: the names of a module's ``if TYPE_CHECKING`` block, or of its stub, are imported on first use.

Importing torch and PML takes seconds, which ``import pml_ext`` and ``pml-ext list`` save.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .errors import needs_extra, unknown


def require_packages(packages: Iterable[str], extra: str, what: str) -> None:
    """Raise :class:`MissingExtraError` unless the packages of an extra are installed; without importing them."""
    with needs_extra(extra, what):
        for name in packages:
            if importlib.util.find_spec(name) is None:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def lazily(module: str, extra: str = "", what: str = "", needs: Iterable[str] = ()) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a module: it imports names of the ``if TYPE_CHECKING`` block on first use."""
    require_packages(needs, extra, what)

    def get(name: str) -> Any:
        names: dict[str, str] = {}
        if not name.startswith("__"):
            names = own_imports(module)
        if name not in names:
            raise AttributeError(f"module {module!r}: {unknown('name', name, names)}")
        with needs_extra(extra, what):
            value = imported(names[name], module)
        setattr(sys.modules[module], name, value)
        return value

    return get


def own_imports(module: str) -> dict[str, str]:
    """Return the names that a module, or its stub, imports from its own top package: ``{"Run": "package.run.Run"}``."""
    package = module.partition(".")[0]
    return _imports_from(f"{package}.", module)


def imports_of_plugins(module: str) -> dict[str, str]:
    """Return the names that a module, or its stub, imports from the plugins of this distribution."""
    return _imports_from("pml_ext_", module)


def _imports_from(beginning: str, module: str) -> dict[str, str]:
    """Return the names that a module, or its stub, imports from modules whose names have this beginning."""
    names = {}
    for name, origin in _imports(module).items():
        if origin.startswith(beginning):
            names[name] = origin
    return names


def imported(origin: str, by: str) -> Any:
    """Import ``package.module.name`` for the module ``by``, and return it; the name may be a submodule.

    If ``by`` is ``package.module`` itself, only a submodule can be meant: ``hasattr`` would call its ``__getattr__``,
    which calls this function.
    """
    module, _, name = origin.rpartition(".")
    if module != by:
        found = importlib.import_module(module)
        if hasattr(found, name):
            return getattr(found, name)
    return importlib.import_module(origin)


def _source_file(module: str) -> Path:
    """Return the file of a module, without importing it."""
    top, *inner = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        raise LookupError(f"{module}: no such module")
    file = Path(spec.origin)
    if not inner:
        return file
    place = file.parent.joinpath(*inner)
    if place.is_dir():
        return place / "__init__.py"
    return place.with_suffix(".py")


@functools.cache
def _imports(module: str) -> dict[str, str]:
    """Return ``{name: "package.module.Name"}`` of all imports of a module, or of its stub."""
    file = _source_file(module)
    if file.name == "__init__.py":
        package = module
    else:
        package = module.rpartition(".")[0]
    stub = file.with_suffix(".pyi")
    if stub.exists():
        file = stub

    origins: dict[str, str] = {}
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            origin = importlib.util.resolve_name(relative, package)
            for alias in node.names:
                origins[alias.asname or alias.name] = f"{origin}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    origins[alias.asname] = alias.name
                else:
                    top = alias.name.partition(".")[0]
                    origins[top] = top
    return origins
