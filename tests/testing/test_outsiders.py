"""Planted mistakes are found, and right components, those that declare their state among them, pass."""

import collections
from typing import ClassVar

import outsiders
import pytest
import torch
from pytorch_metric_learning import losses, regularizers

import pml_ext
from pml_ext import registry
from pml_ext.testing import check_component
from pml_ext.testing.batches import Batch, batch_of
from pml_ext.testing.calling import equal, outcome
from pml_ext.testing.subject import subject_of

WANTED = {"loss": 0.6, "miner": 0.8, "sampler": 0.8, "regularizer": 0.8, "distance": 0.8, "reducer": 0.8}


def failing(component, **given):
    return {r.check: r.text for r in check_component(component, on_fail=None, **given) if r.fails}


@pytest.mark.parametrize("planted", outsiders.PLANTED.values(), ids=outsiders.PLANTED)
def test_a_planted_mistake_is_found(planted):
    given = {"reference": outsiders.loop} if planted.check == "check_reference" else {}
    found = failing(planted.cls, checks=[planted.check], **given)
    assert len(found.get(planted.check, "")) > 25


def test_enough_are_found_without_a_reference():
    found, planted = collections.Counter(), collections.Counter()
    for mistake in outsiders.PLANTED.values():
        planted[mistake.kind] += 1
        found[mistake.kind] += mistake.check != "check_reference"
    assert sum(planted.values()) > 80
    assert all(found[kind] >= share * planted[kind] for kind, share in WANTED.items())


@pytest.mark.parametrize("component", outsiders.RIGHT)
def test_right_ones_pass(component):
    compared = component in (outsiders.Deviance, outsiders.DevianceByHand)
    assert failing(component, fast=True, **{"reference": outsiders.loop} if compared else {}) == {}


@pytest.mark.parametrize(
    "component",
    [
        outsiders.Deviance(alpha=5.0, embedding_regularizer=regularizers.LpRegularizer(), embedding_reg_weight=0.1),
        pml_ext.CrossBatchMemory(losses.ContrastiveLoss(), embedding_size=8, memory_size=2048),
        pml_ext.CrossBatchMemory(outsiders.Deviance(), embedding_size=8, memory_size=2048),
    ],
    ids=["regularized", "memory-of-pmls", "memory"],
)
def test_memories_and_regularized_losses_pass(component):
    allowed = {"check_dtypes"} if isinstance(getattr(component, "loss", None), losses.ContrastiveLoss) else set()
    assert failing(component, fast=True).keys() <= allowed  # PML's Lp distance stops in half precision


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("miner", {"pml/multi-similarity", "pml/angular"}),
        ("distance", {"pml/cosine-similarity", "pml/dot-product-similarity"}),
        ("reducer", {"pml/mean", "pml/sum", "pml/divisor"}),
    ],
)
def test_a_share_of_pmls_others_passes(kind, names):
    assert {name: failing(registry.get(name, kind).cls, fast=True) for name in names} == {name: {} for name in names}


def test_what_is_equal():
    nan = torch.tensor([1.0, torch.nan])
    assert equal(nan, nan.clone())
    assert not equal(nan, nan.flip(0))
    assert not equal(torch.zeros(0, 2), torch.zeros(2, 0))
    assert not equal((torch.zeros(2),), (torch.zeros(2), torch.zeros(2)))


def test_an_outcome_has_the_gradient_of_references():
    subject = subject_of(outsiders.Deviance)
    batch, other = batch_of(subject), batch_of(subject, (3, 2), seed=1)
    value, mine, theirs = outcome(subject.make(), batch, ref_emb=other.embeddings, ref_labels=other.labels)
    assert value.ndim == 0
    assert (mine.shape, theirs.shape) == (batch.embeddings.shape, other.embeddings.shape)
    pairs = outcome(outsiders.NearNegatives(), Batch(batch.embeddings, batch.labels))[0]
    assert pairs.shape[1] == 3
    assert pairs[:, 2].unique().tolist() == [0, 1]


class OfThisProcess(outsiders.Deviance):
    """Looks up its margin in a table that another process does not have."""

    table: ClassVar = {}

    def values(self, matrix, positives, negatives):
        return super().values(matrix + self.table.setdefault("margin", 0.0), positives, negatives)


def test_another_process_gives_the_same():
    assert failing(outsiders.Deviance, checks=["check_other_process"]) == {}
    OfThisProcess.table["margin"] = 0.25
    try:
        assert "in another process it gives another result" in str(
            failing(OfThisProcess, checks=["check_other_process"])
        )
    finally:
        OfThisProcess.table.clear()


@pytest.mark.parametrize(("mistake", "check"), [("ForgetsRest", "check_sizes"), ("AlphaForBeta", "check_settings")])
def test_more_checks_find_them(mistake, check):
    assert check in failing(outsiders.PLANTED[mistake].cls, checks=[check])
