"""Devices by name, the precisions they have, and numbers read off them."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from pml_ext.distributed import devices
from pml_ext.errors import ConfigError
from pml_ext.pairwise import generators
from pml_ext.training import checkpoint


@pytest.fixture
def pretended(monkeypatch):
    """A machine with two CUDA devices, as far as the choice of a device looks."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(devices, "accelerator", lambda: "cuda")
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    return monkeypatch


def test_a_device_by_name(monkeypatch):
    monkeypatch.setattr(devices, "accelerator", lambda: None)
    assert devices.choose_device("auto") == devices.choose_device("cpu") == "cpu"
    with pytest.raises(ConfigError, match="--device gpu: wanted auto, cpu, cuda, mps or xpu"):
        devices.choose_device("gpu")
    with pytest.raises(ConfigError, match="--device mps: this torch sees no mps device; type --device cpu"):
        devices.choose_device("mps")


def test_each_process_of_a_machine_has_a_device_of_its_own(pretended):
    assert devices.choose_device("auto") == devices.choose_device("cuda") == "cuda"
    assert devices.choose_device("cpu") == "cpu"
    with pytest.raises(ConfigError, match="this torch sees no xpu device; type --device cuda"):
        devices.choose_device("xpu")
    pretended.setenv("LOCAL_RANK", "1")
    assert devices.choose_device("auto") == "cuda:1"
    assert devices.choose_device("cpu") == "cpu"
    pretended.setenv("LOCAL_RANK", "2")
    with pytest.raises(ConfigError, match=r"process 2 .* \(2 seen\); type --nproc-per-node 2, or --device cpu"):
        devices.choose_device("auto")


def test_a_precision_that_a_device_does_not_have_is_refused(monkeypatch):
    cpu = torch.device("cpu")
    for precision in ("float32", "bfloat16"):
        devices.check_precision(cpu, precision)
    # An unknown precision makes torch warn and go on in float32.
    monkeypatch.setattr(torch, "autocast", lambda *_: contextlib.nullcontext())
    with pytest.raises(ConfigError, match=r"found 'float16', which this cpu .*computes in torch.float32.* 'float32'"):
        devices.check_precision(cpu, "float16")


@pytest.mark.parametrize(("kind", "count"), [("cuda", 2), ("mps", 1), ("xpu", 2)])
def test_a_checkpoint_has_the_random_numbers_of_every_accelerator(monkeypatch, kind, count):
    """torch.mps has one generator and no list of them; torch.cuda and torch.xpu have one for each device."""
    fakes = [torch.Generator().manual_seed(number) for number in range(count)]
    first, module = fakes[0], SimpleNamespace(device_count=lambda: len(fakes))
    if kind == "mps":
        module.get_rng_state, module.set_rng_state = first.get_state, first.set_state
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


def test_a_checkpoint_of_an_accelerator_goes_on_without_one(monkeypatch):
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
