"""How a loss is called, what it hands over, and that it ignores nothing."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ... import pml
from ..calling import all_of, call, close, compute, has_state, is_random, needs, some_of
from ..probes import gradient, gradients
from ..subject import Batch, SkipCheck, Subject, batch_of, fresh

_WANTED = (
    "wanted {'loss': {'losses': a value per element, pair or triplet, 'indices': what each belongs to, "
    "'reduction_type': 'element', 'pos_pair', 'neg_pair' or 'triplet'}}, as per_anchor(values), "
    "per_pair and per_triplet of pml_ext.plugin make it"
)
_TYPES = ("element", "pos_pair", "neg_pair", "triplet", "already_reduced")
_NOTHING = 1e-12  # what rounding leaves of a gradient of zero
_MADE_BY_PML = {"embedding_reg_loss", "weight_reg_loss"}  # sub-losses that it adds by itself


def check_call_forms(subject: Subject) -> None:
    """PML's trainers, wrappers and users call a loss by position and by name; all must give the same."""
    batch = batch_of(subject)
    value = _first_value(subject, batch)
    if not isinstance(value, Tensor) or value.ndim != 0:
        raise AssertionError(f"a loss gives a scalar tensor, which trainers call backward() on; got {value!r}")
    if not value.requires_grad:
        raise AssertionError(
            "the loss has no gradient with respect to the embeddings, so that nothing trains; look "
            "for detach(), torch.no_grad() and .data"
        )
    torch.manual_seed(0)
    if "labels" in subject.capabilities and torch.equal(call(subject.make(), batch), value):  # else: check_determinism
        torch.manual_seed(0)
        close(subject.make()(batch.embeddings, labels=batch.labels), value, "labels by name give another value")
        torch.manual_seed(0)
        close(subject.make()(batch.embeddings, batch.labels, None), value, "indices_tuple=None gives another value")


def _first_value(subject: Subject, batch: Batch) -> Any:
    torch.manual_seed(0)
    component = subject.make()
    try:
        return call(component, batch)
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
    """What is wrong with what ``compute_loss`` gives; nothing if that is what PML wants, or cannot be had."""
    try:
        torch.manual_seed(0)
        terms = compute(subject.make(), batch)
    except Exception:  # of the component itself, which is what is shown
        return ""
    if not isinstance(terms, dict) or not all(isinstance(info, dict) for info in terms.values()):
        shown = f"a tensor of shape {tuple(terms.shape)}" if isinstance(terms, Tensor) else repr(terms)[:80]
        return f"compute_loss returns {shown}; {_WANTED}"
    for name, info in terms.items():
        if missing := {"losses", "indices", "reduction_type"} - set(info):
            return f"the dictionary of sub-loss {name!r} lacks {', '.join(sorted(missing))}; {_WANTED}"
        if info["reduction_type"] not in _TYPES:
            return f"sub-loss {name!r} has reduction_type {info['reduction_type']!r}; {_WANTED}"
    component = subject.make()
    names = sorted(set(component.sub_loss_names()) - _MADE_BY_PML)
    if (given := sorted(set(terms) - _MADE_BY_PML)) != names:
        return (
            f"compute_loss returns {given}, but sub_loss_names() says {names}; name them in "
            "_sub_loss_names, which PML calls inside of super().__init__()"
        )
    return ""


def check_sub_loss_names(subject: Subject) -> None:
    """PML builds one reducer for each of ``sub_loss_names()``; a name that is missing there is never reduced."""
    batch = batch_of(subject)
    compute(subject.make(), batch)  # skips what has none
    if wrong := _wrong_terms(subject, batch):
        raise AssertionError(wrong)


def check_reducers(subject: Subject) -> None:
    """A loss hands unreduced values to its reducer; a mean taken inside leaves ``reducer=`` without effect."""
    batch, summed = batch_of(subject), _without_regularizers(subject.make())
    torch.manual_seed(0)
    actual = compute(_without_regularizers(subject.make()), batch)
    values = {name: info["losses"] for name, info in actual.items()}
    single = [
        name
        for name, info in actual.items()
        if isinstance(info["losses"], Tensor)
        and (info["losses"].ndim == 0 or info["reduction_type"] == "already_reduced")
    ]
    if all(not isinstance(value, Tensor) or value.ndim == 0 or len(value) == 1 for value in values.values()):
        raise AssertionError(
            "compute_loss returns a value that is reduced already, so that a reducer (sum, mean of "
            "what is not zero, threshold) has nothing to do; return one value per element, pair or "
            "triplet, with its indices"
        )
    if single:
        others = ", ".join(repr(name) for name in values if name not in single)
        raise AssertionError(
            f"sub-loss {single[0]!r} is reduced already beside {others}, which is not, so that a "
            "reducer weighs one against the other by the number of values; return all "
            "unreduced"
        )
    for name, info in actual.items():
        value = info["losses"]
        if isinstance(value, Tensor) and value.ndim == 1 and info["reduction_type"] != "already_reduced":
            lengths = {len(index) for index in _indices(info["indices"])}
            if lengths != {len(value)}:
                raise AssertionError(
                    f"sub-loss {name!r} has {len(value)} values but indices of {sorted(lengths)}; "
                    "reducers look values up by them"
                )
    summed.set_reducer(pml.reducers.SumReducer())
    torch.manual_seed(0)
    expected = sum(value.sum() for value in values.values() if isinstance(value, Tensor))
    close(call(summed, batch), torch.as_tensor(expected), "reducer=SumReducer() is not the sum of the values")


