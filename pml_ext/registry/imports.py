"""Imports of what plugins name as text, and the lines of their code that raise."""

from __future__ import annotations

import contextlib
import pkgutil
import sys
import traceback
from pathlib import Path
from typing import Any

from ..errors import PluginError, PluginWarning, PmlExtError, StoppedError, one_line


def package_of(path: str) -> str:
    """Return the top package of a module, or of an import path ``"package.module:name"``."""
    module = path.partition(":")[0]
    return module.partition(".")[0]


def import_name(source: str, owner: str, plugin: str, hook: str) -> Any:
    """Import ``"package.module:name"`` of a plugin; what the import prints goes to stderr.

    ``owner`` is what the name is of, such as ``"the loss 'mine'"``. PluginError if the import fails, with the plugin,
    the hook that named it, and the line.
    """
    try:
        if source.partition(":")[0] in sys.modules:  # nothing is executed
            return pkgutil.resolve_name(source)
        with contextlib.redirect_stdout(sys.stderr):
            return pkgutil.resolve_name(source)
    except (PmlExtError, PluginWarning, KeyboardInterrupt, StoppedError):
        raise
    except BaseException as error:  # a plugin's module may raise anything, SystemExit too
        reason = reason_of(error, package_of(source))
        problem = f"{owner} of the plugin {plugin!r} cannot be imported: {reason}"
        raise PluginError(
            f"{problem}; {hook} names {source!r} (PML_EXT_BLOCK={plugin} leaves the plugin out)"
        ) from error


def reason_of(error: BaseException, package: str) -> str:
    """Return an error as one line, with the line of a package's code that raised it or called what did."""
    place = place_in(package, error)
    if place:
        return f"{one_line(error)}, in {place}"
    return one_line(error)


def place_in(package: str, error: BaseException) -> str:
    """Return the file and the line of a package's code that raised an error, or called what did; "" if none did."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if package_of(str(frame.f_globals.get("__name__", ""))) == package:
            file = Path(frame.f_code.co_filename)
            place = f"{file.parent.name}/{file.name}:{line}"
    return place
