"""What ``pml-ext plugins`` reports: commands, name clashes and failing imports."""

import dataclasses

from pml_ext.errors import PluginError
from pml_ext.registry.components import KINDS
from pml_ext.registry.discovery import PluginRecord
from pml_ext.registry.hooks import HOOK_OF
from pml_ext.registry.lookup import components, owners_of, plugins, registered


@dataclasses.dataclass
class PluginDiagnosis(PluginRecord):
    """An entry point's record, with the names from its hooks."""

    components: int = 0
    commands: list[str] = dataclasses.field(default_factory=list)
    clashes: list[str] = dataclasses.field(default_factory=list)  # texts about names of several plugins


def diagnosis() -> list[PluginDiagnosis]:
    """Return the diagnosis of each entry point.

    This calls all hooks, and imports what other distributions name as text.
    """
    for kind in HOOK_OF:
        registered(kind)  # a hook that fails is recorded
    records = []
    for record in plugins():
        copied = PluginDiagnosis(**vars(record))
        records.append(copied)
        if record.status in ("ok", "broken") and record.hooks:
            _add_names(copied)
            if not record.shipped:
                _add_failing_imports(copied)
    return records


def _add_names(record: PluginDiagnosis) -> None:
    for kind in HOOK_OF:
        for name, by_plugin in registered(kind).items():
            if record.name not in by_plugin:
                continue
            if kind in KINDS:
                record.components += 1
            if kind == "command":
                record.commands.append(name)
            others = [plugin for plugin in by_plugin if plugin != record.name]
            if others:
                record.clashes.append(_clash(kind, name, others))


def _clash(kind: str, name: str, others: list[str]) -> str:
    meant = list(owners_of(kind, name))  # by the bare name
    meaning = f"refers to {meant[0]!r}" if len(meant) == 1 else "is an error"
    return f"{kind} {name!r}: also in {' and '.join(map(repr, others))}; the bare name {meaning}"


def _add_failing_imports(record: PluginDiagnosis) -> None:
    """Import what a plugin names as text, and add each failure once."""
    for component in components():
        if component.plugin == record.name:
            try:
                _ = component.cls
            except PluginError as error:
                _add_once(record, error, "pml_ext_components")
    for name, by_plugin in registered("command").items():
        if record.name in by_plugin:
            try:
                by_plugin[record.name].load(name, record.name)
            except PluginError as error:
                _add_once(record, error, "pml_ext_commands")


def _add_once(record: PluginDiagnosis, error: PluginError, hook: str) -> None:
    if str(error) not in record.error:
        record.add_error(error, hook)
