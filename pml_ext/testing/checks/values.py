"""That a loss is right for every dtype, batch and order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..calling import all_of, call, close, has_state, is_random, takes_labels
from ..probes import gradient
from ..subject import SIZE, Batch, SkipCheck, Subject, batch_of, fresh

_SHAPES = ((4, 4), (4, 2), (2, 6), (6, 4), (3, 5))  # numbers of classes, images per class


def check_dtypes(subject: Subject) -> None:
    """Half precision in, full precision out: a loss summed in half precision is wrong in the third digit."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        batch = batch_of(subject, dtype=dtype)
        torch.manual_seed(0)
        value = call(_module(subject, dtype), batch)
        if value.dtype not in (torch.float32, torch.float64):
            raise AssertionError(f"{dtype} embeddings give a loss in {value.dtype}; compute it in float32 or float64")
        if not value.isfinite():
            raise AssertionError(f"{dtype} embeddings give {value.item()}")
        if not is_random(subject):
            exact = call(_module(subject, torch.float64), Batch(fresh(batch.embeddings.double()), batch.labels))
            tolerance = 1e-4 if dtype in (torch.float64, torch.float32) else 2e-2
            close(value, exact, f"{dtype} embeddings give another loss than float64", rtol=tolerance, atol=tolerance)
        value.backward()  # type: ignore[no-untyped-call]
        if batch.embeddings.grad is None or not batch.embeddings.grad.isfinite().all():
            raise AssertionError(f"{dtype} embeddings have no finite gradient")


def _module(subject: Subject, dtype: torch.dtype) -> Any:
    return subject.make().to(torch.promote_types(dtype, torch.float32))


def check_autocast(subject: Subject) -> None:
    """Under autocast a loss must not be computed in half precision."""
    batch, (loss, twin) = batch_of(subject, dtype=torch.float32), _twins(subject)
    torch.manual_seed(0)
    expected = call(loss.float(), batch)
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = call(twin.float(), batch)
    if value.dtype not in (torch.float32, torch.float64):
        raise AssertionError(f"under bfloat16 autocast the loss is {value.dtype}; leave autocast inside of it")
    close(value, expected, "autocast changes the loss", rtol=1e-4, atol=1e-5)


def _twins(subject: Subject) -> tuple[Any, Any]:
    """Two instances with the same parameters."""
    torch.manual_seed(0)
    one = subject.make()
    torch.manual_seed(0)
    return one, subject.make()


def _degenerate(subject: Subject, labels: Tensor, what: str) -> None:
    batch = batch_of(subject, labels)
    value = call(subject.make(), batch)
    if not isinstance(value, Tensor):
        raise AssertionError(f"a batch {what} gives {value!r}, not a tensor that backpropagates")
    if not value.isfinite():
        raise AssertionError(f"a batch {what} gives {value.item()}")
    value.backward()  # type: ignore[no-untyped-call]
    if batch.embeddings.grad is not None and not batch.embeddings.grad.isfinite().all():
        raise AssertionError(f"a batch {what} gives gradients that are not finite")


def check_batch_without_positives(subject: Subject) -> None:
    """A sampler may give a batch with one image per class; the loss is then finite and backpropagates."""
    _degenerate(subject, torch.arange(min(4, subject.classes)), "without positives")


def check_batch_without_negatives(subject: Subject) -> None:
    """A batch may be one class; the loss is then finite and backpropagates."""
    _degenerate(subject, torch.zeros(4, dtype=torch.long), "without negatives")


def check_ragged_classes(subject: Subject) -> None:
    """Classes of a batch differ in size: a class of one beside one of seven."""
    sizes = [7, 1, 3, 2, 5, 1][: subject.classes]
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    _degenerate(subject, labels, "of ragged classes")


def check_duplicates(subject: Subject) -> None:
    """Duplicates are in every real data set; the distance 0 between them must not give NaN."""
    batch = batch_of(subject)
    with torch.no_grad():
        batch.embeddings[1] = batch.embeddings[0]
        batch.embeddings[-1] = batch.embeddings[0]
    value = call(subject.make(), batch)
    if not value.isfinite() or not gradient(value, batch.embeddings).isfinite().all():
        raise AssertionError("exact duplicates give a loss or a gradient that is not finite")


def check_collapsed_embeddings(subject: Subject) -> None:
    """A network may begin, or end, with one point for all images; NaN there ends the run, instead of a gradient."""
    for what, scale in (("at one point", 1.0), ("at zero", 0.0)):
        batch = batch_of(subject)
        with torch.no_grad():
            batch.embeddings.copy_(scale * batch.embeddings[:1].expand_as(batch.embeddings))
        torch.manual_seed(0)
        value = call(subject.make(), batch)
        if not value.isfinite() or not gradient(value, batch.embeddings).isfinite().all():
            raise AssertionError(
                f"embeddings that are all {what} give a loss or a gradient that is not finite; norms "
                "and roots want eps below them, as pml_ext.plugin.normalize has it"
            )


