"""Checks that are run: expected failures, errors, and what is skipped."""

from typing import ClassVar

import pytest
from pytorch_metric_learning.losses import CircleLoss as PMLCircleLoss

from pml_ext.testing import check_component, parametrize_with_checks
from tests.testing.planted import ByHand, bug_of

MeanInside = bug_of("check_reducers")
ValueAlone = bug_of("check_call_forms")
StopsHalfway = bug_of("check_sampler")


class Honest(MeanInside):
    expected_failed_checks: ClassVar = {"check_reducers": "a value of the whole batch"}


def test_expected_failures_need_a_reason_and_must_fail():
    reason = {"check_reducers": "the mean is taken inside on purpose"}
    some = {"checks": ["check_reducers"]}
    for component, given, wanted in (
        (MeanInside(), reason, reason),
        (Honest, None, Honest.expected_failed_checks),  # the class itself says so
        (Honest, reason, reason),
    ):
        (found,) = check_component(component, given, **some)
        assert (found.status, found.text) == ("xfail", wanted["check_reducers"])
    marks = parametrize_with_checks([MeanInside()], expected_failed_checks=lambda c: reason).mark.args[1]
    (marked,) = [p for p in marks if p.marks]
    assert marked.id == f"{MeanInside.__name__}-check_reducers"
    assert marked.marks[0].kwargs == {"reason": reason["check_reducers"], "strict": True}


@pytest.mark.parametrize(
    ("component", "expected", "text"),
    [
        (ByHand(), {"check_reducers": "on purpose"}, "check_reducers: passed, but expected to fail"),
        (MeanInside(), {"check_reducers": " "}, "needs a reason"),
        (MeanInside(), {"check_reducer": "a typing error"}, "'check_reducer' is no check"),
    ],
)
def test_wrong_expectations_of_failures_are_named(component, expected, text):
    with pytest.raises((AssertionError, ValueError), match=text):
        check_component(component, expected, checks=["check_reducers"])


def test_what_a_component_raises_keeps_its_traceback():
    parameters = parametrize_with_checks([StopsHalfway]).mark.args[1]
    (marked,) = [p for p in parameters if p.id == f"{StopsHalfway.__name__}-check_sampler"]
    component, check = marked.values
    with pytest.raises(ZeroDivisionError) as raised:
        check(component)
    assert raised.traceback[-1].name == "<lambda>"
    text = r"fails 1 of 1 checks:\n  check_sampler: ZeroDivisionError"
    with pytest.raises(AssertionError, match=text) as raised:
        check_component(StopsHalfway, checks=["check_sampler"])
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_failures_are_listed_in_reading_order():
    with pytest.raises(AssertionError) as raised:
        check_component(bug_of("check_eval_keeps_state"), checks=["check_eval_keeps_state", "check_call_forms"])
    assert "read " not in str(raised.value)  # a single one
    with pytest.raises(AssertionError, match="read check_labels_are_used first: the others may follow") as raised:
        check_component(bug_of("check_labels_are_used"), fast=True)
    assert str(raised.value).splitlines()[1].startswith("  check_labels_are_used: ")


def test_loss_without_calls_skips_the_rest():
    results = check_component(ValueAlone, on_fail=None)
    assert [result.check for result in results if result.fails] == ["check_call_forms"]
    skipped = [result for result in results if result.check == "check_reducers"]
    assert [(r.status, r.text[:40]) for r in skipped] == [("skipped", "check_call_forms fails: compute_loss ret")]
    reason = {"check_call_forms": "it is no loss yet"}
    results = check_component(ValueAlone, reason, checks=["check_call_forms", "check_pickle"], on_fail=None)
    assert [result.status for result in results] == ["xfail", "failed"]  # nobody asked to leave the others out


class CircleLoss(ByHand):
    """A loss of somebody else with a name of PML's."""


def test_failures_by_design_are_pmls_own():
    (result,) = check_component(CircleLoss, checks=["check_gradients"], on_fail=None)
    assert result.status == "passed"
    (result,) = check_component(PMLCircleLoss, checks=["check_gradients"], on_fail=None)
    assert result.status == "xfail"
