"""``pml-ext check``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .options import AsJson
from .output import print_json, print_table, stderr, stdout

if TYPE_CHECKING:
    from ..testing.runner import CheckResult

COUNTED = ("passed", "failed", "skipped", "xfail")


def check(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT", help="An importable package, package.Class, an entry point, a component's name, or pml."
        ),
    ],
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show every check, its findings and traceback.")
    ] = False,
    as_json: AsJson = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME.SETTING=VALUE", help="A setting of a component; may be repeated."),
    ] = None,
    expected: Annotated[
        list[str] | None,
        typer.Option("--expect-failure", metavar="[NAME.]CHECK=REASON", help="A check that fails on purpose."),
    ] = None,
) -> None:
    """Run the conformance checks over a package's components; exit code 1 if one fails."""
    import dataclasses

    from ..errors import ConfigError
    from ..testing.runner import CheckResult, check_component
    from ..testing.targets import components_of, expectations, with_settings

    results: list[CheckResult] = []
    components = with_settings(components_of(what), settings or ())
    reasons = expectations(components, expected or ())
    for name, component in components:
        stderr().print(f"checking {name}")
        try:
            checked = check_component(component, reasons.get(name), on_fail=None)
            results += [dataclasses.replace(result, component=name) for result in checked]
        except ConfigError as error:
            results.append(CheckResult(name, "-", "skipped", str(error)))
    if as_json:
        print_json([{"component": r.component, "check": r.check, "status": r.status, "text": r.text} for r in results])
    else:
        _print(results, verbose)
    if any(result.fails for result in results):
        raise typer.Exit(1)


def _print(results: list[CheckResult], verbose: bool) -> None:
    names = dict.fromkeys(result.component for result in results)
    print_table(["component", *COUNTED], [[name, *_counts(results, name)] for name in names], right=[1, 2, 3, 4])
    shown = [r for r in results if verbose or r.fails or r.check == "-"]
    if shown:
        print_table(["component", "check", "result", ""], [[r.component, r.check, r.status, r.text] for r in shown])
    for result in results if verbose else ():
        if result.fails and result.error is not None:
            stdout().print(f"{result.component}, {result.check}:\n{result.traceback}", soft_wrap=True)
    stdout().print(", ".join(f"{count} {status}" for status, count in zip(COUNTED, _counts(results), strict=True)))


def _counts(results: list[CheckResult], component: str | None = None) -> list[str]:
    mine: list[str] = ["failed" if r.fails else r.status for r in results if component in (None, r.component)]
    return [str(mine.count(status)) for status in COUNTED]