def _without_regularizers(loss: Any) -> Any:
    """A loss without PML's ``embedding_regularizer`` and ``weight_regularizer``, whose terms are reduced already."""
    for name in ("embedding_regularizer", "weight_regularizer"):
        if getattr(loss, name, None) is not None:
            setattr(loss, name, None)
    return loss


def _indices(indices: Any) -> tuple[Any, ...]:
    return tuple(indices) if isinstance(indices, (tuple, list)) else (indices,)


def check_indices_belong_to_values(subject: Subject) -> None:
    """A reducer looks up by ``indices`` which image, pair or triplet a value is of, weighted by class, say.

    In another order of the batch each image, pair or triplet has the value that it had.
    """
    if is_random(subject) or has_state(subject):
        raise SkipCheck("its values are random, or depend on the calls before")
    batch = batch_of(subject, (4, 3))
    order = torch.randperm(len(batch.labels), generator=torch.Generator().manual_seed(3))
    before, after = (compute(subject.make(), each) for each in (batch, batch.ordered(order)))
    for name, info in before.items():
        values, kind = info["losses"], info["reduction_type"]
        if kind == "already_reduced" or not isinstance(values, Tensor) or values.ndim != 1:
            continue
        index = _indices(info["indices"])
        if kind in ("pos_pair", "neg_pair", "triplet"):
            same = batch.labels[index[0]] == batch.labels[index[1]]
            if (same if kind == "neg_pair" else ~same).any():
                raise AssertionError(
                    f"sub-loss {name!r} says {kind}, but its indices are of images of "
                    f"{'one class' if kind == 'neg_pair' else 'two classes'}"
                )
        total, other = (float(each[name]["losses"].sum()) for each in (before, after))
        if abs(total - other) > 1e-6 * (1 + abs(total)):
            raise SkipCheck("its values depend on the order of the batch, see check_order_does_not_matter")
        elsewhere = [order[i] for i in _indices(after[name]["indices"])]
        mine, theirs = _by_index(values, index), _by_index(after[name]["losses"], elsewhere)
        pairs = [(mine.get(key, 0.0), theirs.get(key, 0.0)) for key in mine.keys() | theirs.keys()]
        if any(abs(one - two) > 1e-6 * (1 + abs(one)) for one, two in pairs):
            raise AssertionError(
                f"the indices of sub-loss {name!r} do not belong to its values: in another order of "
                "the batch an image, pair or triplet has another value"
            )


def _by_index(values: Tensor, indices: Sequence[Tensor]) -> dict[tuple[int, ...], float]:
    """The values of each index, summed where it comes twice."""
    by_index: dict[tuple[int, ...], float] = {}
    for value, *index in zip(values.tolist(), *(each.tolist() for each in indices), strict=True):
        by_index[tuple(index)] = by_index.get(tuple(index), 0.0) + value
    return by_index


def check_parameters_get_gradients(subject: Subject) -> None:
    """A parameter without a gradient is never trained, and a run's records show it as if it were."""
    component = subject.make()
    named = {name: parameter for name, parameter in component.named_parameters() if parameter.requires_grad}
    if not named:
        raise SkipCheck("it has no parameters")
    reached: set[str] = set()
    for seed in range(3):
        torch.manual_seed(seed)
        value = call(component, batch_of(subject, seed=seed))
        for name, slope in zip(named, gradients(value, [*named.values()]), strict=True):
            reached |= {name} if float(slope.abs().max()) > _NOTHING else set()
    if missing := [name for name in named if name not in reached]:
        raise AssertionError(
            f"the parameters {', '.join(missing)} get no gradient, so that they never train; use "
            "them, without detach() or .data, or make them buffers"
        )


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


# Batches in which other pairs contribute: as they come, close together, far apart, classes mixed.
_CLOSE: tuple[dict[str, Any], ...] = (
    {},
    {"common": 8.0},
    {"scale": 0.05},
    {"spread": 4.0, "common": 20.0},
    {"scale": 20.0},
    {"spread": 0.1},
)


