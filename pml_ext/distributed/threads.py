"""Threads per process, without importing torch, which reads its variable on import."""

import os


def threads_for(processes: int) -> int:
    """Threads per process: ``OMP_NUM_THREADS``, or an equal share of the cores."""
    wanted, _, _ = os.environ.get("OMP_NUM_THREADS", "").partition(",")
    if wanted.strip().isdigit() and int(wanted):
        return int(wanted)
    processors = os.cpu_count() or 1
    return max(1, processors // processes)
