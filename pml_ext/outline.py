"""Outlines of classes, read from their source files: importing torch and PML takes ten seconds.

An outline is a class with the name, docstring, base classes, ``capabilities`` and constructor of another, and no code.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

_WITHOUT_OUTLINE = ("torch", *sys.stdlib_module_names)  # packages of base classes that add no setting

# Names in values of ``capabilities``; of a wrapper, the ones that it can have at most.
_CAPABILITIES = {"frozenset": frozenset, "WrapperCapabilities": lambda at_most, _: frozenset(at_most)}


def outline(source: type | str) -> type:
    """Return the outline of ``"package.module:Class"``; the class itself if it is given or cannot be outlined."""
    if isinstance(source, type):
        return source
    module, _, name = source.partition(":")
    try:
        return _outline(module, name)
    except (OSError, LookupError, SyntaxError, NameError, TypeError, ValueError, AttributeError):
        return imported_class(source)  # with computed defaults, say


def imported_class(source: str) -> type:
    """Import and return the class ``"package.module:Class"``."""
    module, _, name = source.partition(":")
    return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]


def module_source(module: str) -> tuple[str, bool]:
    """Return the source of a module without importing it, and whether it is a package."""
    top, *inner = module.split(".")
    if (spec := importlib.util.find_spec(top)) is None or spec.origin is None:
        raise LookupError(f"{module}: no such module")
    file = Path(spec.origin)
    if inner:
        place = file.parent.joinpath(*inner)
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return file.read_text("utf-8"), file.name == "__init__.py"


@functools.cache
def _parsed(module: str) -> tuple[ast.Module, dict[str, str]]:
    """Return the syntax tree of a module, and ``{name: "package.module.Name"}`` of what it imports anywhere."""
    text, is_package = module_source(module)
    tree, imported = ast.parse(text), dict[str, str]()
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            origin = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            imported |= {alias.asname or alias.name: f"{origin}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            tops = ((alias, alias.name.partition(".")[0]) for alias in node.names)
            imported |= {alias.asname or top: alias.name if alias.asname else top for alias, top in tops}
    return tree, imported


@functools.cache
def _outline(module: str, name: str) -> type:
    """Return the outline of a class that a module defines or imports; ``name`` may have the module's before it."""
    if module.partition(".")[0] in _WITHOUT_OUTLINE:
        return object
    tree, imported = _parsed(module)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _of_definition(module, node)
    first, dot, rest = name.partition(".")
    origin, _, inner = (imported[first] + dot + rest).rpartition(".")
    return _outline(origin, inner)


def _of_definition(module: str, node: ast.ClassDef) -> type:
    known: dict[str, Any] = {}
    body = {"__module__": module, "__doc__": ast.get_docstring(node, clean=False)}
    for each in [*_parsed(module)[0].body, *node.body]:  # names in defaults
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
            with contextlib.suppress(ValueError):  # no literal
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
