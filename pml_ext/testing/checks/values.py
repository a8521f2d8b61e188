"""Correctness for every dtype, batch and order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..batches import Batch, all_pairs, batch_of, fresh, shuffle
from ..calling import call, close, equal, gradient, is_random, needs_repeatable, seeded
from ..subject import SIZE, SkipCheck, Subject, applies_to, takes_labels

_SHAPES = ((4, 4), (4, 2), (2, 6), (6, 4), (3, 5))  # numbers of classes, images per class
_FULL = (torch.float32, torch.float64)


@applies_to("loss", "regularizer", "miner", "distance")
def check_dtypes(subject: Subject) -> None:
    """Half precision in, full precision out, under autocast too: half of it is wrong in the third digit."""

    def module(dtype: torch.dtype) -> Any:
        return subject.make().to(torch.promote_types(dtype, torch.float32)).train(subject.kind != "distance")

    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        batch, given = batch_of(subject, dtype=dtype), f"{dtype} embeddings"
        value = seeded(module(dtype), batch)
        if subject.kind == "miner":
            continue
        if not value.isfinite().all():
            raise AssertionError(f"{given} give {value.item() if value.ndim == 0 else 'distances that are not finite'}")
        if subject.kind == "distance":
            continue
        if value.dtype not in _FULL:
            raise AssertionError(f"{given} give a {subject.kind} in {value.dtype}; compute it in float32 or float64")
        if not is_random(subject):
            exact = call(module(torch.float64), Batch(fresh(batch.embeddings.double()), batch.labels))
            tolerance = 1e-4 if dtype in _FULL else 2e-2
            close(value, exact, f"{given} give another {subject.kind} than float64", rtol=tolerance, atol=tolerance)
        value.backward()
        if batch.embeddings.grad is None or not batch.embeddings.grad.isfinite().all():
            raise AssertionError(f"{given} have no finite gradient")
    if subject.kind == "loss":
        batch = batch_of(subject, dtype=torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = seeded(module(torch.float32), batch)
        expected = seeded(module(torch.float32), batch)
        close(value, expected, "autocast changes the loss; leave it inside of it", rtol=1e-4, atol=1e-5)


@applies_to("loss", "regularizer", "miner")
def check_degenerate_batches(subject: Subject) -> None:
    """Batches as samplers give them, and networks at their worst: the loss is finite, and so is its gradient.

    One image per class, one class, classes that differ in size, duplicates; all embeddings at one point, or at zero.
    """
    sizes = torch.tensor([7, 1, 3, 2, 5, 1][: subject.classes])
    duplicates = batch_of(subject)
    with torch.no_grad():
        duplicates.embeddings[1] = duplicates.embeddings[-1] = duplicates.embeddings[0]
    batches = [
        ("a batch without positives", batch_of(subject, (4, 1))),
        ("a batch without negatives", batch_of(subject, (1, 4))),
        ("a batch of ragged classes", batch_of(subject, torch.arange(len(sizes)).repeat_interleave(sizes))),
        ("a batch with exact duplicates", duplicates),
    ]
    for what, scale in (("at one point", 1.0), ("at zero", 0.0)):
        for shape in ((6, 4), (4, 1), (1, 4)) if subject.kind == "regularizer" else ((6, 4),):
            batch = batch_of(subject, shape)
            with torch.no_grad():
                batch.embeddings.copy_(scale * batch.embeddings[:1].expand_as(batch.embeddings))
            batches.append((f"a batch of embeddings that are all {what}", batch))
    remedy = "; norms and roots want eps below them, as pml_ext.plugin.normalize has it"
    for what, batch in batches:
        value = seeded(subject.make(), batch)
        if subject.kind == "miner":
            continue
        if not isinstance(value, Tensor) or not value.requires_grad:
            raise AssertionError(f"{what} gives {value!r}, on which backward() fails")
        if not value.isfinite():
            raise AssertionError(f"{what} gives {value.item()}, which is not finite{remedy}")
        if not gradient(value, batch.embeddings).isfinite().all():
            raise AssertionError(f"{what} gives a gradient that is not finite{remedy}")


@applies_to("loss", "regularizer")
def check_gradients(subject: Subject) -> None:
    """The gradient that training follows is that of the loss, by finite differences."""
    needs_repeatable(subject)
    batch, component = batch_of(subject, (3, 3)), subject.make()

    def value(x: Tensor) -> Any:
        return call(component, Batch(x, batch.labels))

    fast = subject.size > SIZE
    if not torch.autograd.gradcheck(value, (batch.embeddings,), atol=1e-4, raise_exception=False, fast_mode=fast):
        raise AssertionError(f"the gradient differs from finite differences of the {subject.kind}")


@applies_to("loss", "regularizer")
def check_order_does_not_matter(subject: Subject) -> None:
    """The order of a batch means nothing; a loss that is right for sorted labels alone fails with other samplers."""
    if is_random(subject):
        raise SkipCheck("its values are random")
    if subject.kind == "loss" and "labels" not in subject.capabilities:
        raise SkipCheck("it takes no labels")
    for shape in _SHAPES:
        batch = batch_of(subject, shape)
        value = call(subject.make(), batch)
        for seed in (0, 1):
            order = shuffle(len(batch.labels), seed)
            other = batch.ordered(order)
            actual = call(subject.make(), other)
            what = f"the order of the batch changes the {subject.kind} ({shape[0]} classes x {shape[1]})"
            close(actual, value, what, rtol=1e-7)
            expected = gradient(value, batch.embeddings)[order]
            close(gradient(actual, other.embeddings), expected, "the order of the batch changes the gradient")


@applies_to("loss", "regularizer", "miner")
def check_names_of_classes(subject: Subject) -> None:
    """Labels are names: 7 and 3 instead of 0 and 1 mean the same to a component without a row per class."""
    component = subject.make()
    if not takes_labels(component) or is_random(subject):
        raise SkipCheck("it takes no labels, or its values are random")
    tensors = [*component.parameters(), *component.buffers()]
    if any(length and length % subject.classes == 0 for tensor in tensors for length in tensor.shape):
        raise SkipCheck("it has a row per class, which labels are numbers of")
    batch = batch_of(subject)
    renamed = Batch(batch.embeddings, shuffle(1000, 6)[: subject.classes][batch.labels])
    remedy = "compare labels, never calculate with them"
    try:
        value, renamed_value = call(component, batch), call(subject.make(), renamed)
    except IndexError:
        if tensors:
            raise SkipCheck("it has rows per class, which labels are numbers of") from None
        raise
    if subject.kind != "miner":
        close(renamed_value, value, f"other names of the classes change the value; {remedy}", rtol=1e-7)
    elif not equal(renamed_value, value):
        raise AssertionError(f"other names of the classes change what is mined; {remedy}")


@applies_to("loss", "regularizer", "miner", "distance")
def check_inputs_unchanged(subject: Subject) -> None:
    """Inputs are used again: by the network's backward pass, by a regularizer, by the next loss."""
    batch, other, component = batch_of(subject), batch_of(subject, seed=1), subject.make()
    given = {"embeddings": batch.embeddings.detach(), "labels": batch.labels}
    more: dict[str, Any] = {}
    if subject.kind == "loss" and {"labels", "indices_tuple"} <= subject.capabilities:
        more["indices_tuple"] = all_pairs(batch)
        given |= {f"indices_tuple[{number}]": index for number, index in enumerate(more["indices_tuple"])}
    if subject.kind in ("loss", "miner") and {"labels", "references"} <= subject.capabilities:
        more |= {"ref_emb": other.embeddings.detach(), "ref_labels": other.labels}
        given |= {name: more[name] for name in ("ref_emb", "ref_labels")}
    before = {name: tensor.clone() for name, tensor in given.items()}
    with torch.no_grad():
        for named in ({}, more):
            seeded(component, Batch(given["embeddings"], batch.labels), **named)
    for name, tensor in given.items():
        if not torch.equal(tensor, before[name]):
            raise AssertionError(f"a call changes {name} in place, which others use too; clone() first")


@applies_to("loss", "regularizer", "miner")
def check_determinism(subject: Subject) -> None:
    """With the same seed a run must give the same again; a resumed one too, so that a miner keeps no hidden state."""
    batch, mines = batch_of(subject), subject.kind == "miner"
    first = seeded(subject.make(), batch)
    if not equal(first, seeded(subject.make(), batch)):
        raise AssertionError("two equal calls after torch.manual_seed(0) differ; draw by torch's generators")
    drawn = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        call(subject.make(), batch)
        drawn.append(torch.rand(3))
    if torch.equal(*drawn):
        raise AssertionError("a call seeds torch's global generator; use a torch.Generator of its own")
    if mines and "state" not in subject.capabilities:
        component = subject.make()
        seeded(component, Batch(batch_of(subject, seed=3).embeddings, batch.labels))
        if not equal(seeded(component, batch), first):
            raise AssertionError("what is mined depends on the calls before; keep no state, or declare 'state'")
