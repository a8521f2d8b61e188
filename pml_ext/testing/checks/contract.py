"""PML's contract: call forms, unreduced values, dtypes, gradients, no ignored arguments."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from ... import pml
from ...pairwise.batch import describe
from ..batches import CLOSE, Batch, batch_of, new_leaf, sample_pairs, shuffle
from ..calling import call, call_forms, compute, error_summary, is_random, needs, outcome, seeded, used
from ..comparing import all_close, check_tuple, close, equal, gradient, gradients, weighted
from ..subject import (
    CLASSES,
    Subject,
    applies_to,
    label_arguments,
    require,
    set_seed,
    skip_unless,
    takes_labels,
    with_noise,
)

_WANTED = (
    "wanted {'loss': {'losses': values, 'indices': what each is of, 'reduction_type': 'element', 'pos_pair', "
    "'neg_pair' or 'triplet'}}, as per_anchor(values), per_pair and per_triplet of pml_ext.plugin make it"
)
_TYPES = ("element", "pos_pair", "neg_pair", "triplet", "already_reduced")
_OPPOSITE = 0.1  # gradients with a cosine below minus this are opposite
_ZERO = 1e-12  # a gradient of zero, after rounding
_DIRECTIONS = 4  # along which a gradient is compared with differences of the value
_STEP = 1e-6  # of these differences
_FULL = (torch.float32, torch.float64)
_MADE_BY_PML = {"embedding_reg_loss", "weight_reg_loss"}  # sub-losses that it adds by itself


@applies_to("loss", "regularizer")
def check_call_forms(subject: Subject) -> None:
    """Calls by position and by name must give the same value, because users mix both."""
    batch = batch_of(subject)
    try:
        value = seeded(subject.make(), batch)
    except Exception as error:
        _check_terms(subject, batch)
        if isinstance(error, (RuntimeError, IndexError)) and [*subject.make().parameters()]:
            raise AssertionError(
                f"it cannot be called with embeddings of {subject.size} numbers and {subject.classes} classes: {error}."
                " Name other sizes: check_component(..., embedding_size=..., num_classes=...)"
            ) from error
        raise
    require(
        isinstance(value, Tensor) and value.ndim == 0,
        f"a {subject.kind} gives a scalar tensor, for backward(); got {value!r}",
    )
    require(value.requires_grad, "it has no gradient to the embeddings; look for detach(), torch.no_grad() and .data")
    if subject.kind != "loss" or "labels" not in subject.capabilities:
        return
    if torch.equal(seeded(subject.make(), batch), value):  # else: check_determinism
        set_seed(0)
        close(subject.make()(batch.embeddings, labels=batch.labels), value, "labels by name give another value")
        close(seeded(subject.make(), batch, None), value, "indices_tuple=None gives another value")


def _check_terms(subject: Subject, batch: Batch) -> None:
    try:
        set_seed(0)
        terms = compute(subject.make(), batch)
    except Exception:
        return
    require(
        isinstance(terms, dict) and all(isinstance(info, dict) for info in terms.values()),
        f"compute_loss returns {describe(terms)}; {_WANTED}",
    )
    for name, info in terms.items():
        kind = info.get("reduction_type")
        require(
            {"losses", "indices"} <= {*info} and kind in _TYPES,
            f"sub-loss {name!r} has {', '.join(info)}, of reduction_type {kind!r}; {_WANTED}",
        )
    names = getattr(subject.make(), "sub_loss_names", lambda: ["loss"])()
    given = sorted(set(terms) - _MADE_BY_PML)
    wanted = sorted(set(names) - _MADE_BY_PML)
    require(given == wanted, f"compute_loss returns {given}, sub_loss_names() {wanted}; name them in _sub_loss_names")


@applies_to("loss")
def check_reducers(subject: Subject) -> None:
    """A loss must leave the mean to the reducer, or ``reducer=`` has no effect."""
    batch = batch_of(subject)
    losses = [subject.make() for _ in range(2)]
    for loss in losses:
        loss.embedding_regularizer = loss.weight_regularizer = None  # PML's, whose terms are reduced already
    set_seed(0)
    terms = compute(losses[0], batch)
    _check_terms(subject, batch)
    values = {name: info["losses"] for name, info in terms.items() if isinstance(info["losses"], Tensor)}
    require(
        any(value.ndim > 0 and len(value) != 1 for value in values.values()),
        "compute_loss returns a value that is reduced already, so that a reducer has no effect; return one value "
        "per anchor, pair or triplet, or per proxy: per_anchor(values)",
    )
    single = [n for n, value in values.items() if value.ndim == 0 or terms[n]["reduction_type"] == "already_reduced"]
    if single:
        raise AssertionError(f"sub-loss {single[0]!r} is reduced already, others are not; return all unreduced")
    losses[1].set_reducer(pml.reducers.SumReducer())
    expected = torch.stack([value.sum() for value in values.values()]).sum()
    close(seeded(losses[1], batch), expected, "reducer=SumReducer() is not the sum of the values")
    if not is_random(subject) and not isinstance(getattr(losses[0], "reducer", None), pml.reducers.SumReducer):
        _check_not_divided(subject, batch)


def _check_not_divided(subject: Subject, batch: Batch) -> None:
    """Fail if values are already divided by the number of images.

    Images without a pair in the tuple must not change the sum; without a tuple, twice the images must double it.
    """
    pairs = pml.get_all_pairs_indices(batch.labels) if "indices_tuple" in subject.capabilities else None
    more = batch if pairs is None else batch_of(subject, seed=1)
    twice = Batch(torch.cat([batch.embeddings, more.embeddings]), torch.cat([batch.labels, more.labels]))
    terms = []
    for each in (batch, twice):
        try:
            set_seed(0)
            given = each.embeddings, each.labels, pairs, each.embeddings, each.labels
            terms.append(subject.make().compute_loss(*given))
        except Exception:  # see the other checks
            return
    for name, info in terms[0].items():
        values = [torch.as_tensor(each[name]["losses"]) for each in terms]
        if info["reduction_type"] == "already_reduced" or not values[0].any():
            continue
        if pairs is None and len(values[1]) != 2 * len(values[0]):  # one for each class
            continue
        growth = float(values[1].sum() / values[0].sum())
        expected = 2.0 if pairs is None else 1.0
        for power in (1, 2):
            require(
                not math.isclose(growth, expected / 2**power, rel_tol=1e-6),
                f"sub-loss {name!r} is divided by the number of images, and then by the reducer's mean; leave the "
                "division to the reducer",
            )


@applies_to("loss")
def check_indices_belong_to_values(subject: Subject) -> None:
    """``indices`` must name the image, pair or triplet of each value, in any order."""
    needs(subject, repeatable=True)
    batch = batch_of(subject, (4, 3))
    order = shuffle(len(batch.labels), 3)
    before = compute(subject.make(), batch)
    after = compute(subject.make(), batch.ordered(order))
    for name, info in before.items():
        values = info["losses"]
        kind = info["reduction_type"]
        if kind == "already_reduced" or not isinstance(values, Tensor) or values.ndim != 1:
            continue
        index = _as_tuple(info["indices"])
        moved = _as_tuple(after[name]["indices"])
        _check_classes_of_indices(name, kind, index, batch, batch)
        other = after[name]["losses"]
        skip_unless(
            torch.isclose(values.sum(), other.sum(), rtol=1e-6, atol=1e-6),
            "its values depend on the order of the batch, see check_order_does_not_matter",
        )
        mine = _by_index(index, values, len(order))
        restored = [_by_index(tuple(order[i] for i in moved), other, len(order))]
        if kind == "element" and subject.has_class_rows:  # an order of images does not move the rows
            restored.append(_by_index(moved, other, len(order)))
        require(
            any(torch.allclose(mine, theirs, rtol=1e-6, atol=1e-6) for theirs in restored),
            f"the indices of sub-loss {name!r} do not belong to its values: order changes them",
        )
    if not {"labels", "references"} <= subject.capabilities:
        return
    references = batch_of(subject, (CLASSES, 5), seed=1)
    for name, info in compute(subject.make(), batch, references).items():
        if info["reduction_type"] != "already_reduced":
            _check_classes_of_indices(name, info["reduction_type"], _as_tuple(info["indices"]), batch, references)


def _check_classes_of_indices(name: str, kind: str, index: tuple[Tensor, ...], batch: Batch, references: Batch) -> None:
    if kind == "element":
        return
    where = "" if references is batch else f" (with {len(references.labels)} references)"
    text = f"sub-loss {name!r} says {kind}, but its indices are"
    for place, of in enumerate((batch.labels, references.labels, references.labels)[: len(index)]):
        require(
            (index[place] < len(of)).all(),
            f"{text} outside of 0 to {len(of) - 1}{where}; anchors are rows of the batch, and come first; "
            "partners are rows of ref_emb",
        )
    anchors = batch.labels[index[0]]
    same = anchors == references.labels[index[1]]
    wrong = same if kind == "neg_pair" else ~same
    if kind == "triplet":
        wrong = wrong | (anchors == references.labels[index[2]])
    require(not wrong.any(), f"{text} of other classes{where}; wanted (anchor, partner), in this order")


def _by_index(index: tuple[Tensor, ...], values: Tensor, length: int) -> Tensor:
    placed = values.new_zeros((length,) * len(index))
    placed.index_put_(index, values.detach(), accumulate=True)
    return placed


def _as_tuple(indices: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (indices,) if isinstance(indices, Tensor) else tuple(indices)


@applies_to("loss", "regularizer")
def check_parameters_get_gradients(subject: Subject) -> None:
    """Every parameter must get a gradient; without one it is never trained."""
    component = subject.make()
    named = {name: parameter for name, parameter in component.named_parameters() if parameter.requires_grad}
    skip_unless(named, "it has no parameters")
    reached: set[str] = set()
    for seed in range(3):
        set_seed(seed)
        slopes = gradients(call(component, batch_of(subject, seed=seed)), [*named.values()])
        reached |= {name for name, slope in zip(named, slopes, strict=True) if float(slope.abs().max()) > _ZERO}
    if missing := ", ".join(name for name in named if name not in reached):
        raise AssertionError(f"the parameters {missing} get no gradient; use them, without detach() or .data")


@applies_to("loss", "regularizer")
def check_labels_are_used(subject: Subject) -> None:
    """Other labels must change a loss that declares labels."""
    skip_unless(takes_labels(subject.make()), "it takes no labels")
    shown = []
    for settings in CLOSE:  # a weight or a hinge may be zero at first, or in some batches
        batch = batch_of(subject, **settings)
        other = Batch(batch.embeddings, batch.labels[shuffle(len(batch.labels), 1)])
        value, with_others = (
            seeded(with_noise(used(subject.make(), subject)), each).detach() for each in (batch, other)
        )
        if not torch.equal(value, with_others):
            return
        shown.append(f"{value.item():.6g}")
    text = f"labels are ignored: other labels give the same {subject.kind}"
    raise AssertionError(f"{text} in {len(shown)} batches, {shown[0]} in the first")


@applies_to("loss")
def check_indices_tuple_of_pairs(subject: Subject) -> None:
    """The pairs of a miner's tuple of four must count."""
    needs(subject, "labels", "indices_tuple")
    listed = pml.get_all_pairs_indices
    batch = batch_of(subject)
    if not is_random(subject) and "references" in subject.capabilities:
        text = "all pairs of the batch as indices_tuple give another loss than none; an image is no pair with itself"
        close(seeded(subject.make(), batch, listed(batch.labels)), seeded(subject.make(), batch), text)
    _check_narrowed(subject, listed, {"positive pairs": slice(0, 2), "negative pairs": slice(2, 4)})


