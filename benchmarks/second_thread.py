"""The part of each operator's work that a second thread does, in a step of a loss, forward and backward.

``OMP_WAIT_POLICY=passive python -m benchmarks.second_thread [LOSS ...] [--shape BATCHxSIZExPER_CLASS] [--rounds N]``;
without names, the floor and ``cbml``. Columns: the CPU time of an operator in a step with two threads, and the share
of it that is not the first thread's: a half where both work alike, 0 where the second does nothing. CPU time does not
depend on what else runs on the machine as wall time does. The wait policy is passive, so that a thread which has
nothing to do sleeps; otherwise its waiting would count as work.
"""

import argparse
import collections
import os
import time

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pml_ext import registry
from pml_ext.testing.benchmark import FLOOR, Shape, floor

_LEAST = 0.002  # share of a step, below which an operator has no row


class SecondThread(TorchDispatchMode):
    """CPU seconds of both threads and of the first one, by operator, inside a ``with`` block."""

    def __init__(self):
        super().__init__()
        self.both = collections.Counter()
        self.first = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        both = time.process_time()
        first = time.thread_time()
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        self.first[name] += time.thread_time() - first
        self.both[name] += time.process_time() - both
        return result


def measure(name, shape, rounds):
    """Return the operators of several steps; backward runs in the thread that calls it, as forward does."""
    loss = floor if name == FLOOR else registry.build(name, "loss", shape.context)
    x = torch.randn(shape.batch, shape.size, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels = torch.arange(shape.batch) // shape.per_class
    loss(x, labels).backward()  # warms up
    operators = SecondThread()
    with operators:
        for _ in range(rounds):
            x.grad = None
            loss(x, labels).backward()
    return operators


def main():
    """Print a row for each operator of each loss, the slowest first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("losses", nargs="*", default=(FLOOR, "cbml"))
    parser.add_argument("--shape", type=Shape.parse, default=Shape(1024, 512, 4))
    parser.add_argument("--rounds", type=int, default=30)
    chosen = parser.parse_args()
    if os.environ.get("OMP_WAIT_POLICY", "").lower() != "passive":
        parser.error("a waiting thread would count as a working one; put OMP_WAIT_POLICY=passive before python")
    torch.set_num_threads(2)
    print(f"{'loss':26}{'operator':28}{'CPU ms':>9}{'second thread':>15}")
    for name in chosen.losses:
        operators = measure(name, chosen.shape, chosen.rounds)
        total = operators.both.total()
        second = 1 - operators.first.total() / total
        print(f"{name:26}{'all':28}{1e3 * total / chosen.rounds:9.2f}{second:15.2f}")
        for operator, seconds in operators.both.most_common():
            if seconds > _LEAST * total:
                second = 1 - operators.first[operator] / seconds
                print(f"{name:26}{operator:28}{1e3 * seconds / chosen.rounds:9.2f}{second:15.2f}", flush=True)


if __name__ == "__main__":
    main()
