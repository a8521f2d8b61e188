"""What a second thread adds to each operator in a step of a loss, forward and backward.

``OMP_WAIT_POLICY=passive python -m benchmarks.second_thread [LOSS ...] [--shape BATCHxSIZExPER_CLASS] [--rounds N]``

Columns: CPU time of an operator with one thread and with two; the second thread's share, at best a half; and the first
thread's time over half the time of one thread, at best 1.
"""

import argparse
import collections
import os
import time

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pml_ext import registry
from pml_ext_train.cli.benchmark import FLOOR, Shape, floor

_LEAST = 0.002  # share of a step, below which an operator has no row


class SecondThread(TorchDispatchMode):
    """CPU seconds of both threads and of the first, by operator."""

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
    """Operators of steps with one and two threads; backward runs in the calling thread."""
    loss = floor if name == FLOOR else registry.build(name, "loss", shape.context)
    x = torch.randn(shape.batch, shape.size, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels = torch.arange(shape.batch) // shape.per_class
    loss(x, labels).backward()  # warms up
    operators = {1: SecondThread(), 2: SecondThread()}
    for _ in range(rounds):
        for threads, counted in operators.items():
            torch.set_num_threads(threads)
            x.grad = None
            with counted:
                loss(x, labels).backward()
    return operators[1], operators[2]


def print_row(name, operator, alone, both, first, rounds):
    """Print an operator's CPU seconds: one thread alone, two threads, and the first of them."""
    times = f"{1e3 * alone / rounds:16.2f}{1e3 * both / rounds:9.2f}"
    print(f"{name:26}{operator:28}{times}{1 - first / both:15.2f}{2 * first / alone:9.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("losses", nargs="*", default=(FLOOR, "cbml"))
    parser.add_argument("--shape", type=Shape.parse, default=Shape(1024, 512, 4))
    parser.add_argument("--rounds", type=int, default=30)
    chosen = parser.parse_args()
    if os.environ.get("OMP_WAIT_POLICY", "").lower() != "passive":
        parser.error("a waiting thread would count as a working one; put OMP_WAIT_POLICY=passive before python")
    print(f"{'loss':26}{'operator':28}{'one thread, ms':>16}{'two, ms':>9}{'second thread':>15}{'to half':>9}")
    for name in chosen.losses:
        alone, shared = measure(name, chosen.shape, chosen.rounds)
        total = shared.both.total()
        print_row(name, "all", alone.both.total(), total, shared.first.total(), chosen.rounds)
        for operator, seconds in shared.both.most_common():
            if seconds > _LEAST * total:
                print_row(name, operator, alone.both[operator], seconds, shared.first[operator], chosen.rounds)


if __name__ == "__main__":
    main()
