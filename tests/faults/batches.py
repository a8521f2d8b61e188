"""Random batches over every registered loss, miner and regularizer: finite in, finite out, value and gradient.

A batch that is finite has embeddings, or raw vectors of norms up to ``NORM``, in float32; what is not finite gives a
value that is not finite either, or an error. ``python -m tests.faults.batches --count 100000`` is the sweep.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

NORM = 1e4  # of raw embeddings; products of four of them are far from float32's greatest number
SIZE, CLASSES = 8, 6
SHAPES = ("unit", "raw", "large", "tiny", "zeros", "same", "pairs", "one class", "all classes", "opposite")
# Miners whose batches are triplets already, one after the other: other batches are no use of them.
TRIPLETS = frozenset({"anchor-swap", "pml/embeddings-already-packaged-as-triplets"})


def batch(draw: random.Random) -> tuple[Tensor, Tensor, bool, str]:
    """Embeddings ``[B, 8]``, labels ``[B]``, whether all is finite, and what it is."""
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    count = draw.choice((0, 1, 2, 3, 5, 8, 12, 24))
    points = torch.randn(count, SIZE, generator=generator)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    shape = draw.choice(
        ("unit", "raw", "large", "tiny", "zeros", "same", "pairs", "one class", "all classes", "opposite")
    )
    if shape in ("unit", "pairs", "one class", "all classes"):
        points = torch.nn.functional.normalize(points)
    if shape == "large":
        points = torch.nn.functional.normalize(points) * NORM
    if shape == "tiny":
        points = points * 1e-20
    if shape == "zeros":
        points = torch.zeros_like(points)
    if shape == "same" and count:
        points = points[:1].expand(count, -1).clone()
    if shape == "opposite" and count > 1:
        points[1::2] = -points[: 2 * (count // 2) : 2]
    if shape == "one class":
        labels = torch.zeros_like(labels)
    if shape == "all classes":
        labels = torch.arange(count) % CLASSES
    if shape == "pairs":
        labels = torch.arange(count) // 2 % CLASSES
    bad = draw.random() < 0.1 and count > 0
    if bad:
        points[draw.randrange(count), draw.randrange(SIZE)] = draw.choice((math.nan, math.inf, -math.inf))
    return points, labels, not bad, f"{count} {shape}{' with one bad value' * bad}"


def look(instance: Any, kind: str, points: Tensor, labels: Tensor, is_finite: bool) -> str:
    """What is wrong with what a component makes of a batch; "" if nothing is."""
    points = points.clone().requires_grad_()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if kind == "miner":
                found = instance(points, labels)
                inside = all(bool(((index >= 0) & (index < max(len(points), 1))).all()) for index in found)
                return "" if inside or len(points) == 0 else "an index outside of the batch"
            value = instance(points) if kind == "regularizer" and _unlabeled(instance) else instance(points, labels)
            if isinstance(value, Tensor) and value.requires_grad:
                value.sum().backward()
    except Exception as error:
        if not is_finite or isinstance(error, (ValueError, TypeError)):
            return ""  # a sentence of its own
        return f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
    gradient = torch.zeros(()) if points.grad is None else points.grad
    if is_finite:
        if not value.isfinite().all():
            return f"the value {value.item()}"
        return "" if gradient.isfinite().all() else "a gradient that is not finite"
    return ""


def _unlabeled(instance: Any) -> bool:
    from pml_ext import LabelledRegularizer

    return not isinstance(instance, LabelledRegularizer)


def subjects() -> dict[str, tuple[str, Any]]:
    """An instance of each loss, miner and regularizer that can be built from a batch's facts, by name."""
    from pml_ext import registry

    context = {"embedding_size": SIZE, "num_classes": CLASSES, "class_labels": list(range(CLASSES))}
    made = {}
    for kind in ("loss", "miner", "regularizer"):
        for component in registry.components(kind):
            if component.name in TRIPLETS:
                continue
            try:
                torch.manual_seed(0)
                made[f"{kind} {component.name}"] = kind, registry.build(component.name, kind, context)
            except Exception as error:  # it needs another component
                print(f"left out: {kind} {component.name} ({str(error)[:80]})", file=sys.stderr)
    return made


def sweep(count: int, seed: int = 0, ours: bool = False) -> Iterator[tuple[str, str, str]]:
    """Batches spread over all components, or over ours: the component, the batch, and what is wrong."""
    draw = random.Random(seed)
    chosen = [item for item in subjects().items() if not ours or " pml/" not in item[0]]
    for number in range(count):
        name, (kind, instance) = chosen[number % len(chosen)]
        points, labels, is_finite, what = batch(draw)
        yield name, what, look(instance, kind, points, labels, is_finite)


def main() -> int:
    """The sweep."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--ours", action="store_true", help="no components of pytorch-metric-learning")
    given = options.parse_args()
    torch.set_num_threads(1)
    kinds, number, started = Counter[tuple[str, str]](), 0, time.monotonic()
    for number, (name, what, wrong) in enumerate(sweep(given.count, given.seed, given.ours), 1):  # noqa: B007
        if wrong:
            kinds[name, wrong] += 1
            if kinds[name, wrong] == 1:
                print(f"{name}: {wrong} ({what})", flush=True)
    seconds = time.monotonic() - started
    print(f"{number} batches, {sum(kinds.values())} surprises of {len(kinds)} kinds; {seconds:.0f} s")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
