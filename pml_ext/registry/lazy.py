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

from ..errors import needs_extra, unknown


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
        names = {} if name.startswith("__") else own_imports(module)
        if name not in names:
            raise AttributeError(f"module {module!r}: {unknown('name', name, names)}")
        with needs_extra(extra, what):
            value = imported(names[name], module)
        setattr(sys.modules[module], name, value)
        return value

    return get


def own_imports(module: str) -> dict[str, str]:
    """Return the names that a module, or its stub, imports from its own top package: ``{"Run": "package.run.Run"}``."""
    own = f"{module.partition('.')[0]}."
    return {name: origin for name, origin in _parsed(module)[1].items() if origin.startswith(own)}


def imports_of_plugins(module: str) -> dict[str, str]:
    """Return the names that a module, or its stub, imports from the plugins of this distribution."""
    return {name: origin for name, origin in _parsed(module)[1].items() if origin.startswith("pml_ext_")}


def imported(origin: str, by: str) -> Any:
    """Import ``package.module.name`` into the module ``by``; the name may be a submodule."""
    module, _, name = origin.rpartition(".")
    if module != by and hasattr(found := importlib.import_module(module), name):
        return getattr(found, name)
    return importlib.import_module(origin)


def _source(module: str) -> tuple[str, bool]:
    """Return the source of a module, or of its stub, without importing it, and whether it is a package."""
    top, *inner = module.split(".")
    if (spec := importlib.util.find_spec(top)) is None or spec.origin is None:
        raise LookupError(f"{module}: no such module")
    file = Path(spec.origin)
    if inner:
        place = file.parent.joinpath(*inner)
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    stub = file.with_suffix(".pyi")
    return (stub if stub.exists() else file).read_text("utf-8"), file.name == "__init__.py"


@functools.cache
def _parsed(module: str) -> tuple[ast.Module, dict[str, str]]:
    """Return the syntax tree of a module, and ``{name: "package.module.Name"}`` of all its imports."""
    text, is_package = _source(module)
    tree, origins = ast.parse(text), dict[str, str]()
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            origin = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            origins |= {alias.asname or alias.name: f"{origin}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            tops = ((alias, alias.name.partition(".")[0]) for alias in node.names)
            origins |= {alias.asname or top: alias.name if alias.asname else top for alias, top in tops}
    return tree, origins
