"""What tools do for one another: one offers it by the hook ``pml_ext_services``, others ask for it by its name.

A tool of this distribution has the name of its service as the name of its entry point, so that an error can say which
plugin is missing.
"""

from __future__ import annotations

from typing import Any

from ..errors import PluginError, UnknownNameError, shortened
from . import lookup


def service(name: str, what: str) -> Any:
    """Return the object with a service's methods; see :func:`pml_ext.registry.hooks.pml_ext_services`.

    PluginError, "``what`` needs the plugin ...", if no plugin offers it.
    """
    try:
        factory = lookup.factory("service", name)
    except UnknownNameError:
        raise PluginError(f"{what} needs the plugin {name!r}, which is {_reason(name)}") from None
    return factory()


def _reason(name: str) -> str:
    """Return why a service's plugin is not in use."""
    for record in lookup.plugins():
        if record.error and name in (record.name, record.package):
            return f"{record.status} ({shortened(record.error, 200)})"
    return "not installed; type: pip install --force-reinstall pml-ext"
