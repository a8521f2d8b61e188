"""Runs the checks, alone or under pytest."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch

from .loss_checks import LOSS_CHECKS
from .other_checks import OTHER_CHECKS, check_capabilities
from .subject import SkipCheck, Subject, subject_of

Check = Callable[[Subject], None]
Expected = Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class CheckResult:
    """What became of one check.

    Args:
        component: the component's name.
        check: the check's name.
        status: ``"passed"``, ``"failed"``, ``"skipped"``, ``"xfail"`` (failed, as expected) or ``"xpass"`` (expected to
            fail, but passed).
        text: the failure's message, or why it was skipped or expected.
    """

    component: str
    check: str
    status: Literal["passed", "failed", "skipped", "xfail", "xpass"]
    text: str = ""

    @property
    def fails(self) -> bool:
        """Whether a run with this result has failed."""
        return self.status in ("failed", "xpass")


def checks_of(kind: str) -> list[Check]:
    """The checks of a kind of components, in the order in which they run.

    Args:
        kind: one of :data:`pml_ext.registry.KINDS`.
    """
    return [check_capabilities, *LOSS_CHECKS] if kind == "loss" else list(OTHER_CHECKS[kind])


def check_component(
    component: Any,
    expected_failed_checks: Expected | None = None,
    *,
    on_fail: Literal["raise", "warn"] | None = "raise",
    callback: Callable[[CheckResult], None] | None = None,
) -> list[CheckResult]:
    """Runs all checks of a component.

    Args:
        component: a :class:`pml_ext.Component`, a class, or an instance built with its settings.
        expected_failed_checks: ``{check name: reason}``; one that passes nevertheless fails the run.
        on_fail: raise an AssertionError after the last check, warn, or do nothing (None) if something failed.
        callback: called with every result.

    Returns:
        A result for each check.

    Raises:
        AssertionError: a check failed, or one that was expected to fail passed; the text has all of them.
        ConfigError: a class that needs settings, or no component at all.
        ValueError: an expected failure without a reason, or of a check that there is not.
    """
    subject = subject_of(component)
    checks = checks_of(subject.kind)
    expected = _checked(expected_failed_checks or {}, checks)
    results = []
    for check in checks:
        result = _run(subject, check, expected)
        results.append(result)
        if callback:
            callback(result)
    failures = [f"{result.check}: {result.text}" for result in results if result.fails]
    if failures and on_fail is not None:
        text = f"{subject.name} fails {len(failures)} of {len(checks)} checks:\n  " + "\n  ".join(failures)
        if on_fail == "raise":
            raise AssertionError(text)
        warnings.warn(text, stacklevel=2)
    return results


def _checked(expected: Expected, checks: Iterable[Check]) -> Expected:
    names = {check.__name__ for check in checks}
    for name, reason in expected.items():
        if name not in names:
            raise ValueError(
                f"expected_failed_checks names {name!r}, which is no check; checks: {', '.join(sorted(names))}"
            )
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(f"expected_failed_checks[{name!r}] wants a reason, not {reason!r}")
    return expected


def _run(subject: Subject, check: Check, expected: Expected) -> CheckResult:
    name = check.__name__
    make = functools.partial(CheckResult, subject.name, name)
    state = torch.get_rng_state()
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check(subject)
    except SkipCheck as reason:
        return make("skipped", str(reason))
    except Exception as error:
        text = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        return make("xfail", expected[name]) if name in expected else make("failed", text or "an assertion failed")
    finally:
        torch.set_rng_state(state)
    if name in expected:
        return make("xpass", f"it passes, but was expected to fail ({expected[name]}); take it off the list")
    return make("passed")


def parametrize_with_checks(
    components: Iterable[Any], *, expected_failed_checks: Callable[[Any], Expected] | None = None
) -> Any:
    """A pytest decorator: one test for each component and check, called with ``component`` and ``check``.

    Args:
        components: each as of :func:`check_component`.
        expected_failed_checks: called with a component, returns ``{check name: reason}``; such a test is a strict
            xfail, so that one that passes fails the run.

    Example:
        >>> from pml_ext import CBMLLoss
        >>> @parametrize_with_checks([CBMLLoss()])
        ... def test_conformance(component, check):
        ...     check(component)
    """
    import pytest

    parameters = []
    for component in components:
        subject = subject_of(component)
        checks = checks_of(subject.kind)
        expected = _checked(expected_failed_checks(component) if expected_failed_checks else {}, checks)
        for check in checks:
            name = check.__name__
            marks = [pytest.mark.xfail(reason=expected[name], strict=True)] if name in expected else []
            parameters.append(pytest.param(component, _as_test(check), id=f"{subject.name}-{name}", marks=marks))
    return pytest.mark.parametrize(("component", "check"), parameters)


def _as_test(check: Check) -> Callable[[Any], None]:
    @functools.wraps(check)
    def test(component: Any) -> None:
        import pytest

        result = _run(subject_of(component), check, {})
        if result.status == "skipped":
            pytest.skip(result.text)
        assert result.status == "passed", result.text

    return test
