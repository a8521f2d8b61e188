"""How a loss is called, what it hands over, and that it ignores nothing."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from ... import pml
from ..calling import all_of, call, close, compute, needs, some_of
from ..probes import gradient
from ..subject import SkipCheck, Subject, batch_of


def check_call_forms(subject: Subject) -> None:
    """PML's trainers, wrappers and users call a loss by position and by name; all must give the same."""
    batch, loss = batch_of(subject), subject.make()
    torch.manual_seed(0)
    value = call(loss, batch)
    if not isinstance(value, Tensor) or value.ndim != 0:
        raise AssertionError(f"a loss gives a scalar tensor, which trainers call backward() on; got {value!r}")
    if not value.requires_grad:
        raise AssertionError("the loss has no gradient with respect to the embeddings, so that nothing trains")
    if "labels" in subject.capabilities:
        torch.manual_seed(0)
        close(loss(batch.embeddings, labels=batch.labels), value, "labels by name give another value")
        torch.manual_seed(0)
        close(loss(batch.embeddings, batch.labels, None), value, "indices_tuple=None gives another value")


def check_sub_loss_names(subject: Subject) -> None:
    """PML builds one reducer for each of ``sub_loss_names()``; a name that is missing there is never reduced."""
    loss, batch = subject.make(), batch_of(subject)
    actual = compute(loss, batch)
    expected = set(loss.sub_loss_names()) - {"embedding_reg_loss", "weight_reg_loss"}  # PML adds these by itself
    if set(actual) != expected:
        raise AssertionError(f"compute_loss returns {sorted(actual)}, but sub_loss_names() says {sorted(expected)}")
    for name, info in actual.items():
        if missing := {"losses", "indices", "reduction_type"} - set(info):
            raise AssertionError(f"the dictionary of sub-loss {name!r} lacks {sorted(missing)}; reducers need them")


def check_reducers(subject: Subject) -> None:
    """A loss hands unreduced values to its reducer; a mean taken inside leaves ``reducer=`` without effect."""
    batch, summed = batch_of(subject), subject.make()
    torch.manual_seed(0)
    actual = compute(subject.make(), batch)
    values = {name: info["losses"] for name, info in actual.items()}
    if all(not isinstance(value, Tensor) or value.ndim == 0 or len(value) == 1 for value in values.values()):
        raise AssertionError("compute_loss returns a value that is reduced already, so that a reducer (sum, mean of "
                             "what is not zero, threshold) has nothing to do; return one value an element, pair or "
                             "triplet, with its indices")  # fmt: skip
    for name, info in actual.items():
        value = info["losses"]
        if isinstance(value, Tensor) and value.ndim == 1 and info["reduction_type"] != "already_reduced":
            lengths = {len(index) for index in _indices(info["indices"])}
            if lengths != {len(value)}:
                raise AssertionError(f"sub-loss {name!r} has {len(value)} values but indices of {sorted(lengths)}; "
                                     "reducers look values up by them")  # fmt: skip
    summed.set_reducer(pml.reducers.SumReducer())
    torch.manual_seed(0)
    expected = sum(value.sum() for value in values.values() if isinstance(value, Tensor))
    close(call(summed, batch), torch.as_tensor(expected), "reducer=SumReducer() is not the sum of the values")


def _indices(indices: Any) -> tuple[Any, ...]:
    return tuple(indices) if isinstance(indices, (tuple, list)) else (indices,)


def check_labels_are_used(subject: Subject) -> None:
    """A loss that takes labels and gives the same for any is trained on nothing."""
    needs(subject, "labels")
    batch = batch_of(subject)
    others = batch.labels[torch.randperm(len(batch.labels), generator=torch.Generator().manual_seed(1))]
    torch.manual_seed(0)
    value = subject.make()(batch.embeddings, batch.labels)
    torch.manual_seed(0)
    other = subject.make()(batch.embeddings, others)
    if torch.equal(value, other):
        raise AssertionError(f"labels are ignored: other labels give the same loss, {value.item():.6g}")


def _restricted(subject: Subject, triplets: bool) -> None:
    needs(subject, "labels", "indices_tuple")
    batch, loss = batch_of(subject), subject.make()
    everything = all_of(batch, triplets)
    generator = torch.Generator().manual_seed(2)

    def some(indices: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return some_of(indices, 0.3, generator)

    def value(indices: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        actual = loss(batch.embeddings, batch.labels, indices)
        return actual.detach(), gradient(actual, batch.embeddings)

    base = value(everything)

    def narrowed(what: str) -> tuple[Tensor, ...]:
        if what == "triplets":
            return some(everything)
        positives, negatives = everything[:2], everything[2:]
        if what == "positive pairs":
            return (*some(positives), *negatives)
        return (*positives, *some(negatives))

    for what in ["triplets"] if triplets else ["positive pairs", "negative pairs"]:
        actual = [value(narrowed(what)) for _ in range(5)]  # a loss may look at the hardest, which a draw may keep
        if all(torch.equal(one, base[0]) and torch.allclose(other, base[1]) for one, other in actual):
            raise AssertionError(f"the {what} that a miner chose are ignored: a third of them gives the same loss and "
                                 "the same gradient as all")  # fmt: skip


def check_indices_tuple_of_pairs(subject: Subject) -> None:
    """What a miner chose must count: the positive and the negative pairs of a tuple of four."""
    _restricted(subject, triplets=False)


def check_indices_tuple_of_triplets(subject: Subject) -> None:
    """What a miner chose must count: the triplets of a tuple of three."""
    _restricted(subject, triplets=True)


def check_references(subject: Subject) -> None:
    """``ref_emb`` is taken, or refused with an error; a loss that ignores it trains on something else than asked."""
    loss = subject.make()
    if not _takes(loss, "ref_emb"):
        raise SkipCheck("its forward has no ref_emb")
    batch, one, other = (batch_of(subject, seed=seed) for seed in (0, 1, 2))
    values = []
    for references in (one, other):
        torch.manual_seed(0)
        try:
            if "labels" in subject.capabilities:
                actual = subject.make()(batch.embeddings, batch.labels, None, references.embeddings, references.labels)
            else:
                actual = subject.make()(batch.embeddings, ref_emb=references.embeddings)
            values.append(actual.detach())
        except Exception as error:
            if "references" in subject.capabilities:
                raise AssertionError(f"it says that it has references, but refuses them: {error}") from error
            return  # refused, as it says
    if torch.equal(*values):
        raise AssertionError("ref_emb is accepted and ignored: other references give the same loss. Use them, or raise "
                             "an error")  # fmt: skip


def _takes(loss: Any, name: str) -> bool:
    parameters = inspect.signature(loss.forward).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
