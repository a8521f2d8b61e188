"""``pml-ext plugins``, ``check`` and ``new-plugin``."""

from __future__ import annotations

import dataclasses
import itertools
import shlex
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from pml_ext.errors import ConfigError, PluginWarning, one_line

from .options import AsJson, Verbose
from .output import print_json, print_result, print_table, stderr, stdout

if TYPE_CHECKING:
    from pml_ext.testing.runner import CheckResult

    from .diagnosis import PluginDiagnosis

COUNTED = ("passed", "failed", "skipped", "xfail")


def plugins(verbose: Verbose = False, as_json: AsJson = False) -> None:
    """List the installed plugins; exit code 1 if one is broken.

    Examples:
        pml-ext plugins
        pml-ext plugins --verbose
    """
    from .diagnosis import diagnosis

    with warnings.catch_warnings(action="ignore", category=PluginWarning):  # the table shows the same problems
        records = diagnosis()
    if verbose and not as_json:
        stdout().print("\n".join(map(_details, records)), soft_wrap=True)
    else:
        rows = [
            [record.name, record.distribution, record.version, record.module, record.status, record.error]
            for record in records
        ]
        columns = ["name", "distribution", "version", "module", "status", "why"]
        print_result(as_json, records, columns=columns, rows=rows)
    if any(record.status == "broken" for record in records):
        raise Exit(1)


def _details(record: PluginDiagnosis) -> str:
    lines = [
        f"{record.name}: {record.distribution} {record.version}, module {record.module}, {record.status}",
        f"  hooks       {', '.join(record.hooks) or 'none'}",
        f"  components  {record.components}",
        f"  commands    {', '.join(record.commands) or 'none'}",
        f"  seconds     {record.seconds:.3f}",
        *(f"  clash       {clash}" for clash in record.clashes),
        *(f"  {line}" for line in record.traceback.splitlines()),
    ]
    return "\n".join(lines)


def check(
    what: Annotated[str, Argument(metavar="NAME", help="Package, package.Class, plugin, component, or pml.")],
    fast: Annotated[bool, Option("--fast", help="Skip compiler, devices, processes and PML's trainer.")] = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Run the conformance checks; exit code 1 if one fails.

    A plugin's recipes, data sets, transforms, trunks, metrics, trackers, stores and commands are checked, too.

    Examples:
        pml-ext check cbml
        pml-ext check my_package --verbose
    """
    from pml_ext.testing.runner import CheckResult, check_component

    from .targets import broken_plugins, check_named, find_components, find_named, find_named_by_name

    all_named = find_named(what)
    results: list[CheckResult] = broken_plugins(what)
    try:
        components = find_components(what)
    except Exception:  # by a package that cannot be imported, too
        components = []
        all_named = all_named or find_named_by_name(what)
        if not all_named and not results:
            raise
    for name, component in components:
        stderr().print(f"checking {name}")
        try:
            checked = check_component(component, fast=fast, on_fail=None)
        except ConfigError as error:
            checked = [CheckResult(name, "-", "skipped", str(error))]
        except (Exception, SystemExit) as error:  # such as a class that cannot be imported; the others are checked
            checked = [CheckResult(name, "check_constructor", "failed", one_line(error), error)]
        results.extend(dataclasses.replace(result, component=name) for result in checked)
    for title, group in itertools.groupby(all_named, key=lambda named: named.title):
        stderr().print(f"checking {title}")
        for named in group:
            results += check_named(named)
    if as_json:
        keys = ("component", "check", "status", "text")
        print_json([{key: getattr(result, key) for key in keys} for result in results])
    else:
        _print_checks(results, verbose)
    if any(result.fails for result in results):
        raise Exit(1)


def _print_checks(results: list[CheckResult], verbose: bool) -> None:
    """Write counts by component, the failed checks (with ``verbose`` all), and total counts."""
    from pml_ext.testing.runner import failures_in_reading_order

    counts = []
    rows: list[list[str]] = []
    to_read_first = []
    for component in dict.fromkeys(result.component for result in results):
        of_component = [result for result in results if result.component == component]
        counts.append([component, *_counts(of_component)])
        failures = failures_in_reading_order(of_component)
        rest = [result for result in of_component if not result.fails and (verbose or result.check == "-")]
        rows += [[result.component, result.check, result.status, result.text] for result in [*failures, *rest]]
        if len(failures) > 1:
            to_read_first.append(f"{component}: read {failures[0].check} first; the others may follow from it")

    print_table(["component", *COUNTED], counts, right=[1, 2, 3, 4])
    if rows:
        print_table(["component", "check", "result", ""], rows)
    for line in to_read_first:
        stdout().print(line, soft_wrap=True)
    if verbose:
        for result in results:
            if result.fails and result.error is not None:
                raised = "".join(traceback.format_exception(result.error))
                stdout().print(f"{result.component}, {result.check}:\n{raised}", soft_wrap=True)
    stdout().print(", ".join(map(" ".join, zip(_counts(results), COUNTED, strict=True))))


def _counts(results: list[CheckResult]) -> list[str]:
    """Return the number of results for each of :data:`COUNTED`."""
    counts: Counter[str] = Counter("failed" if result.fails else result.status for result in results)
    return [str(counts[status]) for status in COUNTED]


def new_plugin(
    name: Annotated[
        str, Argument(metavar="NAME", help="Name of package, entry point and loss, in kebab-case: my-loss.")
    ],
    out: Annotated[Path | None, Option("--out", "-o", help="The folder to write (default NAME).")] = None,
) -> None:
    """Write a new plugin: a package with a loss, a recipe and tests.

    Examples:
        pml-ext new-plugin my-loss
        pml-ext new-plugin my-loss --out packages/my-loss
    """
    from .scaffold import new_plugin as write

    for path in write(name, out):
        stdout().print(str(path), soft_wrap=True)
    package = name.replace("-", "_")
    folder = shlex.quote(str(out or name))
    stdout().print(f"next: cd {folder}; pip install -e '.[dev]'; pytest; pml-ext check {package}", soft_wrap=True)
