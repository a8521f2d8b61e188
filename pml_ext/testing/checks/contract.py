"""PML's contract of a loss: forms of call, unreduced values, and nothing that is accepted and ignored."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ... import pml
from ...pairwise import SharedLabel, related_pairs
from ..calling import call, close, compute, equal, gradient, gradients, is_random, needs, seeded
from ..subject import (
    CLOSE,
    Batch,
    SkipCheck,
    Subject,
    all_pairs,
    all_triplets,
    applies_to,
    batch_of,
    shuffle,
    some_of,
    takes_labels,
)

_WANTED = (
    "wanted {'loss': {'losses': a value per element, pair or triplet, 'indices': what each belongs to, "
    "'reduction_type': 'element', 'pos_pair', 'neg_pair' or 'triplet'}}, as per_anchor(values), per_pair and "
    "per_triplet of pml_ext.plugin make it"
)
_TYPES = ("element", "pos_pair", "neg_pair", "triplet", "already_reduced")
_OPPOSITE = 0.1  # a cosine between gradients below minus this points the other way
_ZERO = 1e-12  # a gradient of zero, after rounding
_MADE_BY_PML = {"embedding_reg_loss", "weight_reg_loss"}  # sub-losses that it adds by itself


@applies_to("loss", "regularizer")
def check_call_forms(subject: Subject) -> None:
    """PML's trainers, wrappers and users call a loss by position and by name; all must give the same."""
    batch = batch_of(subject)
    try:
        value = seeded(subject.make(), batch)
    except Exception as error:
        _check_terms(subject, batch)
        if isinstance(error, (RuntimeError, IndexError)) and any(True for _ in subject.make().parameters()):
            size, classes = batch.embeddings.shape[1], len(set(batch.labels.tolist()))
            raise AssertionError(
                f"it cannot be called with embeddings of {size} numbers and {classes} classes: {error}. If it is made "
                "for others, keep them in self.embedding_size and self.num_classes, or name them: "
                "check_component(..., embedding_size=..., num_classes=...)"
            ) from error
        raise
    if not isinstance(value, Tensor) or value.ndim != 0:
        raise AssertionError(f"a {subject.kind} gives a scalar tensor, for backward(); got {value!r}")
    if not value.requires_grad:
        raise AssertionError("it has no gradient to the embeddings; look for detach(), torch.no_grad() and .data")
    if subject.kind != "loss" or "labels" not in subject.capabilities:
        return
    if torch.equal(seeded(subject.make(), batch), value):  # else: check_determinism
        torch.manual_seed(0)
        close(subject.make()(batch.embeddings, labels=batch.labels), value, "labels by name give another value")
        close(seeded(subject.make(), batch, None), value, "indices_tuple=None gives another value")


def _check_terms(subject: Subject, batch: Batch) -> None:
    """Fail if ``compute_loss`` returns another dictionary than PML wants; an error of its own is the caller's."""
    try:
        torch.manual_seed(0)
        terms = compute(subject.make(), batch)
    except Exception:
        return
    if not isinstance(terms, dict) or not all(isinstance(info, dict) for info in terms.values()):
        shown = f"a tensor of shape {tuple(terms.shape)}" if isinstance(terms, Tensor) else repr(terms)[:80]
        raise AssertionError(f"compute_loss returns {shown}; {_WANTED}")
    for name, info in terms.items():
        if missing := {"losses", "indices", "reduction_type"} - set(info):
            raise AssertionError(f"the dictionary of sub-loss {name!r} lacks {', '.join(sorted(missing))}; {_WANTED}")
        if info["reduction_type"] not in _TYPES:
            raise AssertionError(f"sub-loss {name!r} has reduction_type {info['reduction_type']!r}; {_WANTED}")
    names = getattr(subject.make(), "sub_loss_names", lambda: ["loss"])()
    given, wanted = (sorted(set(each) - _MADE_BY_PML) for each in (terms, names))
    if given != wanted:
        raise AssertionError(
            f"compute_loss returns {given}, but sub_loss_names() says {wanted}; name them in _sub_loss_names, which "
            "PML calls inside of super().__init__()"
        )


@applies_to("loss")
def check_reducers(subject: Subject) -> None:
    """A loss hands unreduced values of each of its ``sub_loss_names()`` to a reducer.

    A mean taken inside leaves ``reducer=`` without effect.
    """
    batch, losses = batch_of(subject), [subject.make() for _ in range(2)]
    for loss, name in itertools.product(losses, ("embedding_regularizer", "weight_regularizer")):
        setattr(loss, name, None)  # PML's, whose terms are reduced already
    torch.manual_seed(0)
    terms = compute(losses[0], batch)
    _check_terms(subject, batch)
    values = {name: info["losses"] for name, info in terms.items() if isinstance(info["losses"], Tensor)}
    if all(value.ndim == 0 or len(value) == 1 for value in values.values()):
        raise AssertionError("compute_loss returns a value that is reduced already, so that a reducer has no effect")
    single = [n for n, value in values.items() if value.ndim == 0 or terms[n]["reduction_type"] == "already_reduced"]
    if single:
        others = ", ".join(repr(name) for name in terms if name not in single)
        raise AssertionError(f"sub-loss {single[0]!r} is reduced already beside {others}; return all unreduced")
    losses[1].set_reducer(pml.reducers.SumReducer())
    expected = torch.stack([value.sum() for value in values.values()]).sum()
    close(seeded(losses[1], batch), expected, "reducer=SumReducer() is not the sum of the values")


