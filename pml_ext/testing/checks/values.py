"""Correctness for every dtype, batch and order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..batches import SIZE, Batch, all_pairs, batch_of, fresh, shuffle
from ..calling import call, close, equal, gradient, is_random, needs_repeatable, seeded
from ..subject import SkipCheck, Subject, takes_labels
from .registered import applies_to

_SHAPES = ((4, 4), (4, 2), (2, 6), (6, 4), (3, 5))  # numbers of classes, images per class
_FULL = (torch.float32, torch.float64)


@applies_to("loss", "regularizer", "miner", "distance")
def check_dtypes(subject: Subject) -> None:
    """Half precision in, full precision out: a loss summed in half precision is wrong in the third digit."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        batch = batch_of(subject, dtype=dtype)
        given = f"{dtype} embeddings"
        value = seeded(_module(subject, dtype), batch)
        if subject.kind == "miner":
            continue
        if not value.isfinite().all():
            raise AssertionError(f"{given} give {value.item() if value.ndim == 0 else 'distances that are not finite'}")
        if subject.kind == "distance":
            continue
        if value.dtype not in _FULL:
            raise AssertionError(f"{given} give a {subject.kind} in {value.dtype}; compute it in float32 or float64")
        if not is_random(subject):
            exact = call(_module(subject, torch.float64), Batch(fresh(batch.embeddings.double()), batch.labels))
            tolerance = 1e-4 if dtype in _FULL else 2e-2
            close(value, exact, f"{given} give another {subject.kind} than float64", rtol=tolerance, atol=tolerance)
        value.backward()
        if batch.embeddings.grad is None or not batch.embeddings.grad.isfinite().all():
            raise AssertionError(f"{given} have no finite gradient")


def _module(subject: Subject, dtype: torch.dtype) -> Any:
    return subject.make().to(torch.promote_types(dtype, torch.float32)).train(subject.kind != "distance")


