"""Reuse of freed memory by the allocator of glibc, which by default unmaps each large tensor when it is freed."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
from pathlib import Path

from ..errors import ConfigError

VARIABLE = "PML_EXT_ALLOCATOR"  # environment variable; "default" leaves the allocator as it is
KEPT = 2**30  # bytes of free memory at the heap's end from which it is returned to the system

_SETTINGS = {
    -4: 0,  # M_MMAP_MAX: large blocks come from the heap, too
    -1: KEPT,  # M_TRIM_THRESHOLD
    -2: 64 * 2**20,  # M_TOP_PAD: bytes by which the heap grows beyond what was asked for
}
_OTHER_ALLOCATORS = re.compile(r"(?:^|[/\s:])lib(?:jemalloc|tcmalloc|mimalloc)(?![a-z])")
_MAPS = Path("/proc/self/maps")


def keep_freed_memory(device: object = "cpu") -> bool:
    """Let this process reuse the memory of freed tensors, which is faster on a CPU; return whether it does.

    By default, glibc maps each large tensor anew and unmaps it when it is freed. The system then clears its pages again
    at every step. After this call, freed memory stays in the process: up to 1 GiB at the end of the heap, and gaps
    between blocks in use. Call it once, before the first large tensor; further calls change nothing.

    The function only acts on Linux with glibc. It leaves other allocators (jemalloc, tcmalloc, mimalloc), which are
    loaded by ``LD_PRELOAD``, as they are, and does nothing if the environment variable ``PML_EXT_ALLOCATOR`` is
    ``default``. Child processes started by fork inherit the setting; others call the function themselves.

    Args:
        device: the device of the work, as a name or a ``torch.device``. For any but the CPU, nothing is changed.

    Raises:
        ConfigError: ``PML_EXT_ALLOCATOR`` has another value than ``default``.
    """
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "default"):
        raise ConfigError(f"{VARIABLE}: found {value!r}; wanted 'default', or leave the variable unset")
    kind, _, _ = str(device).partition(":")
    if value == "default" or kind != "cpu":
        return False
    return _set_allocator()


@functools.cache
def _set_allocator() -> bool:
    """Set the allocator if it is that of glibc; return whether all settings were accepted."""
    if not _has_glibc() or _has_other_allocator():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    accepted = [mallopt(parameter, value) for parameter, value in _SETTINGS.items()]
    return all(accepted)


def _has_glibc() -> bool:
    if sys.platform != "linux":
        return False
    try:
        version = os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):  # the name is unknown to musl
        return False
    return version is not None and version.startswith("glibc")


def _has_other_allocator() -> bool:
    """Return whether another allocator is, or was to be, loaded before that of glibc."""
    if _OTHER_ALLOCATORS.search(os.environ.get("LD_PRELOAD", "")):
        return True
    try:
        return _OTHER_ALLOCATORS.search(_MAPS.read_text(errors="replace")) is not None
    except OSError:
        return False
