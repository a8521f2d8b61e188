"""A component as an object: its state, copies, ``torch.compile`` and ``torch.func``."""

from __future__ import annotations

import copy
import io
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..batches import Batch, batch_of
from ..calling import call, close, equal, gradients, is_random, place_of, quiet, seeded
from ..subject import SkipCheck, Subject, takes_labels
from .registered import applies_to


@applies_to("loss")
def check_state_dict(subject: Subject) -> None:
    """A resumed run goes on from the state dict; what is not in it is lost, and the loss jumps."""
    loss, resumed = subject.make().float(), subject.make().float()
    torch.manual_seed(0)
    for seed in range(3):
        value = call(loss, batch_of(subject, dtype=torch.float32, seed=seed))
    parameters = [p for p in loss.parameters() if p.requires_grad]
    with torch.no_grad():
        for parameter, slope in zip(parameters, gradients(value, parameters) if parameters else (), strict=True):
            parameter.sub_(0.1 * slope)
    file = io.BytesIO()
    torch.save(loss.state_dict(), file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    batch = batch_of(subject, dtype=torch.float32, seed=9)
    expected, actual = seeded(loss, batch), seeded(resumed, batch)
    if not equal(actual, expected):
        raise AssertionError(
            f"after load_state_dict the next loss is {actual.item():.8g} instead of {expected.item():.8g}: something "
            "that changes is not in the state dict"
        )


@applies_to("loss", "miner", "regularizer", "distance")
def check_tensors_are_registered(subject: Subject) -> None:
    """A tensor in a plain attribute stays behind when ``.to(device)`` moves a module, and is not saved with it.

    One that a call leaves there must not keep the call's graph, and with it the memory of the batch.
    """
    component = subject.make()
    known = {id(tensor) for tensor in (*component.parameters(), *component.buffers())}
    for where, name, tensor in _plain_tensors(component):
        if id(tensor) not in known:
            raise AssertionError(
                f"the attribute {name} of {where} holds a tensor that is neither a parameter nor a buffer: write "
                f"self.register_buffer({name!r}, ...), or nn.Parameter for what is learned"
            )
    if subject.kind != "distance":
        seeded(component, batch_of(subject))
    for where, name, tensor in _plain_tensors(component):
        if tensor.grad_fn is not None:
            raise AssertionError(
                f"a call leaves its graph in the attribute {name} of {where}, and so the memory of the whole batch; "
                "detach() what is kept"
            )


def _plain_tensors(component: torch.nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """The class, the name and the tensor of attributes that are not registered by torch."""
    for module in component.modules():
        for name, value in vars(module).items():
            several = [*value.values()] if isinstance(value, dict) else value
            for tensor in several if isinstance(several, (list, tuple)) else [value]:
                if isinstance(tensor, Tensor) and not name.startswith("_"):
                    yield type(module).__name__, name, tensor


@applies_to("loss", "miner", "regularizer", "distance", "reducer")
def check_pickle(subject: Subject) -> None:
    """Components are copied and pickled, by data loaders, checkpoints and spawned processes."""
    component = subject.make()
    try:
        twins = [copy.deepcopy(component), pickle.loads(pickle.dumps(component))]
    except Exception as error:
        raise AssertionError(f"it cannot be copied or pickled: {error}") from error
    if subject.kind == "reducer":
        return
    batch = batch_of(subject)
    expected = seeded(component, batch)
    if not all(equal(seeded(twin, batch), expected) for twin in twins):
        raise AssertionError("a copy, or a pickled one, gives another value")


@applies_to("loss", "regularizer")
def check_eval_keeps_state(subject: Subject) -> None:
    """A loss of the test images, in ``eval()`` and without gradients, must not move what training has learned."""
    trained, tested = subject.make().float(), subject.make().float()
    batches = [batch_of(subject, dtype=torch.float32, seed=seed) for seed in range(4)]
    for component, batch in ((trained, 0), (tested, 0), (trained, 1), (tested, 1)):
        seeded(component, batches[batch])
    tested.eval()
    with torch.no_grad():
        seeded(tested, batches[2])
    tested.train()
    state = trained.state_dict()
    moved = [name for name, value in tested.state_dict().items() if not _same(value, state[name])]
    remedy = "let it move where self.training is True alone"
    if moved:
        raise AssertionError(f"a call in eval() mode changes {', '.join(moved)} of its state; {remedy}")
    expected, actual = seeded(trained, batches[3]), seeded(tested, batches[3])
    if not equal(actual, expected):
        raise AssertionError(
            f"after a call in eval() mode the next loss in training is {actual.item():.8g} instead of "
            f"{expected.item():.8g}: something beside its state moves; {remedy}"
        )


def _same(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) and isinstance(other, Tensor) else bool(one == other)


# torch.compile


def _compiled(subject: Subject) -> tuple[Tensor, str]:
    """The value of the compiled component, and why it is not one graph; empty where it is."""
    if torch.__version__ < "2.6":
        raise SkipCheck("torch.compile of this version fails inside PML")
    if is_random(subject):
        raise SkipCheck("its values are random")
    if "compiled" not in subject.cache:
        breaks = ""
        with quiet("torch._dynamo"):
            try:
                value = _value_compiled(subject, fullgraph=True)
            except Exception as error:
                breaks = _first_line(error)
                value = _value_compiled(subject, fullgraph=False)
        subject.cache["compiled"] = value, breaks
    return subject.cache["compiled"]  # type: ignore[no-any-return]


def _value_compiled(subject: Subject, fullgraph: bool) -> Tensor:
    torch._dynamo.reset()
    component = subject.make().float()
    compiled: Any = torch.compile(component, backend="aot_eager", fullgraph=fullgraph)
    batch = batch_of(subject, dtype=torch.float32)
    labels = [batch.labels] * takes_labels(component)
    value: Tensor = compiled(batch.embeddings, *labels)
    value.backward()  # type: ignore[no-untyped-call]
    return value.detach()


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    places = re.findall(r'File "([^"]*)", line (\d+)', str(error))  # as the compiler prints them
    where = f" at {Path(places[-1][0]).name}:{places[-1][1]}" if places else ""
    return f"{lines[0].rstrip('.')}{where}"


@applies_to("loss", "regularizer")
def check_compile(subject: Subject) -> None:
    """``torch.compile`` (backend aot_eager) runs it, forward and backward, with the same value."""
    value, _ = _compiled(subject)
    expected = call(subject.make().float(), batch_of(subject, dtype=torch.float32))
    close(value, expected, "compiled it gives another value", rtol=1e-4, atol=1e-5)


@applies_to("loss", "regularizer")
def check_fullgraph(subject: Subject) -> None:
    """Whether ``torch.compile(fullgraph=True)`` takes it: a break in the graph costs what compiling gains.

    Few losses need to be one graph, so that this fails where a class says ``fullgraph = True`` alone.
    """
    _, breaks = _compiled(subject)
    if breaks and getattr(subject.make(), "fullgraph", False):
        raise AssertionError(f"it says fullgraph = True, but torch.compile(fullgraph=True) stops: {breaks}")
    if breaks:
        raise SkipCheck(f"it is more than one graph, and does not say fullgraph = True: {breaks}")


# torch.func


@applies_to("loss", "regularizer")
def check_torch_func(subject: Subject) -> None:
    """``torch.func.grad`` of ``functional_call`` gives the gradients of ``backward``, parameters included.

    It is skipped where an ``autograd.Function`` in it has no ``setup_context``, which is how torch lets it say so.
    """
    component, batch = subject.make(), batch_of(subject)
    parameters = {name: parameter for name, parameter in component.named_parameters() if parameter.requires_grad}
    expected = gradients(seeded(component, batch), [batch.embeddings, *parameters.values()])
    again = subject.make()  # its state is that of before the call
    buffers = dict(again.named_buffers())

    def value(embeddings: Tensor, given: dict[str, Tensor]) -> Tensor:
        arguments = embeddings, *[batch.labels] * takes_labels(again)
        return torch.func.functional_call(again, (given, buffers), arguments)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    try:
        detached = {name: parameter.detach() for name, parameter in parameters.items()}
        by_embeddings, by_parameters = torch.func.grad(value, argnums=(0, 1))(batch.embeddings.detach(), detached)
    except Exception as error:
        _skip_without_rule(error)
        raise AssertionError(f"torch.func.grad stops: {type(error).__name__}: {_first_line(error)}") from error
    actual = [by_embeddings, *by_parameters.values()]
    for name, mine, wanted in zip(["the embeddings", *parameters], actual, expected, strict=True):
        close(mine, wanted, f"torch.func.grad gives {name} another gradient than backward()")


@applies_to("loss", "regularizer")
def check_forward_mode(subject: Subject) -> None:
    """``torch.func.jvp`` gives the derivative along a direction that ``backward`` gives.

    It is skipped where an ``autograd.Function`` in it has no ``setup_context`` or no ``jvp``, or an operator of torch
    has no forward derivative.
    """
    batch, again = batch_of(subject), subject.make()
    direction = torch.randn(batch.embeddings.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    (slope,) = gradients(seeded(subject.make(), batch), [batch.embeddings])
    torch.manual_seed(0)
    try:
        actual = torch.func.jvp(
            lambda x: call(again, Batch(x, batch.labels)), (batch.embeddings.detach(),), (direction,)
        )[1]
    except Exception as error:
        _skip_without_rule(error)
        raise AssertionError(f"torch.func.jvp stops: {type(error).__name__}: {_first_line(error)}") from error
    close(actual, (slope * direction).sum(), "torch.func.jvp gives another derivative than backward()")


def _skip_without_rule(error: Exception) -> None:
    """Skip where an ``autograd.Function``, or torch itself, has no rule for the transformation."""
    where = place_of(error)
    for text, lacks in (("setup_context", "no setup_context"), ("implement the jvp function", "no jvp")):
        if text in str(error):
            raise SkipCheck(f"the autograd.Function that is called at {where} has {lacks}") from None
    if "forward AD" in str(error) or "forward mode AD" in str(error):
        raise SkipCheck(f"torch, called at {where}: {_first_line(error)}") from None
