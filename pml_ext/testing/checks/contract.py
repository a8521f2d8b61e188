"""PML's contract of a loss: forms of call, unreduced values, and nothing that is accepted and ignored."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ... import pml
from ..batches import Batch, all_pairs, all_triplets, batch_of, fresh, shuffle, some_of
from ..calling import call, close, compute, gradient, gradients, needs, needs_repeatable, seeded
from ..subject import SkipCheck, Subject
from .registered import applies_to

_WANTED = (
    "wanted {'loss': {'losses': a value per element, pair or triplet, 'indices': what each belongs to, "
    "'reduction_type': 'element', 'pos_pair', 'neg_pair' or 'triplet'}}, as per_anchor(values), per_pair and "
    "per_triplet of pml_ext.plugin make it"
)
_TYPES = ("element", "pos_pair", "neg_pair", "triplet", "already_reduced")
_ZERO = 1e-12  # a gradient of zero, after rounding
_MADE_BY_PML = {"embedding_reg_loss", "weight_reg_loss"}  # sub-losses that it adds by itself


@applies_to("loss", "regularizer")
def check_call_forms(subject: Subject) -> None:
    """PML's trainers, wrappers and users call a loss by position and by name; all must give the same."""
    batch = batch_of(subject)
    value = _first_value(subject, batch)
    if not isinstance(value, Tensor) or value.ndim != 0:
        raise AssertionError(
            f"a {subject.kind} gives a scalar tensor, which trainers call backward() on; got {value!r}"
        )
    if not value.requires_grad:
        raise AssertionError(
            f"the {subject.kind} has no gradient with respect to the embeddings, so that nothing trains; look for "
            "detach(), torch.no_grad() and .data"
        )
    if subject.kind != "loss" or "labels" not in subject.capabilities:
        return
    if torch.equal(seeded(subject.make(), batch), value):  # else: check_determinism
        torch.manual_seed(0)
        close(subject.make()(batch.embeddings, labels=batch.labels), value, "labels by name give another value")
        torch.manual_seed(0)
        close(subject.make()(batch.embeddings, batch.labels, None), value, "indices_tuple=None gives another value")


def _first_value(subject: Subject, batch: Batch) -> Any:
    component = subject.make()
    try:
        return seeded(component, batch)
    except Exception as error:
        if wrong := _wrong_terms(subject, batch):
            raise AssertionError(wrong) from error
        if isinstance(error, (RuntimeError, IndexError)) and any(True for _ in component.parameters()):
            size, classes = batch.embeddings.shape[1], len(set(batch.labels.tolist()))
            raise AssertionError(
                f"it cannot be called with embeddings of {size} numbers and {classes} classes: {error}. If it is made "
                "for others, keep them in self.embedding_size and self.num_classes, or name them: "
                "check_component(..., embedding_size=..., num_classes=...)"
            ) from error
        raise


def _wrong_terms(subject: Subject, batch: Batch) -> str:
    """The fault in the dictionary of ``compute_loss``; empty if there is none, or no dictionary to be had."""
    try:
        torch.manual_seed(0)
        terms = compute(subject.make(), batch)
    except Exception:  # of the component itself, which the check shows
        return ""
    if not isinstance(terms, dict) or not all(isinstance(info, dict) for info in terms.values()):
        shown = f"a tensor of shape {tuple(terms.shape)}" if isinstance(terms, Tensor) else repr(terms)[:80]
        return f"compute_loss returns {shown}; {_WANTED}"
    for name, info in terms.items():
        if missing := {"losses", "indices", "reduction_type"} - set(info):
            return f"the dictionary of sub-loss {name!r} lacks {', '.join(sorted(missing))}; {_WANTED}"
        if info["reduction_type"] not in _TYPES:
            return f"sub-loss {name!r} has reduction_type {info['reduction_type']!r}; {_WANTED}"
    names = getattr(subject.make(), "sub_loss_names", lambda: ["loss"])()
    given, wanted = (sorted(set(each) - _MADE_BY_PML) for each in (terms, names))
    if given != wanted:
        return (
            f"compute_loss returns {given}, but sub_loss_names() says {wanted}; name them in _sub_loss_names, which "
            "PML calls inside of super().__init__()"
        )
    return ""


