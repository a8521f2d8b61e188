"""Planted mistakes are found, and right components, those that declare their state among them, pass."""

import re
from typing import ClassVar
from unittest import mock

import planted
import pytest
from pytorch_metric_learning import losses, regularizers

import pml_ext
from pml_ext import registry
from pml_ext.testing import check_component, checks_of

WANTED = {"loss": 0.6}  # of the bugs in losses, whose equation nothing but a reference knows
OTHERS = 0.8


@pytest.mark.parametrize("bug", planted.PLANTED.values(), ids=planted.PLANTED)
def test_a_bug_is_found_and_named(bug):
    given = {"reference": planted.loop} if bug.check == planted.REFERENCE else {}
    found = planted.failing(bug.cls, checks=[bug.check], **given).get(bug.check, "")
    assert len(found) > 25
    assert re.search(bug.text, found), found


def test_the_fast_kit_finds_enough():
    """Each bug is found by the check that its row names, so that all fast checks find at least these shares."""
    bugs = planted.PLANTED.values()
    assert len(bugs) >= 90
    for kind in {bug.kind for bug in bugs}:
        fast = {check.__name__ for check in checks_of(kind, fast=True)}
        checks = [bug.check for bug in bugs if bug.kind == kind]
        assert sum(check in fast for check in checks) >= WANTED.get(kind, OTHERS) * len(checks)


def test_every_check_has_a_bug():
    checks = {check.__name__ for kind in registry.KINDS for check in checks_of(kind)}
    assert checks <= {bug.check for bug in planted.PLANTED.values()} | {"check_other_process"}  # it has a test below


@pytest.mark.parametrize("component", planted.RIGHT)
def test_right_ones_pass(component):
    compared = {"reference": planted.loop} if component is planted.Deviance else {}
    assert planted.failing(component, fast=True, **compared) == {}


def test_a_right_one_passes_all_checks():
    results = check_component(planted.ByHand, reference=planted.loop, on_fail=None)
    assert not [(result.check, result.text) for result in results if result.fails]
    skipped = {result.check for result in results if result.status == "skipped"}
    assert skipped <= {"check_parameters_get_gradients", "check_tiles", "check_compile", "check_relation"}


@pytest.mark.parametrize(
    "component",
    [
        planted.Deviance(alpha=5.0, embedding_regularizer=regularizers.LpRegularizer(), embedding_reg_weight=0.1),
        pml_ext.CrossBatchMemory(losses.ContrastiveLoss(), embedding_size=8, memory_size=2048),
        pml_ext.CrossBatchMemory(planted.Deviance(), embedding_size=8, memory_size=2048),
    ],
    ids=["regularized", "memory-of-pmls", "memory"],
)
def test_memories_and_regularized_losses_pass(component):
    allowed = {"check_dtypes"} if isinstance(getattr(component, "loss", None), losses.ContrastiveLoss) else set()
    assert planted.failing(component, fast=True).keys() <= allowed  # PML's Lp distance stops in half precision


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("miner", {"pml/multi-similarity", "pml/angular"}),
        ("distance", {"pml/cosine-similarity", "pml/dot-product-similarity"}),
        ("reducer", {"pml/mean", "pml/sum", "pml/divisor"}),
    ],
)
def test_a_share_of_pmls_others_passes(kind, names):
    found = {name: planted.failing(registry.get(name, kind).cls, fast=True) for name in names}
    assert found == {name: {} for name in names}


class OfThisProcess(planted.Deviance):
    """Looks up its margin in a table that another process does not have."""

    table: ClassVar = {}

    def values(self, matrix, positives, negatives):
        return super().values(matrix + self.table.setdefault("margin", 0.0), positives, negatives)


def test_another_process_gives_the_same():
    assert planted.failing(planted.Deviance, checks=["check_other_process"]) == {}
    with mock.patch.dict(OfThisProcess.table, margin=0.25):
        found = planted.failing(OfThisProcess, checks=["check_other_process"])
    assert "in another process it gives another result" in found["check_other_process"]
