"""States of torch's random generators."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


def accelerator() -> str | None:
    """This machine's type of accelerator, such as ``"cuda"``, or None."""
    if not torch.accelerator.is_available():
        return None
    available = torch.accelerator.current_accelerator()
    return None if available is None else available.type


def generator_states(device: torch.device | None = None) -> list[Tensor]:
    """States of the CPU's generator and of ``device``, or of all accelerators."""
    module = _module_of(device)
    states = [torch.get_rng_state()]
    if device is None and hasattr(module, "get_rng_state_all"):
        return states + list(module.get_rng_state_all())
    if hasattr(module, "get_rng_state"):
        states.append(module.get_rng_state(*_index(device)))
    return states


def set_generator_states(states: Sequence[Tensor], device: torch.device | None = None) -> None:
    """Restore states; accelerators that have gone are skipped."""
    module = _module_of(device)
    torch.set_rng_state(states[0].cpu())
    others = [state.cpu() for state in states[1:]]
    if device is None and hasattr(module, "set_rng_state_all"):
        module.set_rng_state_all(others[: module.device_count()])
    elif others and hasattr(module, "set_rng_state"):
        module.set_rng_state(others[0], *_index(device))


def _module_of(device: torch.device | None) -> Any:
    if device is not None:
        return getattr(torch, device.type)
    return getattr(torch, accelerator() or "cpu")


def _index(device: torch.device | None) -> tuple[torch.device, ...]:
    if device is None or device.type == "mps":  # torch.mps has one generator
        return ()
    return (device,)


@contextlib.contextmanager
def using_generator_states(device: torch.device, states: Sequence[Tensor]) -> Iterator[None]:
    """Draw random numbers from given states inside the block."""
    before = generator_states(device)
    set_generator_states(states, device)
    try:
        yield
    finally:
        set_generator_states(before, device)