@applies_to("loss")
def check_indices_tuple_of_triplets(subject: Subject) -> None:
    """The triplets of a miner's tuple of three must count."""
    needs(subject, "labels", "indices_tuple")
    _check_narrowed(subject, pml.get_all_triplets_indices, {"triplets": slice(0, 3)})
    batch = batch_of(subject)
    lists = (pml.get_all_pairs_indices(batch.labels), pml.get_all_triplets_indices(batch.labels))
    one, other = (gradient(seeded(subject.make(), batch, listed), batch.embeddings).flatten() for listed in lists)
    require(
        not torch.cosine_similarity(one, other, dim=0) < -_OPPOSITE,
        "all triplets have the opposite gradient of all pairs; wanted anchor, positive, negative",
    )


def _check_narrowed(subject: Subject, listed: Callable[[Tensor], tuple[Tensor, ...]], kinds: dict[str, slice]) -> None:
    def changes(batch: Batch, part: slice) -> bool:
        whole = listed(batch.labels)
        loss = subject.make()
        generator = torch.Generator().manual_seed(2)
        base = outcome(loss, batch, indices_tuple=whole)
        for _ in range(5):  # a loss may use only the hardest pair, which a draw may contain
            narrowed = (*whole[: part.start], *sample_pairs(whole[part], 0.3, generator), *whole[part.stop :])
            if not all_close(outcome(loss, batch, indices_tuple=narrowed), base, 1e-12):
                return True
        return False

    for kind, part in kinds.items():
        require(
            any(changes(batch_of(subject, **settings), part) for settings in CLOSE),
            f"the {kind} that a miner chose are ignored: a third of them gives the loss of all",
        )


