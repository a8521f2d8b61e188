"""Planted bugs are found, and correct components, those that declare their state among them, pass."""

import pytest
from pytorch_metric_learning import losses, regularizers

import pml_ext
from pml_ext import registry
from pml_ext.testing import check_component
from pml_ext.testing.runner import checks_of
from tests.testing.planted import PLANTED, correct, failing, loop

SHARE_OF_FAST_CHECKS = 0.8  # of the bugs of each kind, that the fast checks find


def test_the_fast_kit_finds_enough():
    """Each bug is found by the check that its row names, so that all fast checks find at least this share."""
    assert len(PLANTED) >= 50
    for kind in {bug.kind for bug in PLANTED.values()}:
        fast = {check.__name__ for check in checks_of(kind, fast=True)}
        checks = [bug.check for bug in PLANTED.values() if bug.kind == kind]
        assert sum(check in fast for check in checks) >= SHARE_OF_FAST_CHECKS * len(checks)


def test_every_check_has_a_bug():
    checks = {check.__name__ for kind in registry.KINDS for check in checks_of(kind)}
    assert checks - {"check_docstring"} <= {bug.check for bug in PLANTED.values()}


@pytest.mark.parametrize(
    "component",
    [
        correct.Deviance,
        correct.ByNames,
        correct.Ramp,
        correct.NearNegatives,
        correct.Moving,
        correct.Falling,
        correct.Indices,
        correct.Hardest,
        correct.FewClasses,
        correct.Deviance(alpha=5.0, embedding_regularizer=regularizers.LpRegularizer(), embedding_reg_weight=0.1),
        pml_ext.CrossBatchMemory(correct.Deviance(), embedding_size=8, memory_size=2048),
        *[registry.get(f"pml/{name}", "miner").cls for name in ("multi-similarity", "angular")],
        *[registry.get(f"pml/{name}", "distance").cls for name in ("cosine-similarity", "dot-product-similarity")],
        *[registry.get(f"pml/{name}", "reducer").cls for name in ("mean", "sum", "divisor")],
    ],
    ids=lambda component: getattr(component, "__name__", type(component).__name__),
)
def test_correct_ones_pass(component):
    references = {correct.Deviance: loop, correct.NearNegatives: correct.near_negatives}
    compared = {"reference": references[component]} if component in references else {}
    assert failing(component, fast=True, **compared) == {}


def test_a_memory_of_pmls_loss_passes_but_for_half_precision():
    memory = pml_ext.CrossBatchMemory(losses.ContrastiveLoss(), embedding_size=8, memory_size=2048)
    assert failing(memory, fast=True).keys() <= {"check_dtypes"}  # which PML's Lp distance does not take on a CPU


def test_a_correct_one_passes_all_checks():
    results = check_component(correct.ByHand, reference=loop, on_fail=None)
    assert not [(result.check, result.text) for result in results if result.fails]
    skipped = {result.check for result in results if result.status == "skipped"}
    assert skipped <= {
        "check_docstring",
        "check_parameters_get_gradients",
        "check_tiles",
        "check_compile",
        "check_relation",
    }