@applies_to("loss")
def check_autocast(subject: Subject) -> None:
    """Under autocast a loss must not be computed in half precision."""
    batch = batch_of(subject, dtype=torch.float32)
    torch.manual_seed(0)
    loss = subject.make().float()
    torch.manual_seed(0)
    twin = subject.make().float()
    expected = seeded(loss, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = seeded(twin, batch)
    if value.dtype not in _FULL:
        raise AssertionError(f"under bfloat16 autocast the loss is {value.dtype}; leave autocast inside of it")
    close(value, expected, "autocast changes the loss", rtol=1e-4, atol=1e-5)


def _check_finite(subject: Subject, batch: Batch, what: str, remedy: str = "") -> None:
    value = seeded(subject.make(), batch)
    if subject.kind == "miner":
        return
    if not isinstance(value, Tensor):
        raise AssertionError(f"{what} gives {value!r}, not a tensor that backpropagates")
    if not value.isfinite():
        raise AssertionError(f"{what} gives {value.item()}, which is not finite{remedy}")
    if not value.requires_grad:
        raise AssertionError(f"{what} gives a value without a gradient, on which backward() fails")
    if not gradient(value, batch.embeddings).isfinite().all():
        raise AssertionError(f"{what} gives a gradient that is not finite{remedy}")


@applies_to("loss", "regularizer", "miner")
def check_batch_without_positives(subject: Subject) -> None:
    """A sampler may give a batch with one image per class; the loss is then finite and backpropagates."""
    _check_finite(subject, batch_of(subject, torch.arange(min(4, subject.classes))), "a batch without positives")


@applies_to("loss", "regularizer", "miner")
def check_batch_without_negatives(subject: Subject) -> None:
    """A batch may be one class; the loss is then finite and backpropagates."""
    _check_finite(subject, batch_of(subject, torch.zeros(4, dtype=torch.long)), "a batch without negatives")


@applies_to("loss", "regularizer", "miner")
def check_ragged_classes(subject: Subject) -> None:
    """Classes of a batch differ in size: a class of one beside one of seven."""
    sizes = torch.tensor([7, 1, 3, 2, 5, 1][: subject.classes])
    labels = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    _check_finite(subject, batch_of(subject, labels), "a batch of ragged classes")


@applies_to("loss", "regularizer", "miner")
def check_duplicates(subject: Subject) -> None:
    """Duplicates are in every real data set; the distance 0 between them must not give NaN."""
    batch = batch_of(subject)
    with torch.no_grad():
        batch.embeddings[1] = batch.embeddings[-1] = batch.embeddings[0]
    _check_finite(subject, batch, "a batch with exact duplicates")


@applies_to("loss", "regularizer", "miner")
def check_collapsed_embeddings(subject: Subject) -> None:
    """A network may begin, or end, with one point for all images; NaN there ends the run, instead of a gradient."""
    remedy = "; norms and roots want eps below them, as pml_ext.plugin.normalize has it"
    for what, scale in (("at one point", 1.0), ("at zero", 0.0)):
        for shape in ((6, 4), (4, 1), (1, 4)) if subject.kind == "regularizer" else ((6, 4),):
            batch = batch_of(subject, shape)
            with torch.no_grad():
                batch.embeddings.copy_(scale * batch.embeddings[:1].expand_as(batch.embeddings))
            _check_finite(subject, batch, f"a batch of embeddings that are all {what}", remedy)


@applies_to("loss", "regularizer")
def check_gradients(subject: Subject) -> None:
    """The gradient that training follows is that of the loss, by finite differences."""
    needs_repeatable(subject)
    batch, component = batch_of(subject, (3, 3)), subject.make()
    if not torch.autograd.gradcheck(
        lambda x: call(component, Batch(x, batch.labels)),
        (batch.embeddings,),
        atol=1e-4,
        raise_exception=False,
        fast_mode=subject.size > SIZE,
    ):
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
    if not takes_labels(component):
        raise SkipCheck("it takes no labels")
    if is_random(subject):
        raise SkipCheck("its values are random")
    tensors = [*component.parameters(), *component.buffers()] if isinstance(component, torch.nn.Module) else []
    if any(length and length % subject.classes == 0 for tensor in tensors for length in tensor.shape):
        raise SkipCheck("it has a row per class, which labels are numbers of")
    batch = batch_of(subject)
    renamed = Batch(batch.embeddings, shuffle(1000, 6)[: subject.classes][batch.labels])
    remedy = "compare labels, never calculate with them"
    if subject.kind == "miner":
        if not equal(call(component, batch), call(subject.make(), renamed)):
            raise AssertionError(f"other names of the classes change what is mined; {remedy}")
        return
    try:
        value = call(subject.make(), renamed)
    except IndexError:
        if tensors:
            raise SkipCheck("it has rows per class, which labels are numbers of") from None
        raise
    close(value, call(subject.make(), batch), f"other names of the classes change the value; {remedy}", rtol=1e-7)


@applies_to("loss", "regularizer", "miner", "distance")
def check_inputs_unchanged(subject: Subject) -> None:
    """Inputs are used again: by the network's backward pass, by a regularizer, by the next loss."""
    batch, other = batch_of(subject), batch_of(subject, seed=1)
    given = {"embeddings": batch.embeddings.detach(), "labels": batch.labels}
    references = {"ref_emb": other.embeddings.detach(), "ref_labels": other.labels}
    more: list[Any] = []
    if subject.kind == "loss" and {"labels", "indices_tuple"} <= subject.capabilities:
        more = [all_pairs(batch)]
        given |= {f"indices_tuple[{number}]": index for number, index in enumerate(more[0])}
    if subject.kind in ("loss", "miner") and "references" in subject.capabilities and (more or subject.kind == "miner"):
        more += references.values()
        given |= references
    before, component = {name: tensor.clone() for name, tensor in given.items()}, subject.make()
    with torch.no_grad():
        for arguments in ([], more) if more else ([],):
            seeded(component, Batch(given["embeddings"], batch.labels), *arguments)
    for name, tensor in given.items():
        if not torch.equal(tensor, before[name]):
            raise AssertionError(
                f"a call changes {name} in place, which others use too; write x = x + 1 for x += 1, masked_fill for "
                "masked_fill_, or clone() first"
            )


@applies_to("loss", "regularizer", "miner")
def check_determinism(subject: Subject) -> None:
    """With the same seed a run must give the same again; a resumed one too, so that a miner keeps no hidden state."""
    batch, mines = batch_of(subject), subject.kind == "miner"
    first = seeded(subject.make(), batch)
    if not equal(first, seeded(subject.make(), batch)):
        raise AssertionError(
            f"two equal calls after torch.manual_seed(0) {'mine two sets of pairs' if mines else 'give two values'}; "
            "draw by torch's generators, and keep no state in the class"
        )
    drawn = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        call(subject.make(), batch)
        drawn.append(torch.rand(3))
    if torch.equal(*drawn):
        raise AssertionError(
            "a call seeds torch's global generator, so that augmentation and dropout draw the same in every "
            "iteration; use a torch.Generator of its own"
        )
    if mines and "state" not in subject.capabilities:
        component = subject.make()
        seeded(component, Batch(batch_of(subject, seed=3).embeddings, batch.labels))
        if not equal(seeded(component, batch), first):
            raise AssertionError(
                "what is mined depends on the calls before: the miner keeps state that no checkpoint has; keep none, "
                "or in buffers, and say capabilities with 'state'"
            )
