"""Random generators of the CPU and of accelerators, saved and restored."""

from types import SimpleNamespace

import pytest
import torch

from pml_ext.pairwise import generators
from pml_ext_train.training import checkpoint


@pytest.mark.parametrize(("kind", "count"), [("cuda", 2), ("mps", 1), ("xpu", 2)])
def test_a_checkpoint_has_the_state_of_every_accelerator(monkeypatch, kind, count):
    """torch.mps has one generator and no list of them; torch.cuda and torch.xpu have one for each device."""
    fakes = [torch.Generator().manual_seed(number) for number in range(count)]
    first = fakes[0]
    module = SimpleNamespace(device_count=lambda: len(fakes))
    if kind == "mps":
        module.get_rng_state = first.get_state
        module.set_rng_state = first.set_state
    else:
        module.get_rng_state_all = lambda: [each.get_state() for each in fakes]
        module.set_rng_state_all = lambda states: [g.set_state(s) for g, s in zip(fakes, states, strict=True)]
    monkeypatch.setattr(generators, "accelerator", lambda: kind)
    monkeypatch.setattr(torch, kind, module)
    state = checkpoint.random_state()
    drawn = [torch.rand(3, generator=each) for each in fakes]
    for left in (count, 1):  # resumed there, and on a machine with one accelerator
        del fakes[left:]
        checkpoint.set_random_state(state)
        assert all(torch.equal(torch.rand(3, generator=g), d) for g, d in zip(fakes, drawn, strict=False))


def test_an_accelerators_checkpoint_resumes_on_a_cpu(monkeypatch):
    monkeypatch.setattr(generators, "accelerator", lambda: None)
    state = checkpoint.random_state()
    assert len(state["torch"]) == 1
    drawn = torch.rand(3)
    checkpoint.set_random_state(state | {"torch": [*state["torch"], torch.Generator().get_state()]})
    assert torch.equal(torch.rand(3), drawn)


@pytest.mark.parametrize("kind", ["xpu", "mps"])
def test_drawing_again_restores_the_accelerators_generator_too(monkeypatch, kind):
    held = {"state": torch.tensor([7], dtype=torch.uint8)}
    monkeypatch.setattr(getattr(torch, kind), "get_rng_state", lambda *device: held["state"])
    monkeypatch.setattr(getattr(torch, kind), "set_rng_state", lambda state, *device: held.update(state=state))
    device = torch.device(kind, 0)
    states = generators.generator_states(device)
    assert len(states) == 2
    drawn = torch.rand(3)
    held["state"] = torch.tensor([9], dtype=torch.uint8)
    expected = torch.get_rng_state()
    with generators.using_generator_states(device, states):
        assert held["state"].tolist() == [7]
        assert torch.equal(torch.rand(3), drawn)
    assert held["state"].tolist() == [9]
    assert torch.equal(torch.get_rng_state(), expected)
    assert len(generators.generator_states(torch.device("cpu"))) == 1