@applies_to("loss")
def check_references(subject: Subject) -> None:
    """``ref_emb`` must be used or refused; a loss that ignores it trains on wrong pairs.

    References have their own labels, in any order, and are never the batch itself.
    """
    parameters = inspect.signature(subject.make().forward).parameters
    skip_unless(
        "ref_emb" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values()),
        "its forward has no ref_emb",
    )
    labeled = "labels" in subject.capabilities
    taken = "references" in subject.capabilities
    batch = batch_of(subject, seed=0)
    one = batch_of(subject, seed=1)
    other = batch_of(subject, seed=2)

    def value(references: Batch) -> Tensor:
        named = {"ref_labels": references.labels} if labeled else {}
        return seeded(subject.make(), batch, ref_emb=references.embeddings, **named).detach()  # type: ignore[no-any-return]

    try:
        values = value(one), value(other)
    except Exception as error:
        if taken:
            raise AssertionError(f"it says that it has references, but refuses them: {error}") from error
        return  # refused, as it says
    require(
        not torch.equal(*values),
        "ref_emb is accepted and ignored: other references give the same loss; or refuse them",
    )
    if not labeled or not taken or is_random(subject):
        return
    references = Batch(one.embeddings, one.labels[shuffle(len(one.labels), 4)])
    base = value(references)
    text = "as many references as images, in another order, give another loss; "
    text += "partners are rows of ref_emb; say has_references=True to pair_masks"
    for seed in (5, 6):
        close(value(references.ordered(shuffle(len(one.labels), seed))), base, text)
    require(
        not torch.equal(value(one), base),
        "ref_labels are ignored: other labels of the references give the same loss",
    )