def check_gradients(subject: Subject) -> None:
    """The gradient that training follows is that of the loss, by finite differences."""
    batch, loss = batch_of(subject, (3, 3)), subject.make().double()
    if is_random(subject):
        raise SkipCheck("its values are random")
    if has_state(subject):
        raise SkipCheck("its values depend on the calls before")
    if not torch.autograd.gradcheck(
        lambda x: call(loss, Batch(x, batch.labels)),
        (batch.embeddings,),
        atol=1e-4,
        raise_exception=False,
        fast_mode=subject.size > SIZE,
    ):
        raise AssertionError("the gradient differs from finite differences of the loss")


def check_order_does_not_matter(subject: Subject) -> None:
    """The order of a batch means nothing; a loss that is right for sorted labels alone fails with other samplers."""
    if is_random(subject):
        raise SkipCheck("its values are random")
    for shape in _SHAPES:
        batch = batch_of(subject, shape)
        if "labels" not in subject.capabilities:
            raise SkipCheck("it takes no labels")
        value = subject.make()(batch.embeddings, batch.labels)
        for seed in (0, 1):
            order = torch.randperm(len(batch.labels), generator=torch.Generator().manual_seed(seed))
            other = batch.ordered(order)
            actual = subject.make()(other.embeddings, other.labels)
            what = f"the order of the batch changes the loss ({shape[0]} classes x {shape[1]})"
            close(actual, value, what, rtol=1e-7)
            expected = gradient(value, batch.embeddings)[order]
            close(gradient(actual, other.embeddings), expected, "the order of the batch changes the gradient", 1e-6)


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
    names = torch.randperm(1000, generator=torch.Generator().manual_seed(6))[: subject.classes]
    other = Batch(batch.embeddings, names[batch.labels])
    if subject.kind == "miner":
        pairs = zip(call(component, batch), call(subject.make(), other), strict=True)
        if not all(torch.equal(*pair) for pair in pairs):
            raise AssertionError(
                "other names of the classes change what is mined; compare labels, never calculate with them"
            )
        return
    try:
        renamed = call(subject.make(), other)
    except IndexError:
        if tensors:
            raise SkipCheck("it has rows per class, which labels are numbers of") from None
        raise
    close(
        renamed,
        call(subject.make(), batch),
        "other names of the classes change the value; compare labels, never calculate with them",
        rtol=1e-7,
    )


def check_inputs_unchanged(subject: Subject) -> None:
    """What a component is given is used again: by the network's backward pass, by a regularizer, by the next loss."""
    batch, other = batch_of(subject), batch_of(subject, seed=1)
    more: list[Any] = []
    component = subject.make()
    if subject.kind == "loss" and {"labels", "indices_tuple"} <= subject.capabilities:
        more = [all_of(batch)]
        if "references" in subject.capabilities:
            more += [other.embeddings.detach(), other.labels]
    elif subject.kind == "miner" and "references" in subject.capabilities:
        more = [other.embeddings.detach(), other.labels]
    given = {"embeddings": batch.embeddings.detach(), "labels": batch.labels}
    given |= (
        {f"indices_tuple[{n}]": index for n, index in enumerate(more[0]) if isinstance(more[0], tuple)} if more else {}
    )
    given |= dict(zip(("ref_emb", "ref_labels"), more[-2:], strict=True)) if len(more) > 1 else {}
    before = {name: tensor.clone() for name, tensor in given.items()}
    calls = [()] + [tuple(more)] * bool(more)
    for arguments in calls:
        torch.manual_seed(0)
        with torch.no_grad():
            call(component, Batch(given["embeddings"], batch.labels), *arguments)
    for name, tensor in given.items():
        if not torch.equal(tensor, before[name]):
            raise AssertionError(
                f"a call changes {name} in place, which others use too; write x = x + 1 for x += 1, "
                "masked_fill for masked_fill_, or clone() first"
            )


def check_determinism(subject: Subject) -> None:
    """With the same seed a run must give the same again."""
    batch, values = batch_of(subject), []
    for _ in range(2):
        torch.manual_seed(0)
        values.append(call(subject.make(), batch))
    if not torch.equal(*values):
        raise AssertionError(
            "two equal calls after torch.manual_seed(0) give two values; draw by torch's generators, "
            "and keep no state in the class"
        )
    drawn = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        call(subject.make(), batch)
        drawn.append(torch.rand(3))
    if torch.equal(*drawn):
        raise AssertionError(
            "a call seeds torch's global generator, so that augmentation and dropout draw the same in "
            "every iteration; use a torch.Generator of its own"
        )