@applies_to("loss")
def check_sub_loss_names(subject: Subject) -> None:
    """PML builds one reducer for each of ``sub_loss_names()``; a name that is missing there is never reduced."""
    batch = batch_of(subject)
    compute(subject.make(), batch)  # skips a wrapper
    if wrong := _wrong_terms(subject, batch):
        raise AssertionError(wrong)


@applies_to("loss")
def check_reducers(subject: Subject) -> None:
    """A loss hands unreduced values to its reducer; a mean taken inside leaves ``reducer=`` without effect."""
    batch, loss = batch_of(subject), _without_regularizers(subject.make())
    torch.manual_seed(0)
    terms = compute(_without_regularizers(subject.make()), batch)
    values = {name: info["losses"] for name, info in terms.items() if isinstance(info["losses"], Tensor)}
    if all(value.ndim == 0 or len(value) == 1 for value in values.values()):
        raise AssertionError(
            "compute_loss returns a value that is reduced already, so that a reducer (sum, mean of what is not zero, "
            "threshold) has nothing to do; return one value per element, pair or triplet, with its indices"
        )
    single = [n for n, value in values.items() if value.ndim == 0 or terms[n]["reduction_type"] == "already_reduced"]
    if single:
        others = ", ".join(repr(name) for name in terms if name not in single)
        raise AssertionError(
            f"sub-loss {single[0]!r} is reduced already beside {others}, which is not, so that a reducer weighs one "
            "against the other by the number of values; return all unreduced"
        )
    for name, value in values.items():
        lengths = {len(index) for index in _indices(terms[name]["indices"])}
        if value.ndim == 1 and lengths != {len(value)}:
            raise AssertionError(
                f"sub-loss {name!r} has {len(value)} values but indices of {sorted(lengths)}; reducers look values up "
                "by them"
            )
    loss.set_reducer(pml.reducers.SumReducer())
    expected = torch.stack([value.sum() for value in values.values()]).sum()
    close(seeded(loss, batch), expected, "reducer=SumReducer() is not the sum of the values")


def _without_regularizers(loss: Any) -> Any:
    """A loss without PML's ``embedding_regularizer`` and ``weight_regularizer``, whose terms are reduced already."""
    for name in ("embedding_regularizer", "weight_regularizer"):
        if getattr(loss, name, None) is not None:
            setattr(loss, name, None)
    return loss


def _indices(indices: Any) -> tuple[Any, ...]:
    return tuple(indices) if isinstance(indices, (tuple, list)) else (indices,)


@applies_to("loss")
def check_indices_belong_to_values(subject: Subject) -> None:
    """A reducer looks up by ``indices`` which image, pair or triplet a value is of, weighted by class, say.

    In another order of the batch each image, pair or triplet has the value that it had.
    """
    needs_repeatable(subject)
    batch = batch_of(subject, (4, 3))
    order = shuffle(len(batch.labels), 3)
    before, after = (compute(subject.make(), each) for each in (batch, batch.ordered(order)))
    for name, info in before.items():
        values, kind = info["losses"], info["reduction_type"]
        if kind == "already_reduced" or not isinstance(values, Tensor) or values.ndim != 1:
            continue
        index = _indices(info["indices"])
        if kind != "element":
            same = batch.labels[index[0]] == batch.labels[index[1]]
            if (same if kind == "neg_pair" else ~same).any():
                raise AssertionError(
                    f"sub-loss {name!r} says {kind}, but its indices are of images of "
                    f"{'one class' if kind == 'neg_pair' else 'two classes'}"
                )
        total, other = (float(each[name]["losses"].sum()) for each in (before, after))
        if abs(total - other) > 1e-6 * (1 + abs(total)):
            raise SkipCheck("its values depend on the order of the batch, see check_order_does_not_matter")
        mine = _by_index(values, index)
        theirs = _by_index(after[name]["losses"], [order[i] for i in _indices(after[name]["indices"])])
        for key in mine.keys() | theirs.keys():
            if abs(mine.get(key, 0.0) - theirs.get(key, 0.0)) > 1e-6 * (1 + abs(mine.get(key, 0.0))):
                raise AssertionError(
                    f"the indices of sub-loss {name!r} do not belong to its values: in another order of the batch an "
                    "image, pair or triplet has another value"
                )


