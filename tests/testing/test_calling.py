"""Calls of components, and counters of operators and of saved bytes."""

import random

import numpy as np
import pytest
import torch
from pytorch_metric_learning import distances, losses, miners, reducers, regularizers

from pml_ext import CBMLLoss, CrossBatchMemory, HardPairMiner, MultipleLosses
from pml_ext.testing import calling
from pml_ext.testing.batches import batch_of
from pml_ext.testing.subject import SkipCheck, subject_of


def test_each_kind_is_called_with_what_it_takes():
    subject = subject_of(CBMLLoss)
    batch = batch_of(subject)
    x = batch.embeddings
    labels = batch.labels
    torch.testing.assert_close(calling.call(CBMLLoss(), batch), CBMLLoss()(x, labels))
    assert len(calling.call(miners.BatchHardMiner(), batch)) == 3
    assert calling.call(distances.CosineSimilarity(), batch).shape == (24, 24)
    torch.testing.assert_close(calling.call(regularizers.LpRegularizer(), batch), x.norm(dim=1).mean())
    torch.testing.assert_close(calling.call(reducers.SumReducer(), batch), x.square().sum())
    found = calling.call(losses.ContrastiveLoss(), batch, ref_emb=x * 2, ref_labels=labels)
    torch.testing.assert_close(found, losses.ContrastiveLoss()(x, labels, ref_emb=x * 2, ref_labels=labels))


def test_a_wrapper_has_no_terms():
    batch = batch_of(subject_of(CBMLLoss))
    terms = calling.compute(losses.ContrastiveLoss(), batch)
    assert set(terms) == {"pos_loss", "neg_loss"}
    assert len(calling.compute(regularizers.LpRegularizer(), batch)["loss"]["losses"]) == 24
    with pytest.raises(SkipCheck, match="a wrapper: the wrapped component is checked by itself"):
        calling.compute(MultipleLosses([CBMLLoss()]), batch)


def test_an_outcome_has_the_gradients_of_inputs_and_parameters():
    subject = subject_of(losses.ProxyAnchorLoss(num_classes=6, embedding_size=8))
    loss = subject.make()
    batch = batch_of(subject)
    value, *gradients = calling.outcome(loss, batch)
    expected = torch.autograd.grad(loss(batch.embeddings, batch.labels), [batch.embeddings, loss.proxies])
    torch.testing.assert_close(gradients, list(expected))
    assert not value.requires_grad
    (mined,) = calling.outcome(miners.MultiSimilarityMiner(), batch)
    assert mined.tolist() == sorted(mined.tolist())


def test_another_order_is_put_back():
    batch = batch_of(subject_of(CBMLLoss))
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    for component in (CBMLLoss(), distances.CosineSimilarity(), miners.BatchHardMiner()):
        found = calling.reordered(component, batch, order)
        expected = calling.outcome(component, batch)[: len(found)]
        if isinstance(component, distances.CosineSimilarity):
            expected = [component(batch.embeddings)]
        torch.testing.assert_close(found, expected)


class Drawing(losses.ContrastiveLoss):
    def forward(self, *arguments, **named):
        return super().forward(*arguments, **named) * torch.rand(())


class Counting(losses.ContrastiveLoss):
    calls = 0

    def forward(self, *arguments, **named):
        self.calls += 1
        return super().forward(*arguments, **named) * self.calls


def test_what_a_check_needs_is_named_where_it_is_missing():
    assert calling.is_random(subject_of(Drawing()))
    assert not calling.is_random(subject_of(CBMLLoss))
    calling.needs(subject_of(CBMLLoss), "labels", "references", repeatable=True)
    with pytest.raises(SkipCheck, match="it does not declare references and relation"):
        calling.needs(subject_of(losses.ArcFaceLoss(6, 8)), "relation", "references")
    with pytest.raises(SkipCheck, match="its values are random"):
        calling.needs(subject_of(Drawing()), fixed=True)
    with pytest.raises(SkipCheck, match="its values depend on earlier calls"):
        calling.needs(subject_of(CrossBatchMemory(CBMLLoss(), 8, 64)), repeatable=True)
    with pytest.raises(SkipCheck, match="its values depend on earlier calls"):
        calling.needs(subject_of(Counting()), repeatable=True)


def test_forms_of_a_call_are_those_that_are_declared():
    wanted = {CBMLLoss: 3, losses.SoftTripleLoss: 2, HardPairMiner: 2, distances.LpDistance: 2}
    for component, count in wanted.items():
        subject = subject_of(component, num_classes=6)
        forms = calling.call_forms(subject, batch_of(subject), batch_of(subject, seed=1))
        assert len(forms) == count, component
        for named in forms.values():
            calling.call(subject.make(), batch_of(subject), **named)


def test_an_error_is_one_line_with_the_authors_place():
    def theirs():
        raise ZeroDivisionError("by\n zero")

    with pytest.raises(ZeroDivisionError) as caught:
        theirs()
    line = theirs.__code__.co_firstlineno + 1
    assert calling.error_summary(caught.value) == f"ZeroDivisionError: by zero (at test_calling.py:{line})"
    assert calling.error_summary(ValueError()) == "ValueError"
    with pytest.raises(SkipCheck) as caught:
        calling.compute(MultipleLosses([CBMLLoss()]), batch_of(subject_of(CBMLLoss)))
    assert calling.error_location(caught.value) == ""  # raised by the kit


def test_operators_and_saved_bytes_are_counted():
    x = torch.ones(10, 6, dtype=torch.float64, requires_grad=True)
    with calling.CountedOperations() as counted:
        y = x.exp()
        torch.mm(x, x.T)
    assert (counted.count, counted.largest) == (3, 100)  # exp, T and mm
    with calling.SavedBytes(x) as saved:
        z = (y * x).exp()
        w = z.square()
    assert saved.total == 60 * 8 * 2  # y, which the caller did not give, and z; x does not count
    saved.leave_out(z)
    assert saved.total == 60 * 8
    del w


def test_generators_that_are_seeded_are_named():
    state = torch.get_rng_state()
    assert calling.reseeded_generators(lambda: torch.rand(2)) == []
    assert calling.reseeded_generators(lambda: (random.seed(3), np.random.seed(3))) == ["Python", "NumPy"]
    assert calling.reseeded_generators(lambda: torch.manual_seed(3)) == ["torch"]
    torch.set_rng_state(state)
