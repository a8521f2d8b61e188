"""Operators of a loss's step, forward and backward, compared with a copy of as many bytes.

    python -m benchmarks.operators cbml --shape 1024x128x4     # a row for each operator
    python -m benchmarks.operators --table                     # steps of six losses, over the time of the floor
    python -m benchmarks.operators --table --mixed             # in batches that are not ordered by class

CPU time of one thread, the least of many rounds. Losses take turns in the table.
"""

import argparse
import time

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pml_ext import registry
from pml_ext_train.cli.benchmark import FLOOR, Shape, floor

LOSSES = ("cbml", "batch-all-triplets", "n-pair-angular", "angular", "n-pair", "tiled-multi-similarity")
SHAPES = ("32x64x4", "128x128x4", "1024x128x4", "1024x512x4")
_AT_A_TIME = 0.01  # seconds of steps between two readings of the clock


class Operators(TorchDispatchMode):
    """Name, seconds and bytes of each operator inside a ``with`` block, without views."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        start = time.thread_time()
        result = func(*args, **(kwargs or {}))
        seconds = time.thread_time() - start
        if not func.is_view:
            tensors = [each for each in tree_leaves([args, result]) if isinstance(each, torch.Tensor)]
            self.calls.append((func.overloadpacket.__name__, seconds, sum(each.nbytes for each in tensors)))
        return result


def step_of(name, shape, mixed=False):
    """Forward and backward of a loss, or of the floor, on a random batch, ordered by class unless mixed."""
    loss = floor if name == FLOOR else registry.build(name, "loss", shape.context)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape.batch, shape.size, generator=generator).requires_grad_()
    labels = torch.arange(shape.batch) // shape.per_class
    if mixed:
        labels = labels[torch.randperm(shape.batch, generator=generator)]

    def step():
        x.grad = None
        loss(x, labels).backward()

    return step


def least(step, times=1):
    """CPU seconds of a step, averaged over as many at a time."""
    start = time.thread_time()
    for _ in range(times):
        step()
    return (time.thread_time() - start) / times


def print_operators(name, shape, rounds):
    """Print the operators of a step, sorted by lost time."""
    step = step_of(name, shape)
    step()  # warms up
    best = None
    for _ in range(rounds):
        with Operators() as found:
            step()
        if best is None:
            best = found.calls
        else:
            pairs = zip(best, found.calls, strict=True)
            best = [(operator, min(a, b), size) for (operator, a, size), (_, b, _) in pairs]
    source, target = torch.zeros(2, shape.batch, shape.batch)
    per_byte = min(least(lambda: target.copy_(source)) for _ in range(rounds)) / (2 * source.nbytes)
    print(f"{name}, {shape}\n{'operator':30}{'ms':>9}{'MB':>9}{'copy, ms':>10}{'lost, ms':>10}")
    for operator, seconds, size in sorted(best, key=lambda call: call[2] * per_byte - call[1]):
        copy = size * per_byte
        print(f"{operator:30}{1e3 * seconds:9.3f}{size / 1e6:9.2f}{1e3 * copy:10.3f}{1e3 * (seconds - copy):10.3f}")


def print_table(names, shapes, seconds, mixed=False):
    """Print each loss at each shape, in milliseconds and as a multiple of the floor."""
    print(f"{'':24}" + "".join(f"{shape!s:>18}" for shape in shapes))
    rows = dict.fromkeys((FLOOR, *names), "")
    for shape in shapes:
        steps = {name: step_of(name, shape, mixed) for name in rows}
        times = {name: max(1, int(_AT_A_TIME / max(least(step) for _ in range(2)))) for name, step in steps.items()}
        best = dict.fromkeys(rows, float("inf"))
        end = time.process_time() + seconds
        while time.process_time() < end:
            for name, step in steps.items():
                best[name] = min(best[name], least(step, times[name]))
        for name, each in best.items():
            rows[name] += f"{1e3 * each:11.3f} ({each / best[FLOOR]:.2f})"
    for name, row in rows.items():
        print(f"{name:24}{row}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("losses", nargs="*", default=LOSSES)
    parser.add_argument("--shape", type=Shape.parse, default=Shape(1024, 128, 4))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--seconds", type=float, default=20, help="of CPU time for each shape of the table")
    parser.add_argument("--mixed", action="store_true", help="the table's batches are not ordered by class")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.table:
        print_table(chosen.losses, [Shape.parse(shape) for shape in SHAPES], chosen.seconds, chosen.mixed)
        return
    for name in chosen.losses:
        print_operators(name, chosen.shape, chosen.rounds)


if __name__ == "__main__":
    main()
