"""Run the checks, alone or under pytest."""

import dataclasses
import functools
import logging
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from .calling import error_location, error_summary, has_fixed_rows
from .checks import (
    CHECKS,
    READ_FIRST,
    SLOW,
    Check,
    check_call_forms,
    check_constructor,
    check_docstring,
    settings_of_process,
)
from .subject import Settings, SkipCheck, Subject, kept_generators, set_seed, subject_of

_PACKAGED = "it takes batches of packaged triplets alone: anchor, positive, negative"
_PACKAGED_CHECKS = (
    "check_degenerate_batches",
    "check_mined_indices",
    "check_mined_references",
    "check_calls_are_independent",
    "check_order_does_not_matter",
    "check_arguments",
)
_NOT_REDUCED = "it returns the dictionary that it is given"
_NOT_REDUCED_CHECKS = (
    "check_reducer",
    "check_pickle",
    "check_calls_are_independent",
    "check_modes",
    "check_order_does_not_matter",
)
# Classes of PML that fail a check by design, such as that of their paper.
_BY_DESIGN = {
    "CircleLoss": {"check_gradients": "its weights are constants in the gradient, as in the paper"},
    "EmbeddingsAlreadyPackagedAsTriplets": dict.fromkeys(_PACKAGED_CHECKS, _PACKAGED),
    "DoNothingReducer": dict.fromkeys(_NOT_REDUCED_CHECKS, _NOT_REDUCED),
}

Reference = Callable[..., Any]
Expected = Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class CheckResult:
    """Outcome of one check; the text has a failure, the reason of a skip, or a finding."""

    component: str
    check: str
    status: Literal["passed", "failed", "skipped", "xfail", "xpass"]
    text: str = ""
    error: BaseException | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def fails(self) -> bool:
        """Whether this result fails the run."""
        return self.status in ("failed", "xpass")


def check_component(
    component: Any,
    expected_failed_checks: Expected | None = None,
    *,
    reference: Reference | None = None,
    settings: Settings | None = None,
    without_effect: Iterable[str] = (),
    embedding_size: int | None = None,
    num_classes: int | None = None,
    checks: Iterable[str] | None = None,
    fast: bool = False,
    on_fail: Literal["raise"] | None = "raise",
) -> list[CheckResult]:
    """Run the checks of a component; return a result for each.

    ``reference(embeddings, labels, **settings)`` returns the value of the whole batch: a tensor, whose gradient is
    compared too, or a number. For a miner it returns the set of triplets ``{(anchor, positive, negative), ...}``, or
    two sets of pairs, ``({(anchor, positive), ...}, {(anchor, negative), ...})``. Parameters named ``indices_tuple``,
    ``ref_emb`` and ``ref_labels`` get a miner's indices and references; ``component`` gets the instance. It may raise
    :class:`SkipCheck`. A class is compared under every table of ``settings``, and with other values of each flag,
    ``Literal`` and number.

    Args:
        component: a :class:`pml_ext.plugin.Component`, a class, a ``functools.partial`` of one, or an instance built
            with its settings.
        expected_failed_checks: ``{check name: reason}``, added to the class's attribute of this name; if one of them
            passes, the run fails.
        reference: a slow implementation.
        settings: values of a class's settings by name, ``{"margin": [0.1, 0.5], "kind": ["soft"]}``, combined as in
            scikit-learn's ``ParameterGrid``, or a list of such tables. The other checks use the first combination.
        without_effect: settings that change how the value is computed but not the value, such as a tile size.
        embedding_size: length of the embeddings; by default the component's attribute or setting of this name, or 8.
        num_classes: number of classes in a batch; by default the component's attribute or setting of this name, or 6.
        checks: names of the checks to run; all by default. A loss that fails ``check_call_forms`` skips the others.
        fast: whether to leave out the checks that need a compiler, another device, another process or PML's trainer.
        on_fail: ``"raise"`` an AssertionError after the last check, or None to only return the results.

    Raises:
        AssertionError: a check failed, or one that was expected to fail passed; the text lists all of them.
        ConfigError: a setting of the class is missing or unknown.
        ValueError: an expected failure without a reason, or an unknown check.

    Example:
        >>> from pytorch_metric_learning.regularizers import LpRegularizer
        >>> def loop(embeddings, p=2, power=1):
        ...     return sum((x.abs() ** p).sum() ** (power / p) for x in embeddings) / len(embeddings)
        >>> compared = check_component(LpRegularizer, reference=loop, checks=["check_reference", "check_settings"])
        >>> [result.status for result in compared]
        ['passed', 'passed']
    """
    subject = subject_of(component, reference, settings, without_effect, embedding_size, num_classes)
    chosen = [check for check in _chosen(subject, checks) if not (fast and check in SLOW)]
    expected = _expected(subject, expected_failed_checks or {})
    results = [_run(subject, check, expected) for check in chosen]
    failures = failures_in_reading_order(results)
    if failures and on_fail == "raise":
        texts = "\n  ".join(f"{result.check}: {result.text}" for result in failures)
        text = f"{subject.name} fails {len(failures)} of {len(chosen)} checks:\n  {texts}"
        if len(failures) > 1:
            text += f"\n  read {failures[0].check} first: the others may follow from it"
        raise AssertionError(text) from failures[0].error
    return results


