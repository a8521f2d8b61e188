"""Lets glibc's allocator reuse freed memory; by default it unmaps each large tensor."""

import ctypes
import functools
import gc
import os
import re
import sys
from pathlib import Path

from ..errors import ConfigError

VARIABLE = "PML_EXT_ALLOCATOR"  # environment variable; "default" leaves the allocator unchanged
KEPT = 2**30  # bytes of free memory at the heap's end from which it is returned to the system

_SETTINGS = {
    -4: 0,  # M_MMAP_MAX: large blocks come from the heap, too
    -1: KEPT,  # M_TRIM_THRESHOLD
    -2: 64 * 2**20,  # M_TOP_PAD: bytes by which the heap grows beyond what was asked for
}
_OTHER_ALLOCATORS = re.compile(r"(?:^|[/\s:])lib(?:jemalloc|tcmalloc|mimalloc)(?![a-z])")
_MAPS = Path("/proc/self/maps")


def keep_freed_memory(device: object = "cpu") -> bool:
    """Let this process reuse the memory of freed tensors; return whether it does.

    By default, glibc unmaps each large tensor when it is freed, and the system clears new pages at every step. After
    this call, training on a CPU is faster, and up to 1 GiB of freed memory stays in the process, besides gaps between
    blocks in use. Call it once, before the first large tensor.

    It has an effect only on Linux with glibc, without jemalloc, tcmalloc or mimalloc in ``LD_PRELOAD``, and unless the
    environment variable ``PML_EXT_ALLOCATOR`` is ``default``. Forked child processes inherit the setting; others must
    call the function themselves.

    Args:
        device: the device of the work, a name or a ``torch.device``; only the CPU has an effect.

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


def release_freed_memory() -> None:
    """Return freed memory to the system after :func:`keep_freed_memory`, between steps with tensors of other sizes."""
    gc.collect()
    if _set_allocator.cache_info().currsize and _has_glibc():
        ctypes.CDLL(None).malloc_trim(0)


@functools.cache
def _set_allocator() -> bool:
    if not _has_glibc() or _has_other_allocator():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all([mallopt(parameter, value) for parameter, value in _SETTINGS.items()])  # noqa: C419 (sets each)


def _has_glibc() -> bool:
    if sys.platform != "linux":
        return False
    try:
        version = os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):  # the name is unknown to musl
        return False
    return version is not None and version.startswith("glibc")


def _has_other_allocator() -> bool:
    if _OTHER_ALLOCATORS.search(os.environ.get("LD_PRELOAD", "")):
        return True
    try:
        return _OTHER_ALLOCATORS.search(_MAPS.read_text(errors="replace")) is not None
    except OSError:
        return False
