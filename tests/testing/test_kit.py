"""The conformance kit: our own components pass; expected failures, targets and messages of the checks."""

import functools
import json
import re
import tomllib
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from pytorch_metric_learning import losses, miners, regularizers

import pml_ext
from pml_ext import registry
from pml_ext.errors import ConfigError
from pml_ext.testing import check_component, parametrize_with_checks
from pml_ext.testing.subject import find_components, subject_of
from tests.testing.planted import correct, failing, others
from tests.testing.planted import losses as bugs


def ours():
    """Every registered component of the core and of the plugins, built where it needs settings."""
    registered = [each for each in registry.components() if each.plugin != registry.LOCAL and each.name[:4] != "pml/"]
    return [
        *[each for each in registered if each.name not in ("regularized", "anchor-swap", "tree")],
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
ONE_GRAPH = {
    *("cbml", "metric-variance", "density", "angular", "n-pair", "n-pair-angular", "batch-all-triplets"),
    *("tiled-contrastive", "tiled-multi-similarity", "tiled-nt-xent", "tiled-sup-con"),
}


@parametrize_with_checks(ours(), expected_failed_checks=lambda component: EXPECTED.get(type(component).__name__, {}))
def test_our_own(component, check):
    if check.__name__ == "check_compile" and getattr(component, "name", "") in ONE_GRAPH:
        (result,) = check_component(component, checks=["check_compile"])
        assert result.text == "one graph"
    else:
        check(component)


class Honest(bugs.MeanInside):
    expected_failed_checks: ClassVar = {"check_reducers": "a value of the whole batch"}


def test_expected_failures_need_a_reason_and_must_fail():
    reason = {"check_reducers": "the mean is taken inside on purpose"}
    some = {"checks": ["check_reducers"]}
    for component, given, wanted in (
        (bugs.MeanInside(), reason, reason),
        (Honest, None, Honest.expected_failed_checks),  # the class itself says so
        (Honest, reason, reason),
    ):
        (found,) = check_component(component, given, **some)
        assert (found.status, found.text) == ("xfail", wanted["check_reducers"])
    with pytest.raises(AssertionError, match="check_reducers: passed, but expected to fail"):
        check_component(correct.ByHand(), reason, **some)
    with pytest.raises(ValueError, match="wants a reason"):
        check_component(bugs.MeanInside(), {"check_reducers": " "})
    with pytest.raises(ValueError, match="'check_reducer' is no check"):
        check_component(bugs.MeanInside(), {"check_reducer": "a typing error"})
    marks = parametrize_with_checks([bugs.MeanInside()], expected_failed_checks=lambda c: reason).mark.args[1]
    (marked,) = [p for p in marks if p.marks]
    assert marked.id == "MeanInside-check_reducers"
    assert marked.marks[0].kwargs == {"reason": reason["check_reducers"], "strict": True}


def test_what_cannot_be_checked():
    with pytest.raises(ConfigError, match="RegularizedLoss needs loss, regularizer, .* check an instance"):
        check_component(pml_ext.RegularizedLoss)
    with pytest.raises(TypeError, match="extends none of the base classes"):
        check_component(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("loss", "check"),
    [
        (losses.SmoothAPLoss, "check_order_does_not_matter"),
        (losses.ThresholdConsistentMarginLoss, "check_references"),
        (losses.AngularLoss, "check_indices_tuple_of_pairs"),
        (losses.TripletMarginLoss, "check_memory_growth"),
    ],
)
def test_a_sample_of_pmls(loss, check):
    assert check in failing(loss(), checks=[check])


@pytest.mark.parametrize(
    "loss",
    [
        losses.ContrastiveLoss(embedding_regularizer=regularizers.LpRegularizer()),
        losses.ArcFaceLoss(6, 8, weight_regularizer=regularizers.RegularFaceRegularizer()),
        pml_ext.CBMLLoss(embedding_regularizer=regularizers.LpRegularizer(), embedding_reg_weight=0.5),
        correct.TwoTerms(embedding_regularizer=regularizers.LpRegularizer()),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_a_loss_beside_a_regularizer_of_pml_passes_the_checks_of_its_terms(loss):
    names = ["check_call_forms", "check_reducers"]
    assert [(r.status, r.text) for r in check_component(loss, checks=names, on_fail=None)] == [("passed", "")] * 2


def test_targets():
    for what in ("cbml", "pml_ext_cbml"):
        assert [name for name, _ in find_components(what)] == ["cbml", "hard-pair", "metric-variance", "softmax"]
    names = {"hard-quadruplet", "mahalanobis", "pddm (distance)", "pddm (loss)"}
    assert {name for name, _ in find_components("pddm")} == names
    assert find_components("pml_ext.distances.EuclideanDistance")[0][1] is pml_ext.distances.EuclideanDistance
    assert find_components("local-positive")[0][1].cls is pml_ext.LocalPositiveMiner
    assert ("ByHand", correct.ByHand) in find_components("tests.testing.planted.correct")
    assert len(find_components("pml")) > 30
    with pytest.raises(ConfigError, match="nowhere_at_all: no package, class, entry point or component"):
        find_components("nowhere_at_all")
    with pytest.raises(ConfigError, match="no component in it"):
        find_components("json")


def test_the_command(pml_ext_command):
    done = pml_ext_command("check", "tests.testing.planted.others.StopsHalfway", "-v")
    assert done.returncode == 1
    assert re.search(r"check_sampler +failed +ZeroDivisionError: .* \(at others.py:\d+\)", done.stdout)
    assert re.search(r'File ".*others.py", line \d+, in <lambda>\n +images=lambda self, rows: 1 / 0', done.stdout)
    done = pml_ext_command("check", "hard-pair", "--json")
    assert done.returncode == 0
    assert {entry["status"] for entry in json.loads(done.stdout)} <= {"passed", "skipped"}
    assert pml_ext_command("check", "nowhere_at_all").returncode == 2


def test_what_a_component_raises_is_raised_from_the_check_with_its_traceback():
    parameters = parametrize_with_checks([others.StopsHalfway]).mark.args[1]
    (marked,) = [p for p in parameters if p.id == "StopsHalfway-check_sampler"]
    component, check = marked.values
    with pytest.raises(ZeroDivisionError) as raised:
        check(component)
    assert raised.traceback[-1].name == "<lambda>"
    text = r"StopsHalfway fails 1 of 1 checks:\n  check_sampler: ZeroDivisionError"
    with pytest.raises(AssertionError, match=text) as raised:
        check_component(others.StopsHalfway, checks=["check_sampler"])
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_after_a_loss_that_cannot_be_called_the_rest_is_skipped():
    results = check_component(bugs.ValueAlone, on_fail=None)
    assert [result.check for result in results if result.fails] == ["check_call_forms"]
    skipped = [result for result in results if result.check == "check_reducers"]
    assert [(r.status, r.text[:40]) for r in skipped] == [("skipped", "check_call_forms fails: compute_loss ret")]
    reason = {"check_call_forms": "it is no loss yet"}
    results = check_component(bugs.ValueAlone, reason, checks=["check_call_forms", "check_pickle"], on_fail=None)
    assert [result.status for result in results] == ["xfail", "failed"]  # nobody asked to leave the others out


@pytest.mark.parametrize(
    ("component", "size", "classes"),
    [
        (functools.partial(correct.Weighted, 2.0, kind="square"), 8, 6),
        (functools.partial(losses.ProxyAnchorLoss, num_classes=7), 8, 7),
        (losses.ProxyAnchorLoss(num_classes=3, embedding_size=5), 5, 3),
        (losses.ContrastiveLoss, 8, 6),
    ],
)
def test_what_may_be_checked(component, size, classes):
    given = {"embedding_size": size, "num_classes": classes}
    subject = subject_of(component, **given)
    assert (subject.size, subject.classes) == (size, classes)
    some = ["check_call_forms", "check_gradients", "check_pickle"]
    results = check_component(component, checks=some, on_fail=None, **given)
    assert {r.status for r in results if r.check != "check_gradients"} == {"passed"}
    ids = [parameter.id for parameter in parametrize_with_checks([component], **given).mark.args[1]]
    assert f"{subject.name}-check_pickle" in ids


def test_a_size_that_nothing_tells_is_named():
    class Hidden(correct.ByHand):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.layer = torch.nn.Linear(3, 2)

        def compute_loss(self, embeddings, labels, *more):
            x = self.layer(embeddings[:, :3] * embeddings[:, [16]])
            return super().compute_loss(x, labels, None, x, labels)

    (result,) = check_component(Hidden(), checks=["check_call_forms"], on_fail=None)
    assert re.search("cannot be called with embeddings of 3 numbers and 6 classes: .*embedding_size=...", result.text)
    (result,) = check_component(Hidden(), checks=["check_call_forms"], embedding_size=17)
    assert result.status == "passed"


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("contrastive", {"neg_margin": 0.05, "pos_margin": 0.3}),
        ("triplet-margin", {"margin": 0.001}),
        ("intra-pair-variance", {"pos_eps": 0.3, "neg_eps": 0.3}),
        ("lifted-structure", {"neg_margin": 0.05}),
    ],
)
def test_settings_of_pmls_losses_raise_no_false_alarm(name, table):
    """None but those that the loss fails with its default settings."""
    known = tomllib.loads((Path(__file__).parent / "pml_failures.toml").read_text())[name]
    loss = functools.partial(registry.get(f"pml/{name}", "loss").cls, **table)
    assert failing(loss, fast=True).keys() <= {f"check_{check}" for check in known}
