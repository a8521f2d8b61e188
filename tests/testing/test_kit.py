"""The conformance kit: our own components pass, planted bugs are found, and what is run or skipped."""

import functools
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from pytorch_metric_learning import distances, losses, miners, reducers, regularizers, samplers
from pytorch_metric_learning.losses import CircleLoss as PMLCircleLoss

import pml_ext
from pml_ext import registry
from pml_ext.errors import ConfigError
from pml_ext.plugin import Component, per_anchor
from pml_ext.testing import check_component, parametrize_with_checks
from pml_ext.testing.checks import CHECKS
from pml_ext.testing.subject import kept_generators, set_seed, subject_of
from pml_ext_train.cli.targets import find_components
from tests.testing.planted import BUGS, ByHand, Deviance, FewClasses, bug_of, failing, loop


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
def test_our_own_components_pass_all_checks(component, check):
    if check.__name__ == "check_compile" and getattr(component, "name", "") in ONE_GRAPH:
        (result,) = check_component(component, checks=["check_compile"])
        assert result.text == "one graph"
    else:
        check(component)


class PerProxy(losses.ProxyAnchorLoss):
    """A loss with a value per class, indexed by class."""

    capabilities = frozenset({"labels"})

    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        near = torch.nn.functional.normalize(embeddings) @ torch.nn.functional.normalize(self.proxies).T
        of_class = torch.nn.functional.one_hot(labels, self.num_classes)
        return per_anchor((of_class * (1 - near) + (1 - of_class) * near.clamp(min=0)).sum(0))

    def _sub_loss_names(self):
        return ["loss"]


class Quantile(reducers.BaseReducer):
    """A reducer whose value is finite where a few of its values are not."""

    def element_reduction(self, losses, *_):
        return torch.quantile(losses, 0.75)

    pos_pair_reduction = neg_pair_reduction = triplet_reduction = element_reduction


class AssertsSizes(FewClasses):
    """A sampler that refuses small classes by an assertion, as many do."""

    def __init__(self, labels, batch_size, length_before_new_iter, seed: int = 0):
        assert torch.as_tensor(labels).unique(return_counts=True)[1].min() >= 4
        super().__init__(labels, batch_size, length_before_new_iter, seed)