@applies_to("loss", "regularizer", "distance")
def check_gradients(subject: Subject) -> None:
    """Gradients of inputs and parameters must match finite differences of the loss."""
    needs(subject, repeatable=True)
    batch = batch_of(subject, (3, 3))
    other = batch_of(subject, (3, 2), seed=1)
    component = subject.make()
    _compare_with_differences("the embeddings", lambda x: call(component, Batch(x, batch.labels)), batch.embeddings)
    for named in call_forms(subject, batch, other).values():
        if "ref_emb" in named:

            def by_references(references: Tensor, named: dict[str, Any] = named) -> Any:
                return call(component, batch, **{**named, "ref_emb": references})

            _compare_with_differences("ref_emb", by_references, other.embeddings)
    arguments = (batch.embeddings.detach(), *label_arguments(component, batch.labels))
    for name, parameter in with_noise(subject.make()).named_parameters():  # a metric may begin as the identity
        if parameter.requires_grad:

            def by_parameter(value: Tensor, name: str = name) -> Any:
                return functional_call(component, {name: value}, arguments)

            _compare_with_differences(name, by_parameter, new_leaf(parameter))


def _compare_with_differences(name: str, function: Callable[[Tensor], Any], leaf: Tensor) -> None:
    """Fail unless a leaf's gradient agrees with differences along random directions.

    An error in any coordinate shows in every direction.
    """
    value = weighted(function(leaf))
    slope = gradient(value, leaf)
    tolerance = 1e-4 * (1 + float(slope.norm())) + 1e-8 * abs(float(value))
    generator = torch.Generator().manual_seed(11)
    for _ in range(_DIRECTIONS):
        direction = torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype)
        ends = [float(weighted(function(new_leaf(leaf + step * direction)))) for step in (_STEP, -_STEP)]
        difference = (ends[0] - ends[1]) / (2 * _STEP)
        along = float((slope * direction).sum())
        require(
            abs(difference - along) <= tolerance,  # NaN does not agree
            f"the gradient of {name} differs from finite differences: backward() gives {along:.6g}, not "
            f"{difference:.6g}; look for detach(), .data, no_grad() and item(), or name check_gradients in "
            "expected_failed_checks",
        )


