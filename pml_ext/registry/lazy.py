"""Lazy imports: names that are imported on first use, and outlines of classes, read from source files.

Importing torch and PML takes ten seconds. The outline of a class has its name, docstring, base classes,
``capabilities`` and constructor signature, but no code.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..errors import needs_extra, unknown

_WITHOUT_OUTLINE = ("torch", *sys.stdlib_module_names)  # packages whose base classes add no settings

# Names in values of ``capabilities``; for a wrapper, the largest set that it can have.
_CAPABILITIES = {"frozenset": frozenset, "WrapperCapabilities": lambda at_most, _: frozenset(at_most)}


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


def outline(source: type | str) -> type:
    """Return the outline of ``"package.module:Class"``; the class itself if it is passed or has no outline."""
    if isinstance(source, type):
        return source
    module, _, name = source.partition(":")
    try:
        return _outline(module, name)
    except (OSError, LookupError, SyntaxError, NameError, TypeError, ValueError, AttributeError):
        return pkgutil.resolve_name(source)  # type: ignore[no-any-return]  # with computed defaults, say


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


@functools.cache
def _outline(module: str, name: str) -> type:
    """Return the outline of a class that a module defines or imports; ``name`` may start with the module's name."""
    if module.partition(".")[0] in _WITHOUT_OUTLINE:
        return object
    tree, origins = _parsed(module)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _of_definition(module, node)
    first, dot, rest = name.partition(".")
    origin, _, inner = (origins[first] + dot + rest).rpartition(".")
    return _outline(origin, inner)


def _of_definition(module: str, node: ast.ClassDef) -> type:
    known: dict[str, Any] = {}
    body = {"__module__": module, "__doc__": ast.get_docstring(node, clean=False)}
    for each in [*_parsed(module)[0].body, *node.body]:  # constants that defaults use
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
            with contextlib.suppress(ValueError):  # not a literal
                known[each.targets[0].id] = ast.literal_eval(each.value)
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            each.body, each.decorator_list = ast.parse("pass").body, []
            exec(compile(ast.Module([each], []), module, "exec"), known)  # annotations are not evaluated: __future__
            body["__init__"] = known["__init__"]
        elif isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "capabilities":
            body["capabilities"] = eval(ast.unparse(each.value), _CAPABILITIES)
    bases = dict.fromkeys(_base(module, base) for base in node.bases)
    return type(node.name, tuple(base for base in bases if base is not object), body)


def _base(module: str, node: ast.expr) -> type:
    """Return the outline of a base class: ``Name``, ``module.Name`` or ``Name[...]``."""
    name = ast.unparse(node.value if isinstance(node, ast.Subscript) else node)
    return object if name == "object" else _outline(module, name)
