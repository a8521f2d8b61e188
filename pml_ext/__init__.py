"""A plugin layer on pytorch-metric-learning (PML): ``from pml_ext import CBMLLoss`` gives every registered class.

``__init__.pyi`` lists the other public names. The first name that needs torch and PML imports them.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _version
from typing import Any

try:
    __version__ = _version("pml-ext")
except PackageNotFoundError:  # the sources are on the path but not installed, so there are no entry points
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return _names_without_modules()
    if name.startswith("_"):
        raise AttributeError(f"module 'pml_ext' has no attribute {name!r}")
    from .lazy import imported, imports_of_plugins, own_imports

    if origin := own_imports("pml_ext").get(name):
        return imported(origin, "pml_ext")
    from . import registry
    from .errors import UnknownNameError

    origin = imports_of_plugins("pml_ext").get(name, "")
    plugin = _shipped_plugin_of(origin)
    if plugin and registry.is_allowed(plugin):  # no other plugin can replace its names, so that the others stay out
        return imported(origin, "pml_ext")

    try:
        return registry.find("class", name)[1].cls
    except UnknownNameError as error:
        raise AttributeError(f"module 'pml_ext' has no attribute {name!r}: {error}") from None


def _names_without_modules() -> list[str]:
    """Return the names that ``from pml_ext import *`` imports: classes and functions, as far as they can be had."""
    own = [name for name, origin in _names_of_stub().items() if origin != f"pml_ext.{name}"]
    return sorted({*own, *filter(_is_importable, _registered())})


def _is_importable(name: str) -> bool:
    """Return whether a registered class can be imported by its name; ``pml-ext plugins`` says why not."""
    from . import registry
    from .errors import PmlExtError

    try:
        _, component = registry.find("class", name)
        _ = component.cls
    except PmlExtError:
        return False
    return True


def _names_of_stub() -> dict[str, str]:
    """Return the names that ``__init__.pyi`` lists, and where each is from, without those of plugins left out."""
    from . import registry
    from .lazy import imports_of_plugins, own_imports

    names = own_imports("pml_ext")
    for name, origin in imports_of_plugins("pml_ext").items():
        if registry.is_allowed(_shipped_plugin_of(origin)):
            names[name] = origin
    return names


def _shipped_plugin_of(origin: str) -> str:
    """Return the entry point of one of our plugins, ``"cbml"`` for ``"pml_ext_cbml.CBMLLoss"``."""
    package, _, _ = origin.partition(".")
    return package.removeprefix("pml_ext_")


def _registered() -> list[str]:
    from . import registry

    return [*registry.class_names()]


def __dir__() -> list[str]:
    return sorted({"__version__", *_names_of_stub(), *_registered()})
