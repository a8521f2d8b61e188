"""The number of threads of each process, known without torch, which reads its variable when it is imported."""

from __future__ import annotations

import os


def threads_for(processes: int) -> int:
    """Return the number of threads of each process: ``OMP_NUM_THREADS``, or an equal share of the processors.

    The variable may be a list, ``"4,2"``, of which the first is meant.
    """
    wanted, _, _ = os.environ.get("OMP_NUM_THREADS", "").partition(",")
    if wanted.strip().isdigit() and int(wanted):
        return int(wanted)
    processors = os.cpu_count() or 1
    return max(1, processors // processes)
