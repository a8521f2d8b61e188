"""The core as a plugin: data sets, transforms, trunks, wrappers, tiled versions and recipes of PML's losses."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any

from ..errors import needs_extra
from .components import Command, Component
from .hooks import hookimpl, packaged


@hookimpl
def pml_ext_components() -> list[Component]:
    """Return the core's wrappers, miner and samplers, and tiled versions of PML's losses."""
    return [
        Component(
            "pml_ext.losses:RegularizedLoss",
            name="regularized",
            summary="A loss plus a weighted regularizer that may see the labels",
        ),
        Component(
            "pml_ext.losses:TiledContrastiveLoss",
            name="tiled-contrastive",
            summary="PML's ContrastiveLoss in memory linear in the batch",
        ),
        Component(
            "pml_ext.losses:TiledMultiSimilarityLoss",
            name="tiled-multi-similarity",
            summary="PML's MultiSimilarityLoss in memory linear in the batch",
        ),
        Component(
            "pml_ext.losses:TiledNTXentLoss",
            name="tiled-nt-xent",
            summary="PML's NTXentLoss (InfoNCE with labels) in memory linear in the batch",
        ),
        Component(
            "pml_ext.losses:TiledSupConLoss",
            name="tiled-sup-con",
            summary="PML's SupConLoss in memory linear in the batch",
        ),
        Component(
            "pml_ext.losses:TiledTripletMarginLoss",
            name="tiled-triplet-margin",
            summary="PML's TripletMarginLoss over all triplets of the batch, without a list of them",
        ),
        Component(
            "pml_ext.miners:SemiHardTripletMiner",
            name="semi-hard-triplet",
            summary="Miner of FaceNet's semi-hard triplets: the negative is farther, by at most a margin",
        ),
        Component(
            "pml_ext.samplers:MPerLabelSampler",
            name="m-per-label",
            summary="Sampler of m images of each of several labels, for images with sets of labels",
        ),
        Component(
            "pml_ext.samplers:TreeSampler",
            name="tree",
            summary="Sampler of several parents in a tree, several classes of each, m images of each class",
        ),
    ]


pml_ext_recipes, _ = packaged("pml_ext")  # recipes of PML's own losses, as baselines; the core has no papers


@hookimpl
def pml_ext_datasets() -> dict[str, Callable[..., Any]]:
    """Return the data sets that need no account; some also need no network access."""
    with needs_extra("train", "a data set"):
        return _by_name("pml_ext.data:builtin_datasets")


@hookimpl
def pml_ext_trunks() -> dict[str, Callable[..., Any]]:
    """Return our small networks and torchvision's classification models."""
    with needs_extra("train", "a trunk"):
        return _by_name("pml_ext.networks.trunks:builtin_trunks")


@hookimpl
def pml_ext_transforms() -> dict[str, Callable[..., Any]]:
    """Return torchvision's transforms of one image."""
    with needs_extra("train", "a transform"):
        return _by_name("pml_ext.data:torchvision_transforms")


@hookimpl
def pml_ext_trackers() -> dict[str, Callable[..., Any]]:
    """Return TensorBoard, Weights & Biases, MLflow and Trackio."""
    return _by_name("pml_ext.training.trackers:builtin_trackers")


@hookimpl
def pml_ext_commands() -> dict[str, Command]:
    """Return the commands of the layer; search and comparison add theirs."""
    return {
        "list": Command("pml_ext.cli.listing:list_names", "List losses, recipes, data sets and more."),
        "show": Command("pml_ext.cli.listing:show", "Show the settings of a loss, recipe or data set."),
        "train": Command("pml_ext.cli.train:train", "Train and test a recipe, and write a report."),
        "report": Command("pml_ext.cli.train:report", "Redraw the report of a finished run."),
        "check": Command("pml_ext.cli.plugins:check", "Run the conformance checks; exit code 1 if one fails."),
        "plugins": Command("pml_ext.cli.plugins:plugins", "List the installed plugins; exit code 1 if one is broken."),
        "new-plugin": Command("pml_ext.cli.plugins:new_plugin", "Write a new plugin: a package with a loss and tests."),
        "data": Command("pml_ext.cli.listing:data", "Describe, check and download a data set."),
        "export": Command("pml_ext.cli.export:export", "Export the network: safetensors, ONNX, model card."),
        "bench": Command("pml_ext.cli.bench:bench", "Measure time and memory of losses or training steps."),
        "doctor": Command("pml_ext.cli.doctor:doctor", "Show versions, devices, extras and plugins, and test them."),
    }


def _by_name(function: str) -> dict[str, Callable[..., Any]]:
    """Return the table of a function that stands above the registry, which therefore imports it by its name."""
    return pkgutil.resolve_name(function)()  # type: ignore[no-any-return]