@applies_to("loss")
def check_indices_belong_to_values(subject: Subject) -> None:
    """A reducer looks up by ``indices`` which image, pair or triplet a value is of, weighted by class, say.

    In another order of the batch each image, pair or triplet has the value that it had.
    """
    needs(subject, repeatable=True)
    batch = batch_of(subject, (4, 3))
    order = shuffle(len(batch.labels), 3)
    before, after = (compute(subject.make(), each) for each in (batch, batch.ordered(order)))
    for name, info in before.items():
        values, kind = info["losses"], info["reduction_type"]
        if kind == "already_reduced" or not isinstance(values, Tensor) or values.ndim != 1:
            continue
        index, moved = ((i,) if isinstance(i, Tensor) else (*i,) for i in (info["indices"], after[name]["indices"]))
        if kind != "element":
            same = batch.labels[index[0]] == batch.labels[index[1]]
            if (same if kind == "neg_pair" else ~same).any():
                classes = "one class" if kind == "neg_pair" else "two classes"
                raise AssertionError(f"sub-loss {name!r} says {kind}, but its indices are of images of {classes}")
        other = after[name]["losses"]
        if not torch.isclose(values.sum(), other.sum(), rtol=1e-6, atol=1e-6):
            raise SkipCheck("its values depend on the order of the batch, see check_order_does_not_matter")
        shape = (len(order),) * len(index)
        mine, theirs = values.new_zeros(shape), values.new_zeros(shape)  # summed where an index comes twice
        mine.index_put_(index, values.detach(), accumulate=True)
        theirs.index_put_(tuple(order[i] for i in moved), other.detach(), accumulate=True)
        if not torch.allclose(mine, theirs, rtol=1e-6, atol=1e-6):
            raise AssertionError(f"the indices of sub-loss {name!r} do not belong to its values: order changes them")


@applies_to("loss", "regularizer")
def check_parameters_get_gradients(subject: Subject) -> None:
    """A parameter without a gradient is never trained, and a run's records show it as if it were."""
    component = subject.make()
    named = {name: parameter for name, parameter in component.named_parameters() if parameter.requires_grad}
    if not named:
        raise SkipCheck("it has no parameters")
    reached: set[str] = set()
    for seed in range(3):
        torch.manual_seed(seed)
        slopes = gradients(call(component, batch_of(subject, seed=seed)), [*named.values()])
        reached |= {name for name, slope in zip(named, slopes, strict=True) if float(slope.abs().max()) > _ZERO}
    if missing := [name for name in named if name not in reached]:
        names = ", ".join(missing)
        raise AssertionError(f"the parameters {names} get no gradient; use them, without detach() or .data")


@applies_to("loss", "regularizer")
def check_labels_are_used(subject: Subject) -> None:
    """A loss that takes labels and gives the same for any is trained on nothing."""
    if not takes_labels(subject.make()):
        raise SkipCheck("it takes no labels")
    batch = batch_of(subject)
    value = seeded(subject.make(), batch)
    if torch.equal(value, seeded(subject.make(), Batch(batch.embeddings, batch.labels[shuffle(len(batch.labels), 1)]))):
        raise AssertionError(f"labels are ignored: other labels give the same {subject.kind}, {value.item():.6g}")


@applies_to("loss")
def check_indices_tuple_of_pairs(subject: Subject) -> None:
    """The pairs that a miner chose must count: the positive and the negative ones of a tuple of four."""
    _check_narrowed(subject, all_pairs, {"positive pairs": slice(0, 2), "negative pairs": slice(2, 4)})


@applies_to("loss")
def check_indices_tuple_of_triplets(subject: Subject) -> None:
    """The triplets that a miner chose must count: those of a tuple of three, anchor, positive, negative."""
    _check_narrowed(subject, all_triplets, {"triplets": slice(0, 3)})
    batch = batch_of(subject)
    values = (seeded(subject.make(), batch, listed(batch)) for listed in (all_pairs, all_triplets))
    one, other = (gradient(value, batch.embeddings).flatten() for value in values)
    if torch.cosine_similarity(one, other, dim=0) < -_OPPOSITE:
        raise AssertionError(
            "all triplets have the opposite gradient of all pairs; three are anchor, positive, negative"
        )