def _restricted(subject: Subject, triplets: bool) -> str | None:
    """Fails where a part of a tuple is ignored; a kind of pair that contributes nowhere is told."""
    needs(subject, "labels", "indices_tuple")
    silent = []
    for what in ["triplets"] if triplets else ["positive pairs", "negative pairs"]:
        heard = contributed = False
        for settings in _CLOSE:
            batch = batch_of(subject, **settings)
            heard = heard or _is_heard(subject, batch, what, triplets)
            if heard:
                break
            contributed = contributed or _contributes(subject, batch, what)
        if not heard and contributed:
            raise AssertionError(
                f"the {what} that a miner chose are ignored: a third of them gives the same loss and "
                "the same gradient as all"
            )
        silent += [what] if not heard else []
    if silent:
        raise SkipCheck(f"{' and '.join(silent)} contribute to the loss in none of {len(_CLOSE)} batches")
    return None


def _is_heard(subject: Subject, batch: Batch, what: str, triplets: bool) -> bool:
    """Whether a third of the pairs or triplets of a tuple gives another loss or gradient than all."""
    everything, loss = all_of(batch, triplets), subject.make()
    generator = torch.Generator().manual_seed(2)

    def value(indices: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        actual = loss(batch.embeddings, batch.labels, indices)
        return actual.detach(), gradient(actual, batch.embeddings)

    def narrowed() -> tuple[Tensor, ...]:
        if what == "triplets":
            return some_of(everything, 0.3, generator)
        positives, negatives = everything[:2], everything[2:]
        if what == "positive pairs":
            return (*some_of(positives, 0.3, generator), *negatives)
        return (*positives, *some_of(negatives, 0.3, generator))

    base = value(everything)
    for _ in range(5):  # a loss may look at the hardest alone, which a draw may keep
        one, slope = value(narrowed())
        if not torch.equal(one, base[0]) or not torch.allclose(slope, base[1]):
            return True
    return False


def _contributes(subject: Subject, batch: Batch, what: str) -> bool:
    """Whether, without a miner, the gradient of an image depends on others of its class, or of another class."""
    same = batch.labels == batch.labels[0]
    same[0] = False
    moved = {"positive pairs": same, "negative pairs": batch.labels != batch.labels[0]}.get(what, batch.labels >= 0)
    slopes: list[Tensor] = []
    for step in (0.0, 1e-3):
        noise = torch.randn(batch.embeddings.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        noise[0] = 0
        x = fresh(batch.embeddings + step * noise * moved[:, None] * batch.embeddings.detach().norm(dim=1).mean())
        torch.manual_seed(0)
        slopes.append(gradient(subject.make()(x, batch.labels), x)[0])
    # A mean over what is not zero scales the gradient by a count that others change too; what contributes turns it.
    return bool(torch.nn.functional.cosine_similarity(slopes[0], slopes[1], dim=0) < 1 - 1e-9 and slopes[0].any())


def check_indices_tuple_of_pairs(subject: Subject) -> str | None:
    """What a miner chose must count: the positive and the negative pairs of a tuple of four.

    Batches are moved together and apart until each kind of pair contributes to the loss, as a small margin needs it.
    """
    return _restricted(subject, triplets=False)


def check_indices_tuple_of_triplets(subject: Subject) -> str | None:
    """What a miner chose must count: the triplets of a tuple of three."""
    return _restricted(subject, triplets=True)


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
        raise AssertionError(
            "ref_emb is accepted and ignored: other references give the same loss. Use them, or raise an error"
        )


def check_references_of_equal_length(subject: Subject) -> None:
    """References are not the batch, also where they are as many: none is left out for standing on the diagonal.

    Their order means nothing, and their labels are their own.
    """
    needs(subject, "labels", "references")
    if is_random(subject) or has_state(subject):
        raise SkipCheck("its values are random, or depend on the calls before")
    batch, other = batch_of(subject), batch_of(subject, seed=1)
    generator = torch.Generator().manual_seed(4)
    shuffled = torch.randperm(len(batch.labels), generator=generator)
    references, labels = other.embeddings.detach(), other.labels[shuffled]

    def value(order: Tensor, names: Tensor) -> Tensor:
        actual: Tensor = subject.make()(batch.embeddings, batch.labels, None, references[order], names[order])
        return actual

    as_they_are = torch.arange(len(labels))
    base = value(as_they_are, labels)
    for seed in (5, 6):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
        close(
            value(order, labels),
            base,
            "as many references as images, in another order, give another loss: the "
            "pair of an image and its row is left out; say references=True to pair_masks where ref_emb is not the "
            "batch",
        )
    if torch.equal(value(as_they_are, other.labels), base):
        raise AssertionError(
            "ref_labels are ignored: other labels of the references give the same loss; compare labels with ref_labels"
        )


def _takes(loss: Any, name: str) -> bool:
    parameters = inspect.signature(loss.forward).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