def failures_in_reading_order(results: Iterable[CheckResult]) -> list[CheckResult]:
    """The results that fail, first those that explain others."""
    places = {check: place for place, check in enumerate(READ_FIRST)}
    failures = [result for result in results if result.fails]
    return sorted(failures, key=lambda result: places.get(result.check, len(places)))


def _chosen(subject: Subject, names: Iterable[str] | None = None) -> list[Check]:
    by_name = {check.__name__: check for check in CHECKS[subject.kind]}
    if names is None:
        return list(by_name.values())
    chosen = []
    for name in names:
        if name not in by_name:
            raise ValueError(f"{name!r} is no check of a {subject.kind}; checks: {', '.join(sorted(by_name))}")
        chosen.append(by_name[name])
    return chosen


def _expected(subject: Subject, given: Expected) -> Expected:
    by_design: Expected = {}
    try:
        component = subject.make()
        if type(component).__module__.startswith("pytorch_metric_learning."):
            by_design = _BY_DESIGN.get(subject.name, {})
        declared = getattr(component, "expected_failed_checks", {})
    except (Exception, SystemExit):  # check_constructor reports it
        declared = {}
    expected = {**by_design, **declared, **given}
    _chosen(subject, expected)
    for name, reason in expected.items():
        if not reason.strip():
            raise ValueError(f"expected_failed_checks[{name!r}] needs a reason")
    return expected


def _run(subject: Subject, check: Check, expected: Expected) -> CheckResult:
    name = check.__name__
    result = functools.partial(CheckResult, subject.name, name)
    if not subject.findings.settings_of_process:  # before the component's first call
        subject.findings.settings_of_process = settings_of_process()
    silenced = logging.root.manager.disable
    try:
        if check not in (check_constructor, check_docstring):
            _require(subject, check_constructor)
        needs_calls = subject.kind == "loss" and check not in (check_constructor, check_docstring, check_call_forms)
        if needs_calls and check_call_forms.__name__ not in expected:
            _require(subject, check_call_forms)
        logging.disable(logging.WARNING)  # messages of PML's trainers and torch.compile
        with kept_generators(), warnings.catch_warnings(action="ignore"):
            set_seed(0)
            note = check(subject)
    except SkipCheck as reason:
        return result("skipped", str(reason))
    except (Exception, SystemExit) as error:
        if not isinstance(error, AssertionError) and has_fixed_rows(subject):
            return result("skipped", "it takes one number of rows alone, as a regularizer of weights does")
        if name in expected:
            return result("xfail", expected[name], error)
        return result("failed", _message(error), error)
    finally:
        logging.disable(silenced)
    if name in expected:
        return result("xpass", f"passed, but expected to fail ({expected[name]}); remove it from the expected failures")
    return result("passed", note or "")


def _message(error: BaseException) -> str:
    if isinstance(error, AssertionError) and not error_location(error):
        return str(error) or "an assertion failed"
    return error_summary(error)


def _require(subject: Subject, check: Check) -> None:
    """Skip a check if the component fails ``check``, on which all depend."""
    if check not in CHECKS[subject.kind]:
        return
    failures = subject.findings.failures
    if check.__name__ not in failures:
        result = _run(subject, check, {})
        failures[check.__name__] = f"{check.__name__} fails: {result.text}" if result.fails else ""
    if failures[check.__name__]:
        raise SkipCheck(failures[check.__name__])


def parametrize_with_checks(
    components: Iterable[Any],
    *,
    expected_failed_checks: Callable[[Any], Expected] | None = None,
    **options: Any,
) -> Any:
    """A pytest decorator that calls a test with each ``component`` and ``check``.

    Args:
        components: each as in :func:`check_component`.
        expected_failed_checks: returns ``{check name: reason}`` for a component; such a test is a strict xfail.
        options: ``reference``, ``settings``, ``without_effect``, ``embedding_size`` and ``num_classes`` of
            :func:`check_component`, for all of the components.

    Example:
        >>> from pml_ext import CBMLLoss
        >>> @parametrize_with_checks([CBMLLoss()])
        ... def test_conformance(component, check):
        ...     check(component)
    """
    import pytest

    parameters = []
    for component in components:
        subject = subject_of(component, **options)
        expected = _expected(subject, expected_failed_checks(component) if expected_failed_checks else {})
        for check in _chosen(subject):
            name = check.__name__
            marks = [pytest.mark.xfail(reason=expected[name], strict=True)] if name in expected else []
            test = _as_test(check, subject, expected)
            parameters.append(pytest.param(component, test, id=f"{subject.name}-{name}", marks=marks))
    return pytest.mark.parametrize(("component", "check"), parameters)


def _as_test(check: Check, subject: Subject, expected: Expected) -> Callable[[Any], None]:
    @functools.wraps(check)
    def test(component: Any) -> None:
        import pytest

        result = _run(subject, check, expected)
        if result.status == "skipped":
            pytest.skip(result.text)
        if result.error is not None:
            raise result.error

    return test
