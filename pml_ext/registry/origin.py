"""Which plugin's code an error comes from."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from .imports import package_of
from .lookup import plugins as all_plugins


class Origin(NamedTuple):
    """A plugin of another distribution, and the place in its code, in words."""

    plugin: str
    place: str


def origin_of(error: BaseException) -> Origin | None:
    """Return where an error comes from if the code of another distribution's plugin raised or called what did.

    A method that a class of the plugin inherits, from PML or torch, counts as the class's own.
    """
    plugins = {}
    for record in all_plugins():
        if not record.shipped:
            plugins[record.package] = record.name
    origin = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        origin = _of_frame(frame, line, plugins) or origin
    return origin


def _of_frame(frame: FrameType, line: int, plugins: Mapping[str, str]) -> Origin | None:
    plugin = plugins.get(package_of(frame.f_globals.get("__name__", "")))
    if plugin is not None:
        code = frame.f_code
        file = Path(code.co_filename)
        return Origin(plugin, f"{code.co_qualname} of the plugin {plugin!r}, {file.parent.name}/{file.name}:{line}")
    owner = type(frame.f_locals.get("self"))
    plugin = plugins.get(package_of(str(owner.__module__)))
    if plugin is not None:
        return Origin(plugin, f"{owner.__qualname__} of the plugin {plugin!r}")
    return None
