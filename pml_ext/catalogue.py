"""PML's own classes: the names under which the registry has them, and what they can do."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

# PML's losses that take references, as their sources say; those that refuse or ignore them are left out, and NCALoss,
# which compares an embedding with its own copy among them, whatever the indices_tuple says.
_WITH_REFERENCES = [
    "AngularLoss",
    "CircleLoss",
    "ContrastiveLoss",
    "DynamicSoftMarginLoss",
    "GeneralizedLiftedStructureLoss",
    "IntraPairVarianceLoss",
    "LiftedStructureLoss",
    "MarginLoss",
    "MultiSimilarityLoss",
    "NTXentLoss",
    "SignalToNoiseRatioContrastiveLoss",
    "SupConLoss",
    "TripletMarginLoss",
    "TupletMarginLoss",
]
_USUAL = frozenset({"labels", "indices_tuple"})
_CAPABILITIES: dict[str, frozenset[str]] = {
    **{name: _USUAL | {"references"} for name in _WITH_REFERENCES},
    **{name: frozenset({"labels"}) for name in ("InstanceLoss", "P2SGradLoss", "PNPLoss", "RankedListLoss")},
    "ManifoldLoss": frozenset({"indices_tuple"}),
    "VICRegLoss": frozenset({"references"}),
    "SelfSupervisedLoss": frozenset({"references"}),
    "CrossBatchMemory": _USUAL | {"state"},
}


@functools.cache
def capabilities_of(cls: type) -> frozenset[str]:
    """What PML's class, or the nearest one that a class extends, can do.

    Args:
        cls: a class; one that extends nothing of PML counts as a loss that takes labels and a miner's tuple.
    """
    pml = next((base for base in cls.__mro__ if base.__module__.startswith("pytorch_metric_learning.")), None)
    return _CAPABILITIES.get(pml.__name__, _USUAL) if pml else _USUAL


def pml_classes() -> Iterator[tuple[str, type]]:
    """PML's losses, miners, regularizers, distances, samplers and reducers.

    Yields:
        The name, such as ``"pml/multi-similarity"``, and the class. A loss and a miner may share a name.
    """
    from . import pml

    bases = tuple(base for kind in pml.BASES.values() for base in kind)
    for module in pml.MODULES:
        for name, cls in vars(module).items():
            if isinstance(cls, type) and issubclass(cls, bases) and not name.startswith(("Base", "Generic")):
                yield f"pml/{kebab(name)}", cls


def kebab(class_name: str) -> str:
    """The name that follows from a class name: ``"MultiSimilarityLoss"`` becomes ``"multi-similarity"``."""
    stem = re.sub(r"(Loss|Miner|Regularizer|Distance|Sampler|Reducer)$", "", class_name)
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", stem).lower()
    for split, joined in (
        ("arc-face", "arcface"),
        ("cos-face", "cosface"),
        ("sphere-face", "sphereface"),
        ("nt-xent", "ntxent"),
        ("vic-reg", "vicreg"),
        ("sup-con", "supcon"),
        ("p2-s-grad", "p2s-grad"),
    ):
        words = words.replace(split, joined)
    return words
