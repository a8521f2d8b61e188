"""Checks of what plugins name beside components: what they name, and the results of its contract."""

from __future__ import annotations

import contextlib
import sys

import torch

from .. import registry
from ..registry.discovery import PluginRecord
from ..registry.hooks import HOOK_OF
from .calling import error_location, error_summary
from .contracts import CONTRACTS, Contract, Named
from .runner import CheckResult
from .subject import SkipCheck, set_seed


def find_named(what: str) -> list[Named]:
    """Return what an entry point, or a package, names beside components."""
    found = []
    for record in _records_of(what):
        for kind in CONTRACTS:
            hook = HOOK_OF[kind]
            if hook in record.hooks:  # other hooks, which may import much, are not called
                found += [named for named in _all_of(kind) if named.plugin == record.name]
    return found


def broken_plugins(what: str) -> list[CheckResult]:
    """Return a failed check of each plugin of a name, or of a package, whose import or hooks failed."""
    results = []
    for record in _records_of(what):
        for kind, hook in HOOK_OF.items():
            if hook in record.hooks:
                registry.values(kind)  # calls the hook
        if record.status == "broken":
            results.append(CheckResult(f"{record.name} (plugin)", "check_hooks", "failed", record.error))
    return results


def _records_of(what: str) -> list[PluginRecord]:
    """Return the records of an entry point, or of those of a package."""
    return [record for record in registry.plugins() if what in (record.name, record.package)]


def find_named_by_name(name: str) -> list[Named]:
    """Return what has a name, of any plugin and kind."""
    found = []
    for kind in CONTRACTS:
        found += [named for named in _all_of(kind) if named.name == name]
    return found


def _all_of(kind: str) -> list[Named]:
    values = []
    for name, value in registry.values(kind).items():
        plugin, _ = registry.find(kind, name)
        values.append(Named(kind, name, value, plugin))
    return values


def check_named(named: Named) -> list[CheckResult]:
    """Return the results of the contract of a named value."""
    results = []
    for check in (*CONTRACTS[named.kind], *checks_of_tools(named.kind)):
        text = ""
        error: BaseException | None = None
        status = "passed"
        try:
            # What a plugin prints does not belong to the results, which may be JSON.
            with torch.random.fork_rng(()), contextlib.redirect_stdout(sys.stderr):
                set_seed(0)
                text = check(named) or ""
        except SkipCheck as reason:
            status = "skipped"
            text = str(reason)
        except (Exception, SystemExit) as raised:
            status = "failed"
            error = raised
            is_finding = isinstance(raised, AssertionError) and not error_location(raised)
            text = str(raised) if is_finding else error_summary(raised)
        results.append(CheckResult(named.title, check.__name__, status, text, error))  # type: ignore[arg-type]
    return results


def checks_of_tools(kind: str) -> list[Contract]:
    """Return the checks of a kind that plugins give by the hook ``pml_ext_checks``."""
    checks = []
    for name, check in registry.values("check").items():
        if name.rpartition(":")[2] == kind:
            checks.append(check)
    return checks