def _by_index(values: Tensor, indices: Sequence[Tensor]) -> dict[tuple[int, ...], float]:
    """The values of each index, summed where it comes twice."""
    by_index: dict[tuple[int, ...], float] = {}
    for value, *index in zip(values.tolist(), *(each.tolist() for each in indices), strict=True):
        by_index[tuple(index)] = by_index.get(tuple(index), 0.0) + value
    return by_index


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
        raise AssertionError(
            f"the parameters {', '.join(missing)} get no gradient, so that they never train; use them, without "
            "detach() or .data, or make them buffers"
        )


@applies_to("loss")
def check_labels_are_used(subject: Subject) -> None:
    """A loss that takes labels and gives the same for any is trained on nothing."""
    needs(subject, "labels")
    batch = batch_of(subject)
    value = seeded(subject.make(), batch)
    if torch.equal(value, seeded(subject.make(), Batch(batch.embeddings, batch.labels[shuffle(len(batch.labels), 1)]))):
        raise AssertionError(f"labels are ignored: other labels give the same loss, {value.item():.6g}")


# Batches in which other pairs contribute: as they come, close together, far apart, classes mixed.
_CLOSE: tuple[dict[str, Any], ...] = (
    {},
    {"common": 8.0},
    {"scale": 0.05},
    {"spread": 4.0, "common": 20.0},
    {"scale": 20.0},
    {"spread": 0.1},
)
Narrow = Callable[[tuple[Tensor, ...], torch.Generator], tuple[Tensor, ...]]
_NARROWED: dict[str, Narrow] = {
    "positive pairs": lambda pairs, generator: (*some_of(pairs[:2], 0.3, generator), *pairs[2:]),
    "negative pairs": lambda pairs, generator: (*pairs[:2], *some_of(pairs[2:], 0.3, generator)),
    "triplets": lambda triplets, generator: some_of(triplets, 0.3, generator),
}


@applies_to("loss")
def check_indices_tuple_of_pairs(subject: Subject) -> None:
    """The pairs that a miner chose must count: the positive and the negative ones of a tuple of four.

    Batches are moved together and apart until each kind of pair contributes to the loss, as a small margin needs it.
    """
    _check_narrowed(subject, "positive pairs", "negative pairs")


@applies_to("loss")
def check_indices_tuple_of_triplets(subject: Subject) -> None:
    """The triplets that a miner chose must count: those of a tuple of three."""
    _check_narrowed(subject, "triplets")


def _check_narrowed(subject: Subject, *kinds: str) -> None:
    """Fail where a part of a tuple is ignored; skip where a kind of pair contributes nowhere."""
    needs(subject, "labels", "indices_tuple")
    silent = []
    for kind in kinds:
        contributed = False
        for settings in _CLOSE:
            batch = batch_of(subject, **settings)
            if _narrowing_changes(subject, batch, kind):
                break
            contributed = contributed or _contributes(subject, batch, kind)
        else:
            if contributed:
                raise AssertionError(
                    f"the {kind} that a miner chose are ignored: a third of them gives the same loss and the same "
                    "gradient as all"
                )
            silent.append(kind)
    if silent:
        raise SkipCheck(f"{' and '.join(silent)} contribute to the loss in none of {len(_CLOSE)} batches")


