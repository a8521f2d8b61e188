"""The conformance kit: our own components pass, faults are found by the check that names them."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import wrong
from pytorch_metric_learning import losses, miners, reducers

import pml_ext
from pml_ext import registry
from pml_ext.errors import ConfigError
from pml_ext.testing import check_component, checks_of, parametrize_with_checks
from pml_ext.testing.targets import components_of

HERE = Path(__file__).parent
WRAPPERS = {"regularized"}


def ours():
    """Every registered component of the core and of the plugins, built where it needs settings."""
    found = [component for component in registry.components()
             if not component.name.startswith("pml/") and component.name not in WRAPPERS | {"anchor-swap"}
             and component.plugin != registry.LOCAL]  # fmt: skip
    return [
        *found,
        pml_ext.AnchorSwapMiner(miners.TripletMarginMiner(margin=1)),
        pml_ext.RegularizedLoss(losses.ContrastiveLoss(), pml_ext.MetricVarianceRegularizer(), weight=0.5),
        pml_ext.MultipleLosses({"contrastive": losses.ContrastiveLoss(), "cbml": pml_ext.CBMLLoss()}),
        pml_ext.reducers.SumOverDivisorReducer(),
        pml_ext.distances.EuclideanDistance(),
        pml_ext.distances.GramCosineSimilarity(),
    ]


EXPECTED = {
    "RegularizedLoss": {"check_reducers": "its two parts are reduced by their own reducers"},
    "MultipleLosses": {"check_dtypes": "PML's Lp distance takes torch.cdist, which has no half precision on a CPU"},
}
ONE_GRAPH = {"cbml", "metric-variance", "density"}
OLD_COMPILER = torch.__version__ < "2.6"


@parametrize_with_checks(ours(), expected_failed_checks=lambda component: EXPECTED.get(type(component).__name__, {}))
def test_our_own(component, check):
    try:
        check(component)
    except pytest.skip.Exception:
        one_graph = check.__name__ == "check_fullgraph" and getattr(component, "name", "") in ONE_GRAPH
        assert not one_graph or OLD_COMPILER
        raise


def test_the_good_one_passes():
    results = check_component(wrong.GoodLoss())
    assert {result.status for result in results} <= {"passed", "skipped"}
    skipped = {r.check for r in results if r.status == "skipped"}
    assert skipped <= {"check_cross_batch_memory"} | ({"check_compile", "check_fullgraph"} if OLD_COMPILER else set())


@pytest.mark.parametrize("component", wrong.WRONG, ids=lambda component: component.__name__)
def test_every_fault_is_found_by_the_check_that_names_it(component):
    check = wrong.WRONG[component]
    if check == "check_fullgraph" and OLD_COMPILER:
        pytest.skip("torch.compile of this version fails inside PML")
    results = {result.check: result for result in check_component(component, on_fail=None)}
    failed = {name: result.text for name, result in results.items() if result.fails}
    assert check in failed
    assert len(failed[check]) > 30
    assert component in wrong.FOUND_BY_SEVERAL or list(failed) == [check], failed
    with pytest.raises(AssertionError, match=rf"{component.__name__} fails 1 of 1 checks:\n  {check}: "):
        check_component(component(), checks=[check])


@pytest.mark.parametrize(("component", "check", "texts"), [
    (wrong.ForgetsTheDevice, "check_devices", r"add at wrong\.py:\d+ mixes a tensor of shape \(16,\) on the CPU"),
    (wrong.CallsItem, "check_no_host_sync", r"makes the host wait for the device: a value read at wrong\.py:\d+"),
    (wrong.WaitsInTheBackward, "check_no_host_sync", r"a value read at wrong\.py:\d+"),
    (wrong.MovesInEval, "check_eval_keeps_state", r"in eval\(\) mode changes seen of its state"),
    (wrong.EmptyBuffer, "check_hook_container", "a Tensor with 0 elements cannot be converted"),
    (wrong.RecordsAVector, "check_hook_container", "the recorded attribute hardest"),
])  # fmt: skip
def test_what_is_said_of_a_fault(component, check, texts):
    (result,) = check_component(component, checks=[check], on_fail=None)
    assert re.search(texts, result.text)


def test_expected_failures_need_a_reason_and_must_fail():
    reason = {"check_reducers": "the mean is taken inside on purpose"}
    some = {"checks": ["check_reducers", "check_pickle"]}
    found = {r.check: r for r in check_component(wrong.MeanInside(), reason, **some)}
    assert (found["check_reducers"].status, found["check_reducers"].text) == ("xfail", reason["check_reducers"])
    with pytest.raises(AssertionError, match="check_reducers: it passes, but was expected to fail"):
        check_component(wrong.GoodLoss(), reason, **some)
    with pytest.raises(ValueError, match="wants a reason"):
        check_component(wrong.MeanInside(), {"check_reducers": " "})
    with pytest.raises(ValueError, match="names 'check_reducer', which is no check"):
        check_component(wrong.MeanInside(), {"check_reducer": "a typing error"})
    marks = parametrize_with_checks([wrong.MeanInside()], expected_failed_checks=lambda c: reason).mark.args[1]
    (marked,) = [p for p in marks if p.marks]
    assert marked.id == "MeanInside-check_reducers"
    assert marked.marks[0].kwargs == {"reason": reason["check_reducers"], "strict": True}


def test_a_class_may_say_itself_what_it_fails():
    class Honest(wrong.MeanInside):
        expected_failed_checks: ClassVar = {"check_reducers": "a value of the whole batch"}

    (found,) = check_component(Honest, checks=["check_reducers"])
    assert (found.status, found.text) == ("xfail", "a value of the whole batch")
    (found,) = check_component(Honest, {"check_reducers": "another"}, checks=["check_reducers"])
    assert found.text == "another"


def test_warns_and_calls_back():
    heard, some = [], ["check_labels_are_used", "check_pickle"]
    with pytest.warns(UserWarning, match="check_labels_are_used"):
        check_component(wrong.LabelsIgnored(), checks=some, on_fail="warn", callback=heard.append)
    assert [result.check for result in heard] == some
    assert set(some) < {check.__name__ for check in checks_of("loss")}


def test_what_cannot_be_checked():
    with pytest.raises(ConfigError, match="RegularizedLoss needs loss, regularizer, .* check an instance"):
        check_component(pml_ext.RegularizedLoss)
    with pytest.raises(ConfigError, match="extends none of the base classes"):
        check_component(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("loss", "check"),
    [
        (losses.SmoothAPLoss(), "check_order_does_not_matter"),
        (losses.ThresholdConsistentMarginLoss(), "check_references"),
        (losses.AngularLoss(), "check_indices_tuple_of_pairs"),
        (losses.TripletMarginLoss(), "check_memory_growth"),
        (losses.ProxyAnchorLoss(6, 8), None),
    ],
    ids=lambda value: type(value).__name__ if value is not None and not isinstance(value, str) else "",
)
def test_a_sample_of_pmls(loss, check):
    failed = {result.check for result in check_component(loss, on_fail=None) if result.fails}
    assert check in failed if check else "check_order_does_not_matter" not in failed


def test_other_kinds_of_pml():
    assert not [r for r in check_component(miners.BatchHardMiner(), on_fail=None) if r.check == "check_mined_indices"
                and r.fails]  # fmt: skip
    assert not [r for r in check_component(reducers.MeanReducer(), on_fail=None) if r.fails]


def test_targets():
    assert [name for name, _ in components_of("cbml")] == ["cbml", "hard-pair", "metric-variance"]
    assert [name for name, _ in components_of("pml_ext_cbml")] == ["cbml", "hard-pair", "metric-variance"]
    assert {name for name, _ in components_of("pddm")} == {"hard-quadruplet", "pddm (distance)", "pddm (loss)"}
    assert components_of("pml_ext.distances.EuclideanDistance")[0][1] is pml_ext.distances.EuclideanDistance
    assert components_of("local-positive")[0][1].cls is pml_ext.LocalPositiveMiner
    assert ("GoodLoss", wrong.GoodLoss) in components_of("wrong")
    assert len(components_of("pml")) > 30
    with pytest.raises(ConfigError, match="nowhere_at_all: no package, class, entry point or component"):
        components_of("nowhere_at_all")
    with pytest.raises(ConfigError, match="no component in it"):
        components_of("json")


def test_the_command():
    def run(*arguments):
        line = [sys.executable, "-m", "pml_ext", "check", *arguments]
        return subprocess.run(line, capture_output=True, text=True, cwd=HERE, timeout=200)

    done = run("wrong.MeanInside")
    assert done.returncode == 1, done.stderr
    assert "check_reducers" in done.stdout
    assert "failed" in done.stdout
    done = run("hard-pair", "--json")
    assert done.returncode == 0, done.stderr
    assert {entry["status"] for entry in json.loads(done.stdout)} <= {"passed", "skipped"}
    done = run("nowhere_at_all")
    assert done.returncode == 2
