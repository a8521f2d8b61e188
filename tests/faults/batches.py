"""Random batches over our losses, miners, regularizers and distances: finite in, finite out.

A batch that is finite has embeddings, or raw vectors of norms up to ``NORM``, in float32, and gives finite values and
gradients; one with NaN or infinity in it gives a value that is not finite either, or an error. A miner gives indices
inside of the batch.
"""

from __future__ import annotations

import copy
import math
import random
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

NORM = 1e4  # of raw embeddings; products of four of them are far from float32's greatest number
SIZE = 8
CLASSES = 6
SHAPES = ("unit", "raw", "large", "tiny", "zeros", "same", "pairs", "one class", "all classes", "opposite")
KINDS = ("loss", "miner", "regularizer", "distance")
# What a batch's facts do not give.
SETTINGS: dict[str, dict[str, Any]] = {
    "regularized": {"loss": {"name": "cbml"}, "regularizer": {"name": "metric-variance"}},
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
    """An instance of each of our losses, miners, regularizers and distances by kind and name; of tiled ones a second.

    Raises:
        Exception: one cannot be made; what it needs beside a batch's facts belongs into ``SETTINGS``.
    """
    from pml_ext import registry

    context = {"embedding_size": SIZE, "num_classes": CLASSES, "class_labels": list(range(CLASSES))}
    made = {}
    for kind in KINDS:
        for component in registry.components(kind):
            if component.name.startswith("pml/"):
                continue
            label = f"{kind} {component.name}"
            torch.manual_seed(0)
            settings = SETTINGS.get(component.name, {})
            made[label] = kind, registry.build(component.name, kind, context, **settings)
            if kind == "loss" and "tile_size" in component.settings:
                torch.manual_seed(0)
                tiled = registry.build(component.name, kind, context, **{**settings, "tile_size": 5})
                made[f"{label} in tiles"] = kind, tiled
    return made


def sweep(count: int) -> Iterator[tuple[str, str, str]]:
    """Batches spread over all components: the component, the batch, and what is wrong."""
    draw = random.Random(0)
    chosen = list(subjects().items())
    for number in range(count):
        name, (kind, instance) = chosen[number % len(chosen)]
        points, labels, is_finite, what = batch(draw)
        if "anchor-swap" in name:  # a miner of triplets, one after the other
            points, labels = points[: len(points) // 3 * 3], torch.tensor([0, 0, 1] * (len(points) // 3))
            is_finite = bool(points.isfinite().all())
        yield name, what, look(instance, kind, points, labels, is_finite)