def _narrowing_changes(subject: Subject, batch: Batch, kind: str) -> bool:
    """Whether a third of the pairs or triplets of a tuple gives another loss or gradient than all."""
    whole, loss = (all_triplets if kind == "triplets" else all_pairs)(batch), subject.make()
    generator = torch.Generator().manual_seed(2)

    def outcome(indices: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        value = seeded(loss, batch, indices)
        return value.detach(), gradient(value, batch.embeddings)

    base = outcome(whole)
    for _ in range(5):  # a loss may look at the hardest alone, which a draw may hold
        value, slope = outcome(_NARROWED[kind](whole, generator))
        if not torch.equal(value, base[0]) or not torch.allclose(slope, base[1]):
            return True
    return False


def _contributes(subject: Subject, batch: Batch, kind: str) -> bool:
    """Whether, without a miner, the gradient of an image depends on others of its class, or of another class."""
    same = batch.labels == batch.labels[0]
    same[0] = False
    moved = {"positive pairs": same, "negative pairs": batch.labels != batch.labels[0]}.get(kind, batch.labels >= 0)
    noise = torch.randn(batch.embeddings.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    noise[0] = 0
    slopes: list[Tensor] = []
    for step in (0.0, 1e-3):
        x = fresh(batch.embeddings + step * noise * moved[:, None] * batch.embeddings.detach().norm(dim=1).mean())
        slopes.append(gradient(seeded(subject.make(), Batch(x, batch.labels)), x)[0])
    # A mean over what is not zero scales the gradient by a count that others change too; a contribution turns it.
    return bool(torch.nn.functional.cosine_similarity(slopes[0], slopes[1], dim=0) < 1 - 1e-9 and slopes[0].any())


@applies_to("loss")
def check_references(subject: Subject) -> None:
    """``ref_emb`` is taken, or refused with an error; a loss that ignores it trains on something else than asked."""
    parameters = inspect.signature(subject.make().forward).parameters
    if "ref_emb" not in parameters and all(p.kind is not p.VAR_KEYWORD for p in parameters.values()):
        raise SkipCheck("its forward has no ref_emb")
    batch, *others = (batch_of(subject, seed=seed) for seed in (0, 1, 2))
    values = []
    for other in others:
        try:
            if "labels" in subject.capabilities:
                values.append(seeded(subject.make(), batch, None, other.embeddings, other.labels).detach())
            else:
                values.append(seeded(subject.make(), batch, ref_emb=other.embeddings).detach())
        except Exception as error:
            if "references" in subject.capabilities:
                raise AssertionError(f"it says that it has references, but refuses them: {error}") from error
            return  # refused, as it says
    if torch.equal(*values):
        raise AssertionError(
            "ref_emb is accepted and ignored: other references give the same loss. Use them, or raise an error"
        )


@applies_to("loss")
def check_references_of_equal_length(subject: Subject) -> None:
    """References are not the batch, also where they are as many: none is left out for standing on the diagonal.

    Their order means nothing, and their labels are their own.
    """
    needs(subject, "labels", "references")
    needs_repeatable(subject)
    batch, other = batch_of(subject), batch_of(subject, seed=1)
    references, labels = other.embeddings.detach(), other.labels[shuffle(len(batch.labels), 4)]
    base = call(subject.make(), batch, None, references, labels)
    for order in (shuffle(len(labels), seed) for seed in (5, 6)):
        close(
            call(subject.make(), batch, None, references[order], labels[order]),
            base,
            "as many references as images, in another order, give another loss: the pair of an image and its row is "
            "left out; say references=True to pair_masks where ref_emb is not the batch",
        )
    if torch.equal(call(subject.make(), batch, None, references, other.labels), base):
        raise AssertionError(
            "ref_labels are ignored: other labels of the references give the same loss; compare labels with ref_labels"
        )
