"""``pml-ext plugins``, ``check`` and ``new-plugin``."""

from __future__ import annotations

import collections
import dataclasses
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from ..errors import ConfigError, PluginWarning
from .options import AsJson, Verbose
from .output import print_json, print_result, print_table, stderr, stdout

if TYPE_CHECKING:
    from ..registry.discovery import PluginRecord
    from ..testing.runner import CheckResult

COUNTED = ("passed", "failed", "skipped", "xfail")


def plugins(verbose: Verbose = False, as_json: AsJson = False) -> None:
    """List the installed plugins; exit code 1 if one is broken."""
    from .. import registry

    with warnings.catch_warnings(action="ignore", category=PluginWarning):  # the table shows the same problems
        records = registry.plugins()
    if verbose and not as_json:
        stdout().print("\n".join(map(_details, records)), soft_wrap=True)
    else:
        rows = [[r.name, r.distribution, r.version, r.module, r.status, r.error] for r in records]
        columns = ["name", "distribution", "version", "module", "status", "why"]
        print_result(as_json, records, columns=columns, rows=rows)
    if any(record.status == "broken" for record in records):
        raise Exit(1)


def _details(record: PluginRecord) -> str:
    lines = [
        f"{record.name}: {record.distribution} {record.version}, module {record.module}, {record.status}",
        f"  hooks       {', '.join(record.hooks) or 'none'}",
        f"  components  {record.components}",
        f"  commands    {', '.join(record.commands) or 'none'}",
        f"  seconds     {record.seconds:.3f}",
        *[f"  clash       {clash}" for clash in record.clashes],
        *[f"  {line}" for line in record.traceback.splitlines()],
    ]
    return "\n".join(lines)


def check(
    what: Annotated[str, Argument(metavar="NAME", help="Package, package.Class, plugin, component, or pml.")],
    fast: Annotated[bool, Option("--fast", help="Skip compiler, devices, processes and PML's trainer.")] = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Run the conformance checks; exit code 1 if one fails."""
    from ..testing.runner import CheckResult, check_component
    from ..testing.subject import find_components

    results: list[CheckResult] = []
    for name, component in find_components(what):
        stderr().print(f"checking {name}")
        try:
            checked = check_component(component, fast=fast, on_fail=None)
            results += [dataclasses.replace(result, component=name) for result in checked]
        except ConfigError as error:
            results.append(CheckResult(name, "-", "skipped", str(error)))
    if as_json:
        print_json([{"component": r.component, "check": r.check, "status": r.status, "text": r.text} for r in results])
    else:
        _print_checks(results, verbose)
    if any(result.fails for result in results):
        raise Exit(1)


def _print_checks(results: list[CheckResult], verbose: bool) -> None:
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for result in results:
        for name in (result.component, ""):
            counts[name]["failed" if result.fails else result.status] += 1
    rows = [[name, *(str(count[status]) for status in COUNTED)] for name, count in counts.items() if name]
    print_table(["component", *COUNTED], rows, right=[1, 2, 3, 4])
    if shown := [r for r in results if verbose or r.fails or r.check == "-"]:
        print_table(["component", "check", "result", ""], [[r.component, r.check, r.status, r.text] for r in shown])
    for result in results if verbose else ():
        if result.fails and result.error is not None:
            raised = traceback.format_exception(result.error)
            stdout().print(f"{result.component}, {result.check}:\n{''.join(raised)}", soft_wrap=True)
    stdout().print(", ".join(f"{counts[''][status]} {status}" for status in COUNTED))


def new_plugin(
    name: Annotated[str, Argument(help="Name of package, entry point and loss, in kebab-case: my-loss.")],
    out: Annotated[Path | None, Option("--out", "-o", help="The folder to write (default NAME).")] = None,
) -> None:
    """Write a new plugin: a package with a loss, a recipe and tests."""
    from ..registry.scaffold import new_plugin as write

    for path in write(name, out):
        stdout().print(str(path))
    stdout().print(f"next: cd {out or name}; pip install -e .; pytest; pml-ext check {name.replace('-', '_')}")