RIGHT = {
    "per proxy": (PerProxy, ["check_reducers", "check_indices_belong_to_values", "check_classes_separate"]),
    "asymmetric": (distances.SNRDistance, ["check_distance"]),
    "ties": (miners.HDCMiner, ["check_order_does_not_matter", "check_sizes"]),
    "proxy anchor": (losses.ProxyAnchorLoss, ["check_indices_belong_to_values"]),
    "constants": (losses.CircleLoss, ["check_gradients"]),
    "rows of weights": (
        functools.partial(regularizers.SparseCentersRegularizer, centers_per_class=4),
        ["check_call_forms", "check_degenerate_batches", "check_sizes", "check_gradients"],
    ),
    "weight per class": (reducers.ClassWeightedReducer(torch.ones(6)), ["check_inputs_unchanged", "check_sizes"]),
    "no triplets": (reducers.PerAnchorReducer, ["check_reducer"]),
    "quantile": (Quantile, ["check_nan_shows", "check_reducer"]),
    "packaged": (miners.EmbeddingsAlreadyPackagedAsTriplets, ["check_mined_indices", "check_degenerate_batches"]),
    "not reduced": (reducers.DoNothingReducer, ["check_reducer", "check_modes"]),
    "many labels": (
        functools.partial(FewClasses, labels=[number // 5 for number in range(60)]),
        ["check_sampler", "check_sampler_state"],
    ),
    "a large batch": (
        functools.partial(FewClasses, labels=[number // 10 for number in range(200)], batch_size=32),
        ["check_sampler"],
    ),
    "as many classes as numbers": (
        pml_ext.SoftmaxLoss(num_classes=8, embedding_size=8),
        ["check_names_of_classes"],
    ),
    "lists classes": (samplers.MPerClassSampler([0, 1, 2, 3] * 8, 2, 8, 32), ["check_sampler"]),
    "triplets": (pml_ext.HardNegativePoolSampler, ["check_sampler"]),
    "refuses small classes": (AssertsSizes, ["check_sampler", "check_sampler_seed"]),
    "PML's loss beside a regularizer": (
        losses.ContrastiveLoss(embedding_regularizer=regularizers.LpRegularizer()),
        ["check_call_forms", "check_reducers"],
    ),
    "a regularizer of weights": (
        losses.ArcFaceLoss(6, 8, weight_regularizer=regularizers.RegularFaceRegularizer()),
        ["check_call_forms", "check_reducers"],
    ),
    "our loss beside a regularizer": (
        pml_ext.CBMLLoss(embedding_regularizer=regularizers.LpRegularizer(), embedding_reg_weight=0.5),
        ["check_call_forms", "check_reducers"],
    ),
}


@pytest.mark.parametrize(("component", "checks"), RIGHT.values(), ids=RIGHT)
def test_right_ones_raise_no_false_alarm(component, checks):
    assert failing(component, checks=checks) == {}


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


_WITHOUT_HEAVY_IMPORTS = """
import sys
from pytorch_metric_learning.losses import MultiSimilarityLoss
from pml_ext.testing import check_component
check_component(MultiSimilarityLoss, on_fail=None, checks=["check_gradients", "check_devices", "check_memory_growth"])
assert not {"torch._dynamo", "torch.utils.cpp_extension", "sklearn"} & {*sys.modules}
"""


@pytest.mark.nightly
def test_checks_but_the_compilers_import_no_compiler():
    subprocess.run([sys.executable, "-c", _WITHOUT_HEAVY_IMPORTS], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.check}-{bug.cls.__name__}")
def test_a_bug_is_found_and_named(bug):
    given = {"reference": loop} if bug.check == "check_reference" else {}
    text = failing(bug.cls, checks=[bug.check], **given).get(bug.check, "")
    assert len(text) > 25, text
    assert re.search(bug.text, text), text


def test_every_check_has_a_bug():
    checks = {check.__name__ for kind in registry.KINDS for check in CHECKS[kind]}
    assert checks - {"check_constructor", "check_docstring"} == {bug.check for bug in BUGS}


@pytest.mark.parametrize(
    "component",
    [
        Deviance,
        FewClasses,
        Deviance(alpha=5.0, embedding_regularizer=regularizers.LpRegularizer(), embedding_reg_weight=0.1),
        pml_ext.CrossBatchMemory(Deviance(), embedding_size=8, memory_size=2048),
        *[registry.get(f"pml/{name}", "miner").cls for name in ("multi-similarity", "angular")],
        *[registry.get(f"pml/{name}", "distance").cls for name in ("cosine-similarity", "dot-product-similarity")],
        *[registry.get(f"pml/{name}", "reducer").cls for name in ("mean", "sum", "divisor")],
    ],
    ids=lambda component: getattr(component, "__name__", type(component).__name__),
)
def test_correct_components_pass_every_fast_check(component):
    assert failing(component, fast=True) == {}


def test_memory_of_pmls_loss_fails_only_dtypes():
    memory = pml_ext.CrossBatchMemory(losses.ContrastiveLoss(), embedding_size=8, memory_size=2048)
    assert failing(memory, fast=True).keys() <= {"check_dtypes"}  # which PML's Lp distance does not take on a CPU


def test_a_correct_one_passes_all_checks():
    results = check_component(ByHand, reference=loop, on_fail=None)
    assert not [(result.check, result.text) for result in results if result.fails]
    skipped = {result.check for result in results if result.status == "skipped"}
    assert skipped <= {"check_docstring", "check_parameters_get_gradients", "check_tiles"}


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
    with pytest.raises(AssertionError, match=r"fails 1 of 1 checks:\n  check_sampler: ZeroDivisionError") as raised:
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


@pytest.mark.parametrize(
    ("component", "text"),
    [
        (pml_ext.RegularizedLoss, "RegularizedLoss needs loss, regularizer, .* check an instance"),
        (torch.nn.Linear(2, 2), "has no base class of a component"),
    ],
)
def test_unusable_components_raise_with_a_reason(component, text):
    with pytest.raises((ConfigError, TypeError), match=text):
        check_component(component)


def test_targets_are_found_by_any_name():
    for what in ("cbml", "pml_ext_cbml"):
        assert [name for name, _ in find_components(what)] == ["cbml", "hard-pair", "metric-variance", "softmax"]
    names = {"hard-quadruplet", "mahalanobis", "pddm (distance)", "pddm (loss)"}
    assert {name for name, _ in find_components("pddm")} == names
    assert find_components("pml_ext.distances.EuclideanDistance")[0][1] is pml_ext.distances.EuclideanDistance
    assert find_components("local-positive")[0][1].cls is pml_ext.LocalPositiveMiner
    assert ("ByHand", ByHand) in find_components("tests.testing.planted")
    assert len(find_components("pml")) > 30
    with pytest.raises(ConfigError, match="nowhere_at_all: no package, class, entry point or component"):
        find_components("nowhere_at_all")
    with pytest.raises(ConfigError, match="no component in it"):
        find_components("json")


@pytest.mark.parametrize(
    ("component", "size", "classes"),
    [
        (functools.partial(ByHand, 2.0, square=True), 8, 6),
        (functools.partial(losses.ProxyAnchorLoss, num_classes=7), 8, 7),
        (losses.ProxyAnchorLoss(num_classes=3, embedding_size=5), 5, 3),
        (losses.ContrastiveLoss, 8, 6),
    ],
)
def test_classes_partials_and_instances_are_checked(component, size, classes):
    given = {"embedding_size": size, "num_classes": classes}
    subject = subject_of(component, **given)
    assert (subject.size, subject.classes) == (size, classes)
    some = ["check_call_forms", "check_gradients", "check_pickle"]
    results = check_component(component, checks=some, on_fail=None, **given)
    assert {r.status for r in results if r.check != "check_gradients"} == {"passed"}
    ids = [parameter.id for parameter in parametrize_with_checks([component], **given).mark.args[1]]
    assert f"{subject.name}-check_pickle" in ids


def test_a_size_that_nothing_tells_is_named():
    class Hidden(ByHand):
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


def test_generators_are_seeded_and_put_back():
    before = torch.get_rng_state()
    with kept_generators():
        set_seed(3)
        drawn = torch.rand(2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(drawn, torch.rand(2, generator=torch.Generator().manual_seed(3)))


class Sized(losses.ProxyAnchorLoss):
    """A loss whose sizes have defaults."""

    def __init__(self, num_classes=10, embedding_size=16):
        super().__init__(num_classes, embedding_size)


class ManyClasses(losses.ProxyAnchorLoss):
    """A loss of a hundred classes."""

    def __init__(self, num_classes=100, embedding_size=4):
        super().__init__(num_classes, embedding_size)


def test_sizes_are_the_defaults_that_a_class_keeps():
    subject = subject_of(Sized)
    assert (subject.size, subject.classes, subject.has_class_rows) == (16, 10, True)
    subject = subject_of(functools.partial(Sized, embedding_size=5))
    assert (subject.size, subject.classes) == (5, 10)
    subject = subject_of(Sized, embedding_size=32)
    assert (subject.size, subject.make().proxies.shape[1]) == (32, 32)
    (result,) = check_component(Sized, checks=["check_call_forms"], on_fail=None)
    assert result.status == "passed"


def test_loss_of_many_classes_gets_large_batches():
    for result in check_component(
        ManyClasses, checks=["check_saved_bytes", "check_no_loop_over_anchors"], on_fail=None
    ):
        assert result.status == "passed", result


class NeedsGpu(Deviance):
    def __init__(self, **kwargs):
        raise RuntimeError("no device")


def test_raising_constructor_fails_one_check_and_skips_others():
    results = check_component(NeedsGpu, on_fail=None, fast=True)
    (failed,) = [result for result in results if result.fails]
    assert failed.check == "check_constructor"
    assert re.search(r"its constructor raises RuntimeError: no device \(at test_kit.py:\d+\)", failed.text)
    assert {result.status for result in results} == {"failed", "skipped"}


def test_registered_component_needs_a_listed_line():
    without = failing(Component(NeedsGpu, name="needs-gpu"), checks=["check_docstring"])
    assert "it has no docstring, which `pml-ext list` shows" in without["check_docstring"]
    for component in (Component(NeedsGpu, name="needs-gpu", summary="A loss"), pml_ext.registry.get("cbml")):
        assert failing(component, checks=["check_docstring"]) == {}


TESTS = """
import pytest
from pytorch_metric_learning import losses

import pml_ext

pytest_plugins = ["pml_ext.testing.fixtures"]


@pytest.mark.parametrize("number", [1, 2])
def test_an_entry_is_there_once(isolated_registry, number):
    assert "scratch" not in {component.name for component in isolated_registry.components()}
    pml_ext.register(type("ScratchLoss", (losses.ContrastiveLoss,), {}), name="scratch")
    assert isolated_registry.get("scratch").kind == "loss"
"""


@pytest.mark.nightly
def test_entries_of_a_test_are_removed(tmp_path):
    """As a plugin's conftest.py names it, in a process of its own."""

    (tmp_path / "test_mine.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "test_mine.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "2 passed" in done.stdout, done.stdout
