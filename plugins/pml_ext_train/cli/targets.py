"""What ``pml-ext check NAME`` checks, and checks of what is no component."""

import contextlib
import itertools
import pkgutil
import sys
import traceback
from collections import Counter
from typing import Any

import torch

from pml_ext import pml, registry
from pml_ext.errors import ConfigError
from pml_ext.registry.components import package_of
from pml_ext.registry.discovery import PluginRecord
from pml_ext.registry.hooks import HOOK_OF
from pml_ext.testing import CheckResult, Named, SkipCheck
from pml_ext.testing.calling import KIT, error_summary
from pml_ext.testing.contracts import Contract
from pml_ext.testing.subject import set_seed


def find_components(what: str) -> list[tuple[str, Any]]:
    """Return components by name; ConfigError without any.

    ``what`` is a package, ``package.Class``, an entry point, a component, or ``pml``. A package without registered
    components gives all its fitting classes.
    """
    if what == "pml":
        return [(c.name, c) for c in registry.components("loss") if c.name.startswith("pml/")]
    served = [
        component for component in registry.components() if what in (component.plugin, package_of(component.path))
    ]
    found = served or registry.candidates(what)
    if found:
        counts = Counter(component.name for component in found)
        return [(f"{c.name} ({c.kind})" if counts[c.name] > 1 else c.name, c) for c in found]
    try:
        imported = pkgutil.resolve_name(what)
    except (ModuleNotFoundError, AttributeError, ValueError) as error:
        plugins = ", ".join(record.name for record in registry.plugins())
        raise ConfigError(
            f"{what}: no package, class, entry point or component ({error}); entry points: {plugins}; or pml"
        ) from None
    if isinstance(imported, type):
        return [(imported.__name__, imported)]
    bases = tuple(itertools.chain.from_iterable(pml.BASES.values()))
    members = getattr(imported, "__dict__", {})
    classes = [(name, c) for name, c in members.items() if isinstance(c, type) and issubclass(c, bases)]
    defined_here = [(name, c) for name, c in classes if f"{c.__module__}.".startswith(f"{imported.__name__}.")]
    if not defined_here:
        raise ConfigError(
            f"{what}: there is no component in it; it needs a class that extends one of PML's losses, "
            "miners, regularizers, distances, samplers or reducers"
        )
    return defined_here


def find_named(what: str) -> list[Named]:
    """Return what an entry point or a package provides besides components."""
    found = []
    for record in _records_of(what):
        for kind in CONTRACTS:
            hook = HOOK_OF[kind]
            if hook in record.hooks:  # other hooks, which may import much, are not called
                found += [named for named in _all_of(kind) if named.plugin == record.name]
    return found


def broken_plugins(what: str) -> list[CheckResult]:
    """Return a failed check for each broken plugin with this name or in this package."""
    results = []
    for record in _records_of(what):
        for kind, hook in HOOK_OF.items():
            if hook in record.hooks:
                registry.values(kind)  # calls the hook
        if record.status == "broken":
            results.append(CheckResult(f"{record.name} (plugin)", "check_hooks", "failed", record.error))
    return results


def _records_of(what: str) -> list[PluginRecord]:
    return [record for record in registry.plugins() if what in (record.name, record.package)]


def find_named_by_name(name: str) -> list[Named]:
    """Return everything with a name, of any plugin and kind."""
    found = []
    for kind in CONTRACTS:
        found += [named for named in _all_of(kind) if named.name == name]
    return found


def _all_of(kind: str) -> list[Named]:
    return [Named(kind, name, value, registry.find(kind, name)[0]) for name, value in registry.values(kind).items()]


def check_documentation(named: Named) -> None:
    """A name has a docstring, whose first line ``pml-ext list`` shows."""
    text = named.value.summary if named.kind == "command" else getattr(named.value, "__doc__", None)
    if not isinstance(text, str) or not text.strip():
        raise AssertionError("it has no docstring (or summary), which `pml-ext list` and --help show; write one")


# Checks by kind; plugins add more with the hook ``pml_ext_checks``.
CONTRACTS: dict[str, tuple[Contract, ...]] = {
    **dict.fromkeys(
        ("data set", "trunk", "transform", "metric", "tracker", "store", "command"), (check_documentation,)
    ),
    "recipe": (),
}


def check_named(named: Named) -> list[CheckResult]:
    """Return the results of a named value's checks."""
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
            own = getattr(check, "__globals__", {}).get("__file__", KIT)
            raised_in = traceback.extract_tb(raised.__traceback__)[-1].filename
            is_finding = isinstance(raised, AssertionError) and raised_in.startswith((KIT, own))
            text = str(raised) if is_finding else error_summary(raised)
        results.append(CheckResult(named.title, check.__name__, status, text, error))  # type: ignore[arg-type]
    return results


def checks_of_tools(kind: str) -> list[Contract]:
    """Return a kind's checks from the hook ``pml_ext_checks``."""
    return [check for name, check in registry.values("check").items() if name.rpartition(":")[2] == kind]
