"""A plugin layer on pytorch-metric-learning (PML): ``from pml_ext import CBMLLoss`` gives every registered class.

``__init__.pyi`` lists the other public names. The first name that needs torch and PML imports them.
"""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _version
from typing import Any

try:
    __version__ = _version("pml-ext")
except PackageNotFoundError:  # the sources on a path, not installed: there are no entry points either
    __version__ = "0+unknown"


@functools.cache
def _public() -> dict[str, str]:
    """Return the module of each public name of the core, as the stub imports it."""
    import pkgutil

    from .lazy import relative_imports

    return relative_imports((pkgutil.get_data("pml_ext", "__init__.pyi") or b"").decode())


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module 'pml_ext' has no attribute {name!r}")
    if name in _public():
        from .lazy import imported

        return imported("pml_ext", _public()[name], name)
    from . import registry
    from .errors import UnknownNameError

    try:
        return registry.find("class", name)[1].cls
    except UnknownNameError as error:
        raise AttributeError(f"module 'pml_ext' has no attribute {name!r}: {error}") from None


def __dir__() -> list[str]:
    from . import registry

    return sorted({"__version__", *_public(), *registry.class_names()})