@applies_to("loss", "regularizer", "miner", "distance")
def check_dtypes(subject: Subject) -> None:
    """Half-precision inputs must give a float32 or float64 value, also under autocast."""

    def module(dtype: torch.dtype) -> Any:
        return subject.make().to(torch.promote_types(dtype, torch.float32)).train(subject.kind != "distance")

    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        batch = batch_of(subject, dtype=dtype)
        given = f"{dtype} embeddings"
        component = module(dtype)
        kept = {name: x.dtype for name, x in component.state_dict().items() if isinstance(x, Tensor)}
        try:
            value = seeded(component, batch)
        except (RuntimeError, NotImplementedError) as error:
            text = f"{given} stop it: {error_summary(error)}"
            raise AssertionError(f"{text}; not all operations take them: cast them to float32 first") from error
        for name, x in component.state_dict().items():
            if name in kept:
                require(x.dtype == kept[name], f"{given} leave {name} in {x.dtype} for good; cast a copy in each call")
        if subject.kind == "miner":
            continue
        shown = value.item() if value.ndim == 0 else "distances that are not finite"
        require(value.isfinite().all(), f"{given} give {shown}")
        if subject.kind == "distance":
            continue
        require(
            value.dtype in _FULL,
            f"{given} give a {subject.kind} in {value.dtype}; compute it in float32 or float64, from "
            "pml_ext.plugin.to_full_precision(embeddings)",
        )
        if not is_random(subject):
            exact = call(module(torch.float64), Batch(new_leaf(batch.embeddings.double()), batch.labels))
            tolerance = 1e-4 if dtype in _FULL else 2e-2
            close(value, exact, f"{given} give another {subject.kind} than float64", rtol=tolerance, atol=tolerance)
        value.backward()
        slope = batch.embeddings.grad
        require(slope is not None and slope.isfinite().all(), f"{given} have no finite gradient")
    if subject.kind == "distance":
        _check_backward_after_autocast(subject, module(torch.float32))
    if subject.kind == "loss":
        batch = batch_of(subject, dtype=torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = seeded(module(torch.float32), batch)
        expected = seeded(module(torch.float32), batch)
        close(value, expected, "autocast changes the loss; leave it inside of it", rtol=1e-4, atol=1e-5)


def _check_backward_after_autocast(subject: Subject, distance: Any) -> None:
    batch = batch_of(subject, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = seeded(distance, batch)
    if not value.requires_grad:
        return
    try:
        value.float().sum().backward()
    except RuntimeError as error:
        text = f"autocast in the forward pass stops the backward pass: {error_summary(error)}"
        raise AssertionError(f"{text}; leave autocast, by pml_ext.plugin.autocast_off(device)") from error


@applies_to("loss", "regularizer", "miner")
def check_degenerate_batches(subject: Subject) -> None:
    """Loss and gradient must be finite for degenerate batches and collapsed embeddings."""
    sizes = torch.tensor([7, 1, 3, 2, 5, 1][: subject.classes])
    duplicates = batch_of(subject)
    with torch.no_grad():
        duplicates.embeddings[1] = duplicates.embeddings[-1] = duplicates.embeddings[0]
    batches = [
        ("a batch without positives", batch_of(subject, (4, 1))),
        ("a batch without negatives", batch_of(subject, (1, 4))),
        ("a batch of one image", batch_of(subject, (1, 1))),
        ("a batch of ragged classes", batch_of(subject, torch.arange(len(sizes)).repeat_interleave(sizes))),
        ("a batch with exact duplicates", duplicates),
    ]
    for what, scale in (("at one point", 1.0), ("at zero", 0.0)):
        shapes = [(6, 4), (4, 1), (1, 4)] if subject.kind == "regularizer" else [(6, 4)]
        for shape in shapes:
            batch = batch_of(subject, shape)
            point = Batch(new_leaf(scale * batch.embeddings[:1].expand_as(batch.embeddings)), batch.labels)
            batches.append((f"a batch of embeddings that are all {what}", point))
    remedy = "; norms and roots want eps below them, as pml_ext.plugin.normalize has it"
    for what, batch in batches:
        value = seeded(subject.make(), batch)
        if subject.kind == "miner":
            check_tuple(value, batch.labels, batch.labels, f", in {what}", is_random(subject))
            continue
        require(isinstance(value, Tensor) and value.requires_grad, f"{what} gives {value!r}, on which backward() fails")
        require(value.isfinite(), f"{what} gives {value.item()}, which is not finite{remedy}")
        slope = gradient(value, batch.embeddings)
        require(slope.isfinite().all(), f"{what} gives a gradient that is not finite{remedy}")


@applies_to("loss", "regularizer", "miner", "distance", "reducer")
def check_inputs_unchanged(subject: Subject) -> None:
    """Inputs must stay unchanged, because network, regularizer and next loss use them."""
    batch = batch_of(subject)
    other = batch_of(subject, seed=1)
    component = subject.make()
    shift = not subject.has_class_rows
    batch = Batch(batch.embeddings.detach(), batch.labels + shift)
    other = Batch(other.embeddings.detach(), other.labels + shift)
    for form, named in call_forms(subject, batch, other).items():
        if subject.kind == "reducer":
            named |= {"losses": batch.embeddings[:, 0].square()}
        given = {"embeddings": batch.embeddings, "labels": batch.labels}
        for name, value in named.items():
            if isinstance(value, tuple):
                given |= {f"{name}[{number}]": tensor for number, tensor in enumerate(value)}
            else:
                given[name] = value
        before = {name: (tensor.clone(), tensor._version) for name, tensor in given.items()}
        seeded(component, batch, **named)
        for name, tensor in given.items():
            value, version = before[name]
            require(
                torch.equal(tensor, value) and tensor._version == version,
                f"a call{form} changes {name} in place, which others use too; clone() first",
            )
            require(
                not tensor.requires_grad,
                f"a call{form} switches on the gradient of {name}; detach() or clone() first",
            )


@applies_to("loss", "regularizer", "miner")
def check_determinism(subject: Subject) -> None:
    """Two runs with the same seed must give the same result."""
    batch = batch_of(subject)
    require(
        equal(seeded(subject.make(), batch), seeded(subject.make(), batch)),
        "two equal calls after torch.manual_seed(0) differ; draw by torch's generators",
    )