def _check_narrowed(
    subject: Subject, listed: Callable[[Batch], tuple[Tensor, ...]], kinds: dict[str, slice[int, int, None]]
) -> None:
    """Fail where a third of the pairs or triplets of a tuple gives the loss and the gradient of all, in every batch."""
    needs(subject, "labels", "indices_tuple")
    batch = batch_of(subject)
    if listed is all_pairs and not is_random(subject) and "references" in subject.capabilities:
        text = "all pairs of the batch as indices_tuple give another loss than none; an image is no pair with itself"
        close(seeded(subject.make(), batch, all_pairs(batch)), seeded(subject.make(), batch), text)

    def changes(batch: Batch, part: slice[int, int, None]) -> bool:
        whole, loss, generator = listed(batch), subject.make(), torch.Generator().manual_seed(2)
        base = seeded(loss, batch, whole)
        for _ in range(5):  # a loss may look at the hardest alone, which a draw may hold
            value = seeded(
                loss, batch, (*whole[: part.start], *some_of(whole[part], 0.3, generator), *whole[part.stop :])
            )
            if not torch.equal(value, base) or not torch.allclose(
                gradient(value, batch.embeddings), gradient(base, batch.embeddings)
            ):
                return True
        return False

    for kind, part in kinds.items():
        if not any(changes(batch_of(subject, **settings), part) for settings in CLOSE):
            raise AssertionError(f"the {kind} that a miner chose are ignored: a third of them gives the loss of all")


@applies_to("loss", "miner")
def check_relation(subject: Subject) -> None:
    """A relation takes the place of equal labels: sets of one label give what labels give, others what pairs give.

    One-hot labels give the same value and gradient, or indices, to the last bit. Of label sets a loss gives what it
    gives with the list of their pairs as ``indices_tuple``, whole and in tiles; a miner chooses among these pairs.
    """
    needs(subject, "relation", fixed=True)
    batch = batch_of(subject)

    def outcome(labels: Tensor, relation: SharedLabel | None, tile_size: int | None = None, **named: Any) -> Any:
        component = subject.make()
        component.relation, component.tile_size = relation, tile_size
        value = seeded(component, Batch(batch.embeddings, labels), **named)
        return value if subject.kind == "miner" else (value.detach(), gradient(value, batch.embeddings))

    one_hot = torch.nn.functional.one_hot(batch.labels)
    if not equal(outcome(one_hot, SharedLabel()), outcome(batch.labels, None)):
        raise AssertionError("one-hot labels with SharedLabel() give something else than labels do")
    sets = torch.rand(len(batch.labels), 6, generator=torch.Generator().manual_seed(0)) < 0.3
    if subject.kind == "miner":
        mined = outcome(sets, SharedLabel())
        weights = SharedLabel().matrix(sets, sets)
        anchors = mined[0] if len(mined) == 3 else mined[2]
        if not (weights[mined[0], mined[1]] > 0).all() or not (weights[anchors, mined[-1]] == 0).all():
            raise AssertionError("with label sets it chooses pairs that the relation does not allow")
        return
    wanted = outcome(batch.labels, None, indices_tuple=related_pairs(SharedLabel(), sets, sets, itself=True))
    for tile_size in (None, 3):
        for found, other in zip(outcome(sets, SharedLabel(), tile_size), wanted, strict=True):
            close(found, other, "label sets with SharedLabel() give something else than their pairs do", atol=1e-9)


@applies_to("loss")
def check_references(subject: Subject) -> None:
    """``ref_emb`` is taken, or refused with an error; a loss that ignores it trains on something else than asked.

    References are not the batch, also where they are as many: none is left out for standing on the diagonal. Their
    order means nothing, and their labels are their own.
    """
    parameters = inspect.signature(subject.make().forward).parameters
    if "ref_emb" not in parameters and all(p.kind is not p.VAR_KEYWORD for p in parameters.values()):
        raise SkipCheck("its forward has no ref_emb")
    labeled, taken = "labels" in subject.capabilities, "references" in subject.capabilities
    batch, one, other = (batch_of(subject, seed=seed) for seed in (0, 1, 2))

    def value(references: Batch) -> Tensor:
        named = {"ref_labels": references.labels} if labeled else {}
        return seeded(subject.make(), batch, ref_emb=references.embeddings, **named).detach()  # type: ignore[no-any-return]

    try:
        values = value(one), value(other)
    except Exception as error:
        if taken:
            raise AssertionError(f"it says that it has references, but refuses them: {error}") from error
        return  # refused, as it says
    if torch.equal(*values):
        raise AssertionError("ref_emb is accepted and ignored: other references give the same loss; or refuse them")
    if not labeled or not taken or is_random(subject):
        return
    references = Batch(one.embeddings, one.labels[shuffle(len(one.labels), 4)])
    base = value(references)
    for seed in (5, 6):
        close(
            value(references.ordered(shuffle(len(one.labels), seed))),
            base,
            "as many references as images, in another order, give another loss: the pair of an image and its row is "
            "left out; say references=True to pair_masks where ref_emb is not the batch",
        )
    if torch.equal(value(one), base):
        raise AssertionError("ref_labels are ignored: other labels of the references give the same loss")
