"""A component as an object: its state, copies, ``torch.compile`` and ``torch.func``."""

from __future__ import annotations

import concurrent.futures
import copy
import io
import itertools
import multiprocessing
import pickle
import re
import sys
import threading
import warnings
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...distributed.processes import end_with_the_parent
from ..batches import CLOSE, Batch, batch_of
from ..calling import call, error_location, error_summary, needs, outcome, result_of, seeded
from ..comparing import close, gradient, gradients, weighted
from ..subject import SkipCheck, Subject, applies_to, label_arguments, set_seed
from .reference import other_settings

WITH_STATE = ("loss", "miner", "regularizer", "distance")  # kinds that may keep state between calls


@applies_to(*WITH_STATE)
def check_state_dict(subject: Subject) -> None:
    """A resumed run continues from the state dict; state that is missing from it is lost, and the result jumps."""
    component = subject.make().float()
    resumed = subject.make().float()
    set_seed(0)
    for seed in range(3):
        value = call(component, batch_of(subject, dtype=torch.float32, seed=seed))
    parameters = [p for p in component.parameters() if p.requires_grad]
    if isinstance(value, Tensor):
        with torch.no_grad():
            for parameter, slope in zip(parameters, gradients(weighted(value), parameters), strict=True):
                parameter.sub_(0.1 * slope)
    file = io.BytesIO()
    torch.save(component.state_dict(), file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    text = f"after load_state_dict the next {_RESULT[subject.kind]} is another: something that changes is not in the "
    text += "state dict; keep it in a buffer"
    for case in CLOSE[:3]:
        batch = batch_of(subject, dtype=torch.float32, seed=9, **case)
        close(result_of(resumed, batch), result_of(component, batch), text, 0, 0)


_RESULT = {"loss": "loss", "miner": "choice of pairs", "regularizer": "value", "distance": "matrix"}


@applies_to(*WITH_STATE)
def check_eval_keeps_state(subject: Subject) -> None:
    """A call for test images, in ``eval()`` and without gradients, must not change the state of training."""
    trained = subject.make().float()
    tested = subject.make().float()
    batches = [batch_of(subject, dtype=torch.float32, seed=seed) for seed in range(4)]
    for component, batch in itertools.product((trained, tested), batches[:2]):
        seeded(component, batch)
    tested.eval()
    with torch.no_grad():
        seeded(tested, batches[2])
    tested.train()
    before = trained.state_dict()
    remedy = "let it move where self.training is True alone"
    after = {name: value for name, value in tested.state_dict().items() if isinstance(value, Tensor)}
    if moved := ", ".join(name for name, value in after.items() if not torch.equal(value, before[name])):
        raise AssertionError(f"a call in eval() mode changes {moved} of its state; {remedy}")
    text = f"after a call in eval() mode the next {_RESULT[subject.kind]} is another: something beside its state moves"
    close(result_of(tested, batches[3]), result_of(trained, batches[3]), f"{text}; {remedy}", 0, 0)


@applies_to("loss", "miner", "regularizer", "distance")
def check_tensors_are_registered(subject: Subject) -> None:
    """A tensor in a plain attribute is not moved by ``.to(device)`` and not saved; its graph keeps the batch alive."""
    component = subject.make()
    batch = batch_of(subject)
    known = {id(tensor) for tensor in (*component.parameters(), *component.buffers())}
    for where, name, tensor in _plain_tensors(component):
        if id(tensor) not in known:
            text = f"the attribute {name} of {where} holds a tensor that is neither a parameter nor a buffer"
            raise AssertionError(f"{text}: write self.register_buffer({name!r}, ...), or nn.Parameter if it is learned")
    seeded(component, batch)
    kept = _plain_tensors(component)
    for where, name, tensor in kept:
        if tensor.grad_fn is not None:
            raise AssertionError(f"a call leaves its graph in the attribute {name} of {where}; detach() what is kept")
    for _ in range(3):
        seeded(component, batch)
    now = _plain_tensors(component)
    if len(now) >= len(kept) + 3:
        where, name, _ = now[-1]
        raise AssertionError(f"{where}.{name} holds more tensors with each call until memory ends; keep a fixed number")


def _plain_tensors(component: torch.nn.Module) -> list[tuple[str, str, Tensor]]:
    """Return the class, the name and the tensor of attributes that are not registered by torch."""
    found = []
    for module in component.modules():
        for name, value in vars(module).items():
            held = [value]
            if isinstance(value, dict):
                held = list(value.values())
            elif isinstance(value, (list, tuple)):
                held = list(value)
            for tensor in held:
                if isinstance(tensor, Tensor) and not name.startswith("_"):
                    found.append((type(module).__name__, name, tensor))
    return found


@applies_to("loss", "miner", "regularizer", "distance", "reducer")
def check_pickle(subject: Subject) -> None:
    """A copy by ``deepcopy`` or pickle, even after calls, has all settings and shares no tensor with the original."""
    batch = batch_of(subject)
    others = other_settings(subject)
    tables = [subject.settings]
    if others != subject.settings:
        tables.append(others)
    for settings in tables:
        component = subject.make(settings)
        try:
            outcome(component, batch)
        except Exception:
            if settings is others:  # these may not fit together
                continue
            raise
        try:
            twins = {"deepcopy()": copy.deepcopy(component), "pickle": pickle.loads(pickle.dumps(component))}
        except Exception as error:
            raise AssertionError(f"after a call it cannot be copied or pickled: {error}") from error
        for how, twin in twins.items():
            if shared := _shared(component, twin):
                raise AssertionError(f"{how} shares {shared} with the original: what changes one changes the other")
        expected = outcome(component, batch)
        for how, twin in twins.items():
            text = f"{how} gives an object with other results, with the settings {settings}"
            close(outcome(twin, batch), expected, text, 1e-9, 1e-9)


def _shared(component: torch.nn.Module, twin: torch.nn.Module) -> str:
    """Return the name of a tensor, list, dictionary or set that two objects share; empty if there is none."""
    for module, other in zip(component.modules(), twin.modules(), strict=False):
        parameters = dict(module.named_parameters(recurse=False)), dict(other.named_parameters(recurse=False))
        for holder, theirs in ((vars(module), vars(other)), parameters):
            for name, value in holder.items():
                if value is theirs.get(name) and isinstance(value, (Tensor, list, dict, set)):
                    return f"{name} of {type(module).__name__}"
    return ""


@applies_to("loss", "miner", "regularizer", "distance", "reducer", slow=True)
def check_other_process(subject: Subject) -> None:
    """Another process must compute the same from the component in a ``torch.save`` file: no state may be missing."""
    component = subject.make()
    if type(component).__module__ == "__main__":
        raise SkipCheck("its class is in the script that runs, which another process would run again")
    batch = batch_of(subject)
    file = io.BytesIO()
    torch.save((component, Batch(batch.embeddings.detach(), batch.labels)), file)
    try:
        actual = _worker().submit(_computed, file.getvalue()).result()
    except (ModuleNotFoundError, AttributeError) as error:
        raise SkipCheck(f"another process cannot import its class: {error}") from None
    except Exception as error:
        _check_that_processes_start()
        raise AssertionError(f"in another process it stops: {error_summary(error)}") from error
    text = "in another process it gives another result: it needs something of this one"
    close([torch.from_numpy(x) for x in actual], outcome(component, batch)[:1], text, 1e-9, 1e-9)


_workers: list[concurrent.futures.ProcessPoolExecutor] = []  # the one that all components share


def _worker() -> concurrent.futures.ProcessPoolExecutor:
    """Return the worker process, which all components share."""
    if not _workers:
        spawn = multiprocessing.get_context("spawn")
        _workers.append(concurrent.futures.ProcessPoolExecutor(1, spawn, _start_worker))
    return _workers[0]


def _start_worker() -> None:
    """Compute with one thread, and end when the process that started the worker is killed."""
    torch.set_num_threads(1)
    threading.Thread(target=end_with_the_parent, daemon=True).start()


def _check_that_processes_start() -> None:
    """Skip the check if another process cannot even start; replace a worker process that has ended."""
    try:
        _worker().submit(int).result()
        return
    except BrokenProcessPool:
        _workers.clear()
    try:
        _worker().submit(int).result()
    except BrokenProcessPool:
        _workers.clear()
        raise SkipCheck(
            "another process runs the script again, and ends; put the calls below 'if __name__ == \"__main__\":'"
        ) from None


def fork_worker() -> None:
    """Start the worker process by a fork, before anything is built or called: it need not import everything again.

    Nothing that components do later reaches it, as little as a spawned one. Where this process has run threads, such as
    those of a backward pass, a fork of it cannot be used, and the first check spawns a process.
    """
    if _workers or sys.platform != "linux" or threading.active_count() > 1:
        return
    with warnings.catch_warnings(action="ignore"):  # of threads, which a library of linear algebra starts at import
        context = multiprocessing.get_context("fork")
        worker = concurrent.futures.ProcessPoolExecutor(1, context, _start_worker)
        usable = worker.submit(_can_go_backward).result()
    if usable:
        _workers.append(worker)
    else:
        worker.shutdown(wait=False)


def _can_go_backward() -> bool:
    try:
        torch.ones(1, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
    except RuntimeError:
        return False
    return True


def _computed(file: bytes) -> list[Any]:
    component, batch = torch.load(io.BytesIO(file), weights_only=False)
    return [x.numpy() for x in outcome(component, batch)[:1]]


@applies_to("loss", "regularizer", slow=True)
def check_compile(subject: Subject) -> str:
    """``torch.compile`` must run forward and backward, as one graph if ``fullgraph = True``.

    With this promise the graph of the backward pass is traced too (backend aot_eager, else eager).
    """
    needs(subject, fixed=True)
    promised = bool(getattr(subject.make(), "fullgraph", False))
    backend = "aot_eager" if promised else "eager"
    batch = batch_of(subject, dtype=torch.float32)
    breaks = ""
    labels = label_arguments(subject.make(), batch.labels)

    def value_and_gradient(fullgraph: bool) -> tuple[Tensor, Tensor]:
        torch.compiler.reset()  # type: ignore[no-untyped-call]
        compiled: Any = torch.compile(subject.make().float(), backend=backend, fullgraph=fullgraph)
        result: Tensor = compiled(batch.embeddings, *labels)
        return result.detach(), gradient(result, batch.embeddings)

    try:
        actual, slope = value_and_gradient(fullgraph=True)
    except Exception as error:
        breaks = _first_line(error)
        if promised:
            raise AssertionError(f"it says fullgraph = True, but torch.compile stops: {breaks}") from error
        actual, slope = value_and_gradient(fullgraph=False)
    wanted = call(subject.make().float(), batch)
    close(actual, wanted, "compiled it gives another value", rtol=1e-4, atol=1e-5)
    text = "compiled it gives another gradient"
    close(slope, gradient(wanted, batch.embeddings), text, rtol=1e-3, atol=1e-4)
    if breaks:
        return f"more than one graph: {breaks}"
    return "one graph"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    places = re.findall(r'File "([^"]*)", line (\d+)', str(error))  # as the compiler prints them
    text = lines[0].rstrip(".")
    if places:
        file, line = places[-1]
        text += f" at {Path(file).name}:{line}"
    return text


@applies_to("loss", "regularizer", slow=True)
def check_torch_func(subject: Subject) -> str | None:
    """``torch.func.grad`` and ``jvp`` of ``functional_call`` must agree with ``backward``, for parameters too.

    Skipped if an ``autograd.Function`` has no ``setup_context``; the result's text says where one has no ``jvp``.
    """
    component = subject.make()
    last = subject.make()
    batch = batch_of(subject)
    expected = outcome(subject.make(), batch)[1:]
    x = batch.embeddings.detach()
    parameters = {name: p.detach() for name, p in component.named_parameters() if p.requires_grad}
    buffers = {name: buffer.clone() for name, buffer in component.named_buffers()}

    def value(embeddings: Tensor, given: dict[str, Tensor]) -> Tensor:
        arguments = (embeddings, *label_arguments(component, batch.labels))
        return torch.func.functional_call(component, (given, buffers), arguments)  # type: ignore[no-any-return]

    set_seed(0)
    try:
        by_embeddings, by_parameters = torch.func.grad(value, argnums=(0, 1))(x, parameters)
    except Exception as error:
        if "in-place" in str(error) and "captured Tensor" in str(error) and buffers:
            raise SkipCheck("a call updates a buffer in place, which torch.func refuses") from None
        if "setup_context" in str(error):
            where = error_location(error)
            raise SkipCheck(f"the autograd.Function that is called at {where} has no setup_context") from None
        raise AssertionError(f"torch.func.grad stops: {error_summary(error)}") from error
    actual = [by_embeddings, *by_parameters.values()]
    close(actual, expected, f"torch.func.grad gives the embeddings{', '.join(['', *parameters])} other gradients")
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    set_seed(0)
    try:
        along = torch.func.jvp(lambda moved: call(last, Batch(moved, batch.labels)), (x,), (direction,))[1]
    except Exception as error:
        if "in-place" in str(error) and buffers:
            return f"no forward mode: a call updates a buffer in place: {_first_line(error)}"
        if re.search("implement the jvp function|forward (mode )?AD", str(error)):
            return f"no forward mode at {error_location(error)}: {_first_line(error)}"
        raise AssertionError(f"torch.func.jvp stops: {error_summary(error)}") from error
    text = (
        "torch.func.jvp gives another derivative than backward(); no_grad() does not stop forward mode, detach() does"
    )
    close(along, (expected[0] * direction).sum(), text)
    return None
