"""Runs the checks, alone or under pytest."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch

from .checks import CHECKS, COMPARED, Check
from .subject import Settings, SkipCheck, Subject, subject_of

Reference = Callable[..., Any]
Expected = Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class CheckResult:
    """What became of one check.

    Args:
        component: the component's name.
        check: the check's name.
        status: ``"passed"``, ``"failed"``, ``"skipped"``, ``"xfail"`` (failed, as expected) or ``"xpass"`` (expected to
            fail, but passed).
        text: the failure's message, why it was skipped or expected, or what a check that passed found out.
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
    return list(CHECKS[kind])


def check_component(
    component: Any,
    expected_failed_checks: Expected | None = None,
    *,
    reference: Reference | None = None,
    settings: Settings | None = None,
    without_effect: Iterable[str] = (),
    checks: Iterable[str] | None = None,
    on_fail: Literal["raise", "warn"] | None = "raise",
    callback: Callable[[CheckResult], None] | None = None,
) -> list[CheckResult]:
    """Runs the checks of a component.

    With a ``reference``, a slow form that is written from the equation, ``check_reference`` compares values and
    gradients over the kit's batches. It is called as ``reference(embeddings, labels, **settings)`` and returns the
    value of the whole batch: a tensor, through which the gradient is compared too, or a plain number, whose derivative
    is compared along a direction. One that names ``indices_tuple``, or ``ref_emb`` and ``ref_labels``, gets what a
    miner chose of a batch, and references; one that names ``component`` gets the instance, for its parameters. It may
    raise :class:`SkipCheck` where it cannot do a setting.

    Of a class it is compared under every table of ``settings``, and with another value of each number and each flag
    among the settings of the class. ``check_settings`` fails a setting that changes neither value nor gradient.

    Args:
        component: a :class:`pml_ext.Component`, a class, or an instance built with its settings.
        expected_failed_checks: ``{check name: reason}``, beside what the class's attribute of this name says; one
            that passes nevertheless fails the run.
        reference: the slow form of a loss, a regularizer or a distance.
        settings: of a class, values by name, ``{"margin": [0.1, 0.5], "kind": ["soft"]}``, each with each as in
            scikit-learn's ``ParameterGrid``, or a list of such tables. The first combination is what all other checks
            use.
        without_effect: settings that change how the value is computed and not what it is, such as the size of a tile.
        checks: names of the checks to run; all by default.
        on_fail: raise an AssertionError after the last check, warn, or do nothing (None) if something failed.
        callback: called with every result.

    Returns:
        A result for each check.

    Raises:
        AssertionError: a check failed, or one that was expected to fail passed; the text has all of them.
        ConfigError: a class that needs settings, settings that it does not have, or no component at all.
        ValueError: an expected failure without a reason, or a check that there is not.

    Example:
        >>> from pytorch_metric_learning.regularizers import LpRegularizer
        >>> def loop(embeddings, p=2, power=1):
        ...     return sum((x.abs() ** p).sum() ** (power / p) for x in embeddings) / len(embeddings)
        >>> compared = check_component(LpRegularizer, reference=loop, checks=["check_reference", "check_settings"])
        >>> [result.status for result in compared]
        ['passed', 'passed']
    """
    subject = subject_of(component, reference, settings, without_effect)
    chosen = _chosen(subject, checks)
    expected = _expected(subject, expected_failed_checks or {})
    results = []
    for check in chosen:
        result = _run(subject, check, expected)
        results.append(result)
        if callback:
            callback(result)
    failures = [f"{result.check}: {result.text}" for result in results if result.fails]
    if failures and on_fail is not None:
        text = f"{subject.name} fails {len(failures)} of {len(chosen)} checks:\n  " + "\n  ".join(failures)
        if on_fail == "raise":
            raise AssertionError(text)
        warnings.warn(text, stacklevel=2)
    return results


def _chosen(subject: Subject, names: Iterable[str] | None) -> list[Check]:
    """The checks of a subject; some by name."""
    every = checks_of(subject.kind) + (COMPARED if subject.grid is not None else [])
    if names is None:
        return every
    by_name = {check.__name__: check for check in every}
    for name in names:
        if name not in by_name:
            raise ValueError(f"checks names {name!r}, which is no check of a {subject.kind}; checks: "
                             f"{', '.join(sorted(by_name))}")  # fmt: skip
    return [by_name[name] for name in names]


def _expected(subject: Subject, given: Expected) -> Expected:
    """What the class says that it fails, and what the caller says."""
    expected = {**getattr(subject.make(), "expected_failed_checks", {}), **given}
    names = {check.__name__ for check in _chosen(subject, None)}
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
            note = check(subject)
    except SkipCheck as reason:
        return make("skipped", str(reason))
    except Exception as error:
        text = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        return make("xfail", expected[name]) if name in expected else make("failed", text or "an assertion failed")
    finally:
        torch.set_rng_state(state)
    if name in expected:
        return make("xpass", f"it passes, but was expected to fail ({expected[name]}); take it off the list")
    return make("passed", note or "")


def parametrize_with_checks(
    components: Iterable[Any],
    *,
    expected_failed_checks: Callable[[Any], Expected] | None = None,
    reference: Reference | None = None,
    settings: Settings | None = None,
    without_effect: Iterable[str] = (),
) -> Any:
    """A pytest decorator: one test for each component and check, called with ``component`` and ``check``.

    Args:
        components: each as of :func:`check_component`.
        expected_failed_checks: called with a component, returns ``{check name: reason}``; such a test is a strict
            xfail, so that one that passes fails the run.
        reference: as of :func:`check_component`, for all of them, as the two that follow.
        settings: values by name, or a list of such tables.
        without_effect: names of settings.

    Example:
        >>> from pml_ext import CBMLLoss
        >>> @parametrize_with_checks([CBMLLoss()])
        ... def test_conformance(component, check):
        ...     check(component)
    """
    import pytest

    parameters = []
    for component in components:
        subject = subject_of(component, reference, settings, without_effect)
        chosen = _chosen(subject, None)
        expected = _expected(subject, expected_failed_checks(component) if expected_failed_checks else {})
        for check in chosen:
            name = check.__name__
            marks = [pytest.mark.xfail(reason=expected[name], strict=True)] if name in expected else []
            parameters.append(
                pytest.param(component, _as_test(check, subject, component), id=f"{subject.name}-{name}", marks=marks)
            )
    return pytest.mark.parametrize(("component", "check"), parameters)


def _as_test(check: Check, subject: Subject, given: Any) -> Callable[[Any], None]:
    @functools.wraps(check)
    def test(component: Any) -> None:
        import pytest

        # one subject for all checks of a component: they share what it knows
        result = _run(subject if component is given else subject_of(component), check, {})
        if result.status == "skipped":
            pytest.skip(result.text)
        assert result.status == "passed", result.text

    return test
