"""A long run: resident memory, threads and open files at the end, beside those at iteration 1,000.

``python -m benchmarks.faults.soak --iterations 10000`` trains digits and fails if one has grown by more than 5 percent.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
from pathlib import Path

FIRST = 1000


def now() -> dict[str, int]:
    """Resident memory in KiB, threads and open files of this process; Linux only."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {
        "memory": int(status["VmRSS"].split()[0]),
        "threads": int(status["Threads"]),
        "python threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")),
    }


class Watcher:
    """A listener that looks every 1,000 iterations."""

    def __init__(self) -> None:
        self.seen: dict[int, dict[str, int]] = {}
        self._done = 0

    def step(self, text: str) -> None: ...

    def iteration(self, *_: float) -> None:
        self._done += 1
        if self._done % FIRST == 0:
            self.seen[self._done] = now()
            print(self._done, self.seen[self._done], flush=True)

    def warn(self, text: str) -> None:
        print(text, file=sys.stderr)


def main() -> int:
    """The run."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--iterations", type=int, default=10_000)
    options.add_argument("--workers", type=int, default=0)
    options.add_argument("--recipe", default="cbml/digits")
    given = options.parse_args()
    from pml_ext.training.launch import train

    watcher = Watcher()
    epochs = max(2, given.iterations // 200)
    overrides = {
        "schedule.epochs": epochs,
        "schedule.milestones": [epochs - 1],
        "sampler.iterations": 200,
        "model.trunk.width": 8,
        "data.workers": given.workers,
    }
    with tempfile.TemporaryDirectory() as folder:
        train(given.recipe, Path(folder) / "run", device="cpu", overrides=overrides, listener=watcher)
    first = watcher.seen[FIRST]
    last = watcher.seen[max(watcher.seen)]
    grown = {name: last[name] / first[name] - 1 for name in first}
    print(", ".join(f"{name} {value:+.1%}" for name, value in grown.items()))
    return 1 if max(grown.values()) > 0.05 else 0


if __name__ == "__main__":
    sys.exit(main())
