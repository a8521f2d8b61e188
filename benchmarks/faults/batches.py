"""Random batches over every registered loss, miner, regularizer, distance and reducer: finite in, finite out.

A batch that is finite has embeddings, or raw vectors of norms up to ``NORM``, in float32, and gives finite values and
gradients; one with NaN or infinity in it gives a value that is not finite either, or an error. A miner gives indices
inside of the batch.

``python -m benchmarks.faults.batches --count 100000`` is the sweep; it fails if one of ours surprises, and lists
what components of pytorch-metric-learning do.
"""

from __future__ import annotations

import argparse
import copy
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
SIZE = 8
CLASSES = 6
SHAPES = ("unit", "raw", "large", "tiny", "zeros", "same", "pairs", "one class", "all classes", "opposite")
KINDS = ("loss", "miner", "regularizer", "distance", "reducer")
# Components whose batches are triplets, one after the other.
TRIPLETS = frozenset({"anchor-swap", "pml/embeddings-already-packaged-as-triplets"})
# What a batch's facts do not give.
SETTINGS: dict[str, dict[str, Any]] = {
    "regularized": {"loss": {"name": "cbml"}, "regularizer": {"name": "metric-variance"}},
    "pml/class-weighted": {"weights": torch.linspace(0.5, 1.5, CLASSES)},
    "pml/cross-batch-memory": {"loss": {"name": "pml/contrastive"}, "memory_size": 16},
    "pml/manifold": {"l": SIZE},
    "pml/p2s-grad": {"descriptors_dim": SIZE},
    "pml/ranked-list": {"margin": 0.4, "Tn": 10},
    "pml/threshold": {"low": 0.0},
}
# What is no component for batches of embeddings and labels, and why.
LEFT_OUT = {
    "loss pml/multiple-losses": "it adds losses that are looked at one by one",
    "loss pml/self-supervised": "it takes two views",
    "regularizer pml/sparse-centers": "it takes the centers of pml/soft-triple",
    "reducer pml/do-nothing": "it gives a table",
    "reducer pml/divisor": "it takes losses that have a divisor",
    "reducer pml/multiple-reducers": "it takes losses that have several terms",
}


def batch(draw: random.Random) -> tuple[Tensor, Tensor, bool, str]:
    """Embeddings ``[B, 8]``, labels ``[B]``, whether all is finite, and what it is."""
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    count = draw.choice((0, 1, 2, 3, 5, 8, 12, 24))
    points = torch.randn(count, SIZE, generator=generator)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    shape = draw.choice(SHAPES)
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


def triplets(points: Tensor) -> tuple[Tensor, Tensor]:
    """A batch of triplets in which every point is, and their labels."""
    count = len(points) // 3
    return points[: 3 * count], torch.tensor([0, 0, 1] * count)


def look(instance: Any, kind: str, points: Tensor, labels: Tensor, is_finite: bool) -> str:
    """What is wrong with what a component makes of a batch; "" if nothing is."""
    instance = copy.deepcopy(instance)  # some remember batches
    points = points.clone().requires_grad_()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if kind == "miner":
                indices = instance(points, labels)
                inside = all(bool(((index >= 0) & (index < max(len(points), 1))).all()) for index in indices)
                return "" if inside or len(points) == 0 else "an index outside of the batch"
            unlabeled = kind == "distance" or (kind == "regularizer" and _unlabeled(instance))
            value = instance(points) if unlabeled else instance(points, labels)
            if isinstance(value, Tensor) and value.requires_grad:
                value.sum().backward()
    except Exception as error:
        if not is_finite or isinstance(error, (ValueError, TypeError)):
            return ""  # a sentence of its own
        return f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
    gradient = torch.zeros(()) if points.grad is None else points.grad
    if is_finite:
        if not value.isfinite().all():
            return f"the value {value[~value.isfinite()].flatten()[0].item()}"
        return "" if gradient.isfinite().all() else "a gradient that is not finite"
    return "a finite value of a batch that is not" if value.isfinite().all() else ""


def _unlabeled(instance: Any) -> bool:
    from pml_ext.plugin import LabeledRegularizer

    return not isinstance(instance, LabeledRegularizer)


def subjects() -> dict[str, tuple[str, Any]]:
    """An instance of each loss, miner, regularizer, distance and reducer by kind and name; of tiled ones a second.

    Raises:
        Exception: one cannot be made; what it needs beside a batch's facts belongs into ``SETTINGS``.
    """
    from pml_ext import registry

    context = {"embedding_size": SIZE, "num_classes": CLASSES, "class_labels": list(range(CLASSES))}
    made = {}
    for kind in KINDS:
        for component in registry.components(kind):
            label = f"{kind} {component.name}"
            if label in LEFT_OUT:
                continue
            torch.manual_seed(0)
            settings = SETTINGS.get(component.name, {})
            if kind == "reducer":
                reducer = {"name": component.name, **settings}
                made[label] = kind, registry.build("pml/contrastive", "loss", context, reducer=reducer)
                continue
            made[label] = kind, registry.build(component.name, kind, context, **settings)
            if kind == "loss" and "tile_size" in component.settings:
                torch.manual_seed(0)
                tiled = registry.build(component.name, kind, context, **{**settings, "tile_size": 5})
                made[f"{label} in tiles"] = kind, tiled
    return made


def is_ours(name: str) -> bool:
    """Whether a component, by kind and name, is one of this project's packages."""
    return " pml/" not in name


def sweep(count: int, seed: int = 0, ours: bool = False) -> Iterator[tuple[str, str, str]]:
    """Batches spread over all components, or over ours: the component, the batch, and what is wrong."""
    draw = random.Random(seed)
    chosen = [item for item in subjects().items() if not ours or is_ours(item[0])]
    for number in range(count):
        name, (kind, instance) = chosen[number % len(chosen)]
        points, labels, is_finite, what = batch(draw)
        if name.split()[1] in TRIPLETS:
            points, labels = triplets(points)
            is_finite = bool(points.isfinite().all())
        yield name, what, look(instance, kind, points, labels, is_finite)


def main() -> int:
    """The sweep."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--ours", action="store_true", help="no components of pytorch-metric-learning")
    given = options.parse_args()
    torch.set_num_threads(1)
    kinds = Counter[tuple[str, str]]()
    number = 0
    started = time.monotonic()
    for number, (name, what, wrong) in enumerate(sweep(given.count, given.seed, given.ours), 1):  # noqa: B007
        if wrong:
            kinds[name, wrong] += 1
            if kinds[name, wrong] == 1:
                print(f"{name}: {wrong} ({what})", flush=True)
    seconds = time.monotonic() - started
    ours = sum(times for (name, _), times in kinds.items() if is_ours(name))
    chosen = sum(not given.ours or is_ours(name) for name in subjects())
    print(
        f"{number} batches over {chosen} components, {sum(kinds.values())} surprises of {len(kinds)} kinds, {ours} "
        f"of them of our components; {seconds:.0f} s"
    )
    return 1 if ours else 0


if __name__ == "__main__":
    sys.exit(main())
