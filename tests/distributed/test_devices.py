"""Devices by name and their precisions, the threads of each process, and the allocator of glibc."""

import contextlib
import os
import subprocess
import sys
from unittest import mock

import pytest
import torch

from pml_ext.distributed import allocator, devices
from pml_ext.distributed.threads import threads_for
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


@pytest.mark.parametrize(("variable", "wanted"), [("3", 3), ("4,2", 4), (" 2 ", 2)])
def test_the_variable_of_openmp_goes_first(monkeypatch, variable, wanted):
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert threads_for(8) == wanted


@pytest.mark.parametrize("variable", ["", "0", "all"])
def test_processes_share_the_processors_among_threads(monkeypatch, variable):
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert [threads_for(processes) for processes in (1, 4, 16)] == [8, 2, 1]


pytestmark = pytest.mark.skipif(not allocator._has_glibc(), reason="glibc's allocator is on Linux")

ASK = """
import os
from pml_ext import keep_freed_memory as keep

"""
COUNT = (
    ASK
    + """
import resource
import torch

def faults_of(tensors):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(tensors):
        torch.ones(50 * 2**20 // 4)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults_of(2)
print(keep("cuda"), keep("cuda:1"), keep(torch.device("mps")))
os.environ["PML_EXT_ALLOCATOR"] = "default"
print(keep(), faults_of(20))
del os.environ["PML_EXT_ALLOCATOR"]
print(keep(), keep(), keep(torch.device("cpu")), keep("cpu:0"))
faults_of(20)
print(faults_of(20))
"""
)


def printed(code, **environment):
    """Return the lines of a new process, whose environment has no settings of an allocator but the given ones."""
    clean = {name: value for name, value in os.environ.items() if name not in (allocator.VARIABLE, "LD_PRELOAD")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=clean | environment, check=True)
    return done.stdout.splitlines()


@pytest.mark.nightly
def test_freed_tensors_are_reused_without_page_faults():
    """Unless the work is on another device, or the variable leaves the allocator as it is."""
    others, default, answers, after = printed(COUNT)
    answer, before = default.split()
    assert (others, answer, answers) == ("False False False", "False", "True True True True")
    assert int(before) > 10_000
    assert int(after) < int(before) / 10


@pytest.mark.parametrize(
    ("libraries", "keeps"),
    [
        ("libjemalloc.so.2", "False"),
        ("/usr/lib/libtcmalloc_minimal.so.4", "False"),
        ("a.so:libmimalloc.so", "False"),
        ("libjemallocator-notes.so /opt/jemalloc/libother.so", "True"),
    ],
)
def test_a_preloaded_allocator_is_left_alone(libraries, keeps):
    assert printed(ASK + "print(keep())", LD_PRELOAD=libraries) == [keeps]


def test_a_loaded_allocator_is_found_by_its_file(tmp_path, monkeypatch):
    maps = tmp_path / "maps"
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setattr(allocator, "_MAPS", maps)
    assert not allocator._has_other_allocator()  # no such file
    for file, is_other in (("/usr/lib/libc.so.6", False), ("/lib/libjemalloc.so.2", True)):
        maps.write_text(f"7f00-7f01 r-xp 0000 08:01 1    /usr/lib/libm.so.6\n7f02-7f03 r-xp 0 08:01 2 {file}\n")
        assert allocator._has_other_allocator() == is_other


@pytest.mark.parametrize(
    ("platform", "library"),
    [
        ("darwin", None),
        ("win32", None),
        ("linux", ""),
        ("linux", None),
        ("linux", ValueError("unrecognized configuration name")),  # musl does not know the name
    ],
)
def test_other_systems_are_left_alone(monkeypatch, platform, library):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(os, "confstr", mock.Mock(side_effect=[library]))
    assert not allocator._has_glibc()


def test_unknown_value_of_the_variable_raises(monkeypatch):
    monkeypatch.setenv(allocator.VARIABLE, "jemalloc")
    with pytest.raises(ConfigError, match="PML_EXT_ALLOCATOR: found 'jemalloc'; wanted 'default'"):
        allocator.keep_freed_memory("cuda")


RELEASE = (
    ASK
    + """
import torch
from pml_ext.distributed import release_freed_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

release_freed_memory()
keep()
freed = [torch.ones(2**24) for _ in range(8)]
last = torch.ones(1)
del freed
kept = resident()
release_freed_memory()
print((kept - resident()) // 2**20)
"""
)


@pytest.mark.nightly
def test_kept_memory_is_released_between_steps():
    """Eight freed tensors of 64 MiB."""
    (released,) = printed(RELEASE)
    assert int(released) > 400
