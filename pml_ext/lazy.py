"""Packages whose names are imported when they are asked for, so that a command pays for what it uses alone."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .errors import needs_extra


def lazily(package: str, homes: Mapping[str, Iterable[str]], extra: str, what: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package that imports its modules when one of their names is asked for.

    A name must not be that of a module of the package as well: once that is imported, Python gives the module.

    Args:
        package: its name.
        homes: the names that each of its modules has for others.
        extra: of ``pml-ext``, which the modules need.
        what: needs it, as the start of a sentence.
    """
    places = {name: module for module, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with needs_extra(extra, what):
            value = getattr(importlib.import_module(f"{package}.{places[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
