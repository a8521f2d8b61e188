"""Correctness for every dtype, batch and order."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from ..calling import call, close, equal, forms, gradient, is_random, needs, seeded
from ..subject import SIZE, Batch, Subject, applies_to, batch_of, fresh, takes_labels
from .kinds import check_tuple

_FULL = (torch.float32, torch.float64)


@applies_to("loss", "regularizer", "miner", "distance")
def check_dtypes(subject: Subject) -> None:
    """Half precision in, full precision out, under autocast too: half of it is wrong in the third digit."""

    def module(dtype: torch.dtype) -> Any:
        return subject.make().to(torch.promote_types(dtype, torch.float32)).train(subject.kind != "distance")

    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        batch, given, component = batch_of(subject, dtype=dtype), f"{dtype} embeddings", module(dtype)
        kept = {name: x.dtype for name, x in component.state_dict().items() if isinstance(x, Tensor)}
        value = seeded(component, batch)
        for name, x in component.state_dict().items():
            if isinstance(x, Tensor) and x.dtype != kept.get(name, x.dtype):
                raise AssertionError(f"{given} leave {name} in {x.dtype} for good; cast a copy in each call")
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
        ("a batch of one image", batch_of(subject, (1, 1))),
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
            check_tuple(subject, value, batch.labels, batch.labels, f", in {what}")
            continue
        if not isinstance(value, Tensor) or not value.requires_grad:
            raise AssertionError(f"{what} gives {value!r}, on which backward() fails")
        if not value.isfinite():
            raise AssertionError(f"{what} gives {value.item()}, which is not finite{remedy}")
        if not gradient(value, batch.embeddings).isfinite().all():
            raise AssertionError(f"{what} gives a gradient that is not finite{remedy}")


@applies_to("loss", "regularizer", "distance")
def check_gradients(subject: Subject) -> None:
    """The gradient that training follows is that of the loss, by finite differences; parameters' gradients too."""
    needs(subject, repeatable=True)
    batch, other, component = batch_of(subject, (3, 3)), batch_of(subject, (3, 2), seed=1), subject.make()
    check = functools.partial(torch.autograd.gradcheck, atol=1e-4, raise_exception=False)
    quick = subject.size > SIZE
    if not check(lambda x: call(component, Batch(x, batch.labels)), (batch.embeddings,), fast_mode=quick):
        raise AssertionError(f"the gradient differs from finite differences of the {subject.kind}")
    for named in forms(subject, batch, other).values():
        if "ref_emb" in named and not check(
            lambda x, n=named: call(component, batch, **{**n, "ref_emb": x}), (other.embeddings,), fast_mode=quick
        ):
            raise AssertionError("the gradient of ref_emb differs from finite differences; detach() leaves it out")
    moved = {  # from where they begin: a metric may be the identity there
        name: (parameter + 0.1 * torch.randn(parameter.shape, dtype=parameter.dtype)).detach().requires_grad_()
        for name, parameter in component.named_parameters()
        if parameter.requires_grad
    }

    def by_parameters(*values: Tensor) -> Any:
        return functional_call(component, dict(zip(moved, values, strict=True)), given)

    given = batch.embeddings.detach(), *[batch.labels] * takes_labels(component)
    if moved and not check(by_parameters, tuple(moved.values()), fast_mode=True):
        raise AssertionError(f"the gradient of {', '.join(moved)} differs from finite differences")


@applies_to("loss", "regularizer", "miner", "distance", "reducer")
def check_inputs_unchanged(subject: Subject) -> None:
    """Inputs are used again: by the network's backward pass, by a regularizer, by the next loss."""
    batch, other, component = batch_of(subject), batch_of(subject, seed=1), subject.make()
    batch, other = (Batch(each.embeddings.detach(), each.labels + (not subject.has_rows)) for each in (batch, other))
    for form, named in forms(subject, batch, other).items():
        named |= {"losses": batch.embeddings[:, 0].square()} if subject.kind == "reducer" else {}
        given = {"embeddings": batch.embeddings, "labels": batch.labels}
        for name, value in named.items():
            given |= {f"{name}[{n}]": x for n, x in enumerate(value)} if isinstance(value, tuple) else {name: value}
        before = {name: (tensor.clone(), tensor._version) for name, tensor in given.items()}
        seeded(component, batch, **named)
        for name, tensor in given.items():
            if not torch.equal(tensor, before[name][0]) or tensor._version != before[name][1]:
                raise AssertionError(f"a call{form} changes {name} in place, which others use too; clone() first")
            if tensor.requires_grad:
                raise AssertionError(f"a call{form} switches on the gradient of {name}; detach() or clone() first")


@applies_to("loss", "regularizer", "miner")
def check_determinism(subject: Subject) -> None:
    """With the same seed a run must give the same again."""
    batch = batch_of(subject)
    if not equal(seeded(subject.make(), batch), seeded(subject.make(), batch)):
        raise AssertionError("two equal calls after torch.manual_seed(0) differ; draw by torch's generators")
