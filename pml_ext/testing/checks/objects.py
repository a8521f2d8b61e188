"""A component as an object: its state, copies, ``torch.compile``."""

import copy
import io
import itertools
import pickle
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..batches import CLOSE, batch_of
from ..calling import call, needs, outcome, seeded
from ..comparing import close, gradient, gradients, weighted
from ..subject import Subject, applies_to, label_arguments, require, set_seed
from .reference import other_settings

WITH_STATE = ("loss", "miner", "regularizer", "distance")  # kinds that may keep state between calls


@applies_to(*WITH_STATE)
def check_state_dict(subject: Subject) -> None:
    """The state dict must hold all state, or a resumed run continues differently."""
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
    text = f"after load_state_dict the next {_RESULT[subject.kind]} differs: something that changes is not in the "
    text += "state dict; keep it in a buffer"
    for case in CLOSE[:3]:
        batch = batch_of(subject, dtype=torch.float32, seed=9, **case)
        close(outcome(resumed, batch)[:1], outcome(component, batch)[:1], text, 0, 0)


_RESULT = {"loss": "loss", "miner": "choice of pairs", "regularizer": "value", "distance": "matrix"}


@applies_to(*WITH_STATE)
def check_eval_keeps_state(subject: Subject) -> None:
    """A call in ``eval()`` without gradients must not change the state of training."""
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
    text = f"after a call in eval() mode the next {_RESULT[subject.kind]} differs: something beside its state moves"
    close(outcome(tested, batches[3])[:1], outcome(trained, batches[3])[:1], f"{text}; {remedy}", 0, 0)


@applies_to("loss", "miner", "regularizer", "distance")
def check_tensors_are_registered(subject: Subject) -> None:
    """Tensors must be parameters or buffers, or they are neither moved nor saved.

    A kept graph keeps the batch in memory.
    """
    component = subject.make()
    batch = batch_of(subject)
    known = {id(tensor) for tensor in (*component.parameters(), *component.buffers())}
    for where, name, tensor in _plain_tensors(component):
        require(
            id(tensor) in known,
            f"the attribute {name} of {where} holds a tensor that is neither a parameter nor a buffer: write "
            f"self.register_buffer({name!r}, ...), or nn.Parameter if it is learned",
        )
    seeded(component, batch)
    kept = _plain_tensors(component)
    for where, name, tensor in kept:
        require(
            tensor.grad_fn is None, f"a call leaves its graph in the attribute {name} of {where}; detach() what is kept"
        )
    for _ in range(3):
        seeded(component, batch)
    now = _plain_tensors(component)
    if len(now) >= len(kept) + 3:
        where, name, _ = now[-1]
        raise AssertionError(f"{where}.{name} holds more tensors with each call until memory ends; keep a fixed number")


def _plain_tensors(component: torch.nn.Module) -> list[tuple[str, str, Tensor]]:
    """Class, name and tensor of attributes that torch does not register."""
    found = []
    for module in component.modules():
        for name, value in vars(module).items():
            for tensor in tree_leaves(value):
                if isinstance(tensor, Tensor) and not name.startswith("_"):
                    found.append((type(module).__name__, name, tensor))
    return found


@applies_to("loss", "miner", "regularizer", "distance", "reducer")
def check_pickle(subject: Subject) -> None:
    """A copy, even after calls, has all settings and shares no tensor with the original."""
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
            shared = _shared(component, twin)
            require(not shared, f"{how} shares {shared} with the original: what changes one changes the other")
        expected = outcome(component, batch)
        for how, twin in twins.items():
            text = f"{how} gives an object with other results, with the settings {settings}"
            close(outcome(twin, batch), expected, text, 1e-9, 1e-9)


def _shared(component: torch.nn.Module, twin: torch.nn.Module) -> str:
    for module, other in zip(component.modules(), twin.modules(), strict=False):
        parameters = dict(module.named_parameters(recurse=False)), dict(other.named_parameters(recurse=False))
        for holder, theirs in ((vars(module), vars(other)), parameters):
            for name, value in holder.items():
                if value is theirs.get(name) and isinstance(value, (Tensor, list, dict, set)):
                    return f"{name} of {type(module).__name__}"
    return ""


@applies_to("loss", "regularizer", slow=True)
def check_compile(subject: Subject) -> str:
    """``torch.compile`` must run forward and backward, as one graph if ``fullgraph = True``.

    With this promise the backward graph is traced too (backend aot_eager, else eager).
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
        breaks = str(error).strip().partition("\n")[0] or type(error).__name__
        if promised:
            raise AssertionError(f"it says fullgraph = True, but torch.compile stops: {breaks}") from error
        actual, slope = value_and_gradient(fullgraph=False)
    wanted = call(subject.make().float(), batch)
    close(actual, wanted, "compiled it gives another value", rtol=1e-4, atol=1e-5)
    text = "compiled it gives another gradient"
    close(slope, gradient(wanted, batch.embeddings), text, rtol=1e-3, atol=1e-4)
    return f"more than one graph: {breaks}" if breaks else "one graph"
