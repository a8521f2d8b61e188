"""Names from a module's stub, imported on first use, because torch takes seconds."""

import importlib.util
import sys
from collections.abc import Callable, Iterable
from typing import Any

import lazy_loader

from .errors import missing_extra, needs_extra, unknown


def require_packages(packages: Iterable[str], extra: str, what: str) -> None:
    """Raise :class:`MissingExtraError` unless packages are installed; imports nothing."""
    with needs_extra(extra, what):
        for name in packages:
            if importlib.util.find_spec(name) is None:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def lazily(module: str, extra: str, what: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a module whose stub lists its names."""
    this = sys.modules[module]
    package = sys.modules[this.__package__ or ""]
    load, listed, names = lazy_loader.attach_stub(package.__name__, this.__file__)

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r}: {unknown('name', name, names)}")
        try:
            value = load(name)
        except ModuleNotFoundError as error:
            raise missing_extra(extra, what, error) from error
        if package is not this and value is not sys.modules.get(f"{package.__name__}.{name}"):
            vars(package).pop(name, None)  # where lazy_loader keeps what is not the package's own
        setattr(this, name, value)
        return value

    return get, listed
