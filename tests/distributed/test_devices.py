"""Devices by name, the precisions they have, and numbers read off them."""

import contextlib
import os

import pytest
import torch

from pml_ext.distributed import devices
from pml_ext.errors import ConfigError
from pml_ext_train.training.devices import deterministic_algorithms


@pytest.fixture
def pretended(monkeypatch):
    """A machine with two CUDA devices, as far as the choice of a device looks."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(devices, "accelerator", lambda: "cuda")
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    return monkeypatch


def test_device_is_chosen_by_its_name(monkeypatch):
    monkeypatch.setattr(devices, "accelerator", lambda: None)
    assert devices.choose_device("auto") == devices.choose_device("cpu") == "cpu"
    with pytest.raises(ConfigError, match="--device gpu: wanted auto, cpu, cuda, mps or xpu"):
        devices.choose_device("gpu")
    with pytest.raises(ConfigError, match="--device mps: this torch sees no mps device; type --device cpu"):
        devices.choose_device("mps")


def test_each_local_rank_has_its_own_device(pretended):
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
