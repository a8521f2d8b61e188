"""The results of the contract of what a plugin names beside components."""

from __future__ import annotations

import contextlib
import sys
import traceback

import torch

from .. import registry
from .calling import KIT, error_summary
from .contracts import CONTRACTS, Contract, Named
from .runner import CheckResult
from .subject import SkipCheck, set_seed


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
