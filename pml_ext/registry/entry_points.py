"""Entry points of group ``pml_ext``: their records, and which of them the allow list and the deny list let in."""

from __future__ import annotations

import dataclasses
import os
import traceback
from importlib import metadata

from ..errors import PluginError, unknown
from .imports import package_of, place_in

GROUP = "pml_ext"
ALLOW = "PML_EXT_PLUGINS"  # environment variables with names of entry points
BLOCK = "PML_EXT_BLOCK"
LOCAL = "local"  # plugin name of classes registered in the current process
BUILTIN = "pml"  # the plugin name of the core's own components; not open to entry points
RESERVED = (LOCAL, BUILTIN, "folder")  # "folder:PATH" is a data set


@dataclasses.dataclass
class PluginRecord:
    """An entry point, its module and distribution, and the result of loading it."""

    name: str
    distribution: str
    version: str
    module: str
    status: str = "waiting"  # before its import; then "ok", "broken", "blocked" or "not allowed"
    error: str = ""  # the reasons, unless the status is "waiting" or "ok"
    hooks: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0  # time to import it
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.name!r} of {self.distribution} {self.version}"

    @property
    def package(self) -> str:
        """The top package of its module."""
        return package_of(self.module)

    @property
    def shipped(self) -> bool:
        """True for a plugin of this distribution."""
        return self.distribution.replace("_", "-").lower() == "pml-ext"

    def add_error(self, error: BaseException, hook: str = "") -> None:
        """Record the plugin as broken, with one more reason."""
        reason = f"{type(error).__name__}: {error}"
        place = place_in(self.package, error)
        if place:
            reason = f"{reason}, in {place}"
        if hook:
            reason = f"{hook}: {reason}"
        self.status = "broken"
        self.error = f"{self.error}; {reason}" if self.error else reason
        self.traceback += "".join(traceback.format_exception(error))


def read_entry_points() -> list[tuple[PluginRecord, metadata.EntryPoint]]:
    """Return each entry point with its record, those of this distribution first.

    PluginError if the allow or deny list names a plugin that is not installed.
    """
    found = []
    for point in metadata.entry_points(group=GROUP):
        distribution = point.dist
        name = version = ""
        if distribution is not None:
            name, version = distribution.name, distribution.version
        found.append((PluginRecord(point.name, name or "unknown", version or "", point.value), point))
    found.sort(key=lambda pair: (not pair[0].shipped, pair[0].name))
    records = [record for record, _ in found]
    _leave_out(records, ALLOW, "not allowed")
    _leave_out(records, BLOCK, "blocked")
    return found


def _leave_out(records: list[PluginRecord], variable: str, status: str) -> None:
    """Set the status of plugins that an environment variable, the allow list or the deny list, leaves out."""
    names = [record.name for record in records]
    not_installed = sorted(_listed_in(variable).difference(names))
    if not_installed:
        name = not_installed[0]
        installed = ", ".join(names) or "none"
        raise PluginError(f"{variable}: {unknown('installed plugin', name, names)}; installed: {installed}")
    for record in records:
        if record.status == "waiting" and not _allowed_by(variable, record.name):
            record.status = status
            record.error = f"by {variable}"


def _listed_in(variable: str) -> set[str]:
    """Return the entry-point names in an environment variable, which separates them by commas."""
    names = {name.strip() for name in os.environ.get(variable, "").split(",")}
    return names - {""}


def _allowed_by(variable: str, name: str) -> bool:
    """Return whether an environment variable, the allow list or the deny list, lets a plugin in."""
    if variable not in os.environ:
        return True
    is_listed = name in _listed_in(variable)
    return is_listed if variable == ALLOW else not is_listed


def is_allowed(name: str) -> bool:
    """Return whether the allow list and the deny list let a plugin in, by the name of its entry point."""
    return _allowed_by(ALLOW, name) and _allowed_by(BLOCK, name)
