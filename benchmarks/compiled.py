"""A step of a loss with and without ``torch.compile``, forward and backward, in turns.

``python -m benchmarks.compiled [LOSS ...] [--shapes BATCHxSIZExPER_CLASS ...]``; by default the six losses of
docs/measurements.md.
"""

import argparse
import statistics
import time

import torch
from torch._dynamo.exc import Unsupported

from pml_ext import registry
from pml_ext_train.cli.benchmark import Shape

SHAPES = (Shape(32, 64, 4), Shape(120, 512, 4), Shape(1024, 512, 4), Shape(4096, 512, 4))
LOSSES = ("cbml", "angular", "n-pair", "n-pair-angular", "batch-all-triplets", "tiled-multi-similarity")


def seconds(loss, embeddings, labels):
    embeddings.grad = None
    start = time.perf_counter()
    loss(embeddings, labels).backward()
    return time.perf_counter() - start


def measure(name, shape, rounds):
    """Median milliseconds of a step without and with compilation, and seconds of compiling."""
    torch.compiler.reset()
    loss = registry.build(name, "loss", shape.context)
    compiled = torch.compile(loss, fullgraph=True)
    x = torch.randn(shape.batch, shape.size, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels = torch.arange(shape.batch) // shape.per_class
    start = time.perf_counter()
    seconds(compiled, x, labels)
    compilation = time.perf_counter() - start
    seconds(loss, x, labels)
    times = [(seconds(loss, x, labels), seconds(compiled, x, labels)) for _ in range(rounds)]
    plain, fused = (1e3 * statistics.median(each) for each in zip(*times, strict=True))
    return plain, fused, compilation


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("losses", nargs="*", default=LOSSES)
    parser.add_argument("--shapes", nargs="+", type=Shape.parse, default=SHAPES)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'shape':14}{'loss':26}{'plain, ms':>14}{'compiled, ms':>14}{'ratio':>7}{'compilation, s':>16}")
    for shape in chosen.shapes:
        rounds = 200 if shape.batch < 1024 else 9
        for name in chosen.losses:
            try:
                plain, fused, compilation = measure(name, shape, rounds)
            except Unsupported:
                print(f"{shape!s:14}{name:26}  cannot be compiled for this shape", flush=True)
                continue
            row = f"{plain:14.2f}{fused:14.2f}{fused / plain:7.2f}{compilation:16.1f}"
            print(f"{shape!s:14}{name:26}{row}", flush=True)


if __name__ == "__main__":
    main()
