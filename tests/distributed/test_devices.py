"""Devices by name, the precisions they have, and numbers read off them."""

import contextlib
import os

import pytest
import torch

from pml_ext.distributed import devices
from pml_ext.errors import ConfigError
from pml_ext_train.training.devices import deterministic_algorithms


@pytest.fixture
def pretend(monkeypatch):
    """Set what the choice of a device looks at: two accelerators and the local rank."""

    def on(accelerator, rank):
        monkeypatch.delenv("LOCAL_RANK", raising=False)
        if rank:
            monkeypatch.setenv("LOCAL_RANK", rank)
        monkeypatch.setattr(devices, "accelerator", lambda: accelerator)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)

    return on


@pytest.mark.parametrize(
    ("accelerator", "rank", "name", "device"),
    [
        (None, "", "auto", "cpu"),
        (None, "", "cpu", "cpu"),
        ("cuda", "", "auto", "cuda"),
        ("cuda", "", "cuda", "cuda"),
        ("cuda", "", "cpu", "cpu"),
        ("cuda", "1", "auto", "cuda:1"),
        ("cuda", "1", "cpu", "cpu"),
    ],
)
def test_each_local_rank_has_its_own_device(pretend, accelerator, rank, name, device):
    pretend(accelerator, rank)
    assert devices.choose_device(name) == device


@pytest.mark.parametrize(
    ("accelerator", "rank", "name", "text"),
    [
        (None, "", "gpu", "--device gpu: wanted auto, cpu, cuda, mps or xpu"),
        (None, "", "mps", "--device mps: this torch sees no mps device; type --device cpu"),
        ("cuda", "", "xpu", "this torch sees no xpu device; type --device cuda"),
        ("cuda", "2", "auto", r"process 2 .* \(2 seen\); type --nproc-per-node 2, or --device cpu"),
    ],
)
def test_devices_that_are_missing_are_named(pretend, accelerator, rank, name, text):
    pretend(accelerator, rank)
    with pytest.raises(ConfigError, match=text):
        devices.choose_device(name)


def test_unsupported_precision_of_a_device_is_refused(monkeypatch):
    cpu = torch.device("cpu")
    for precision in ("float32", "bfloat16"):
        devices.check_precision(cpu, precision)
    # An unknown precision makes torch warn and go on in float32.
    monkeypatch.setattr(torch, "autocast", lambda *_: contextlib.nullcontext())
    with pytest.raises(ConfigError, match=r"found 'float16', which this cpu .*computes in torch.float32.* 'float32'"):
        devices.check_precision(cpu, "float16")


def test_deterministic_operators_end_with_the_block(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with deterministic_algorithms(False):
        assert not torch.are_deterministic_algorithms_enabled()
    with deterministic_algorithms(True):
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert not torch.are_deterministic_algorithms_enabled()
