"""Planted bugs are found and named, each by the check of its kind; correct components pass."""

import re

import pytest
from pytorch_metric_learning import losses, regularizers

import pml_ext
from pml_ext import registry
from pml_ext.testing import check_component
from pml_ext.testing.checks import CHECKS
from tests.testing.planted import BUGS, ByHand, Deviance, FewClasses, failing, loop


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
