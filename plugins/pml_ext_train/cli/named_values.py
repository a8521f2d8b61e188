"""Conformance checks of everything that a plugin provides besides components."""

from __future__ import annotations

import contextlib
import sys
import traceback

import torch

from pml_ext import registry
from pml_ext.testing import CheckResult, Named, SkipCheck
from pml_ext.testing.calling import KIT, error_summary
from pml_ext.testing.contracts import Contract
from pml_ext.testing.subject import set_seed


def check_documentation(named: Named) -> None:
    """A name needs a docstring; ``pml-ext list`` shows its first line."""
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
            own = getattr(check, "__globals__", {}).get("__file__", KIT)
            raised_in = traceback.extract_tb(raised.__traceback__)[-1].filename
            is_finding = isinstance(raised, AssertionError) and raised_in.startswith((KIT, own))
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
