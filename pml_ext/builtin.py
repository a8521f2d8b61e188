"""The core as a plugin: data sets, transforms, trunks, wrappers, commands; PML's own classes, and recipes of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from importlib import resources
from typing import Any

from .errors import needs_extra
from .registry.components import KINDS, PML, Command, Component, Paper, kebab
from .registry.hooks import hookimpl, packaged


def pml_components() -> list[Component]:
    """Return PML's losses, miners, regularizers, distances, samplers and reducers, named ``pml/multi-similarity``."""
    paper = Paper("PyTorch Metric Learning", "Musgrave et al.", 2020, "https://arxiv.org/abs/2008.09164")
    found = []
    for kind in KINDS:
        plural = "losses" if kind == "loss" else f"{kind}s"
        for class_name, module in _classes_of_pml(plural).items():
            if re.match("Base|Generic|BatchedDistance|.*Mixin$", class_name):
                continue
            component = Component(
                source=f"{module}:{class_name}",
                name=f"pml/{kebab(class_name)}",
                paper=paper,
                plugin=PML,
                named_kind=kind,
            )
            found.append(component)
    return found


def _classes_of_pml(package: str) -> dict[str, str]:
    """Return the classes that a package of PML exports, with their modules: read, since an import imports torch."""
    modules = {}
    source = resources.files("pytorch_metric_learning") / package / "__init__.py"
    for node in ast.parse(source.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                modules[alias.name] = f"pytorch_metric_learning.{package}.{node.module}"
    return modules


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
        from pml_ext_train.data import builtin_datasets

        return builtin_datasets()


@hookimpl
def pml_ext_trunks() -> dict[str, Callable[..., Any]]:
    """Return our small networks and torchvision's classification models."""
    with needs_extra("train", "a trunk"):
        from pml_ext_train.networks.trunks import builtin_trunks

        return builtin_trunks()


@hookimpl
def pml_ext_transforms() -> dict[str, Callable[..., Any]]:
    """Return torchvision's transforms of one image."""
    with needs_extra("train", "a transform"):
        from pml_ext_train.data import torchvision_transforms

        return torchvision_transforms()


@hookimpl
def pml_ext_trackers() -> dict[str, Callable[..., Any]]:
    """Return TensorBoard, Weights & Biases, MLflow and Trackio."""
    from pml_ext_train.records.trackers import builtin_trackers

    return builtin_trackers()


@hookimpl
def pml_ext_checks() -> dict[str, Callable[..., Any]]:
    """Return the checks of what plugins name for runs."""
    with needs_extra("train", "a check of data sets, trunks and recipes"):
        from pml_ext_train.cli.contracts import CHECKS

        return {**CHECKS}


@hookimpl
def pml_ext_commands() -> dict[str, Command]:
    """Return the commands of the layer; search and comparison add theirs."""
    return {
        "list": Command("pml_ext_train.cli.listing:list_names", "List losses, recipes, data sets and more."),
        "show": Command("pml_ext_train.cli.listing:show", "Show the settings of a loss, recipe or data set."),
        "train": Command("pml_ext_train.cli.train:train", "Train and test a recipe, and write a report."),
        "report": Command("pml_ext_train.cli.train:report", "Redraw the report of a finished run."),
        "check": Command("pml_ext_train.cli.plugins:check", "Run the conformance checks; exit code 1 if one fails."),
        "plugins": Command(
            "pml_ext_train.cli.plugins:plugins", "List the installed plugins; exit code 1 if one is broken."
        ),
        "new-plugin": Command(
            "pml_ext_train.cli.plugins:new_plugin", "Write a new plugin: a package with a loss and tests."
        ),
        "data": Command("pml_ext_train.cli.listing:data", "Describe, check and download a data set."),
        "export": Command("pml_ext_train.cli.export:export", "Export the network: safetensors, ONNX, model card."),
        "bench": Command("pml_ext_train.cli.bench:bench", "Measure time and memory of losses or training steps."),
        "doctor": Command(
            "pml_ext_train.cli.doctor:doctor", "Show versions, devices, extras and plugins, and test them."
        ),
    }
