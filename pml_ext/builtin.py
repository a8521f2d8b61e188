"""The layer's own components, and PML's classes."""

import ast
import re
from importlib import resources

from .registry.components import KINDS, PML, Component, Paper, kebab


def pml_components() -> list[Component]:
    """PML's own classes of all kinds, as ``pml/multi-similarity``."""
    paper = Paper("PyTorch Metric Learning", "Musgrave et al.", 2020, "https://arxiv.org/abs/2008.09164")
    found = []
    for kind in KINDS:
        plural = "losses" if kind == "loss" else f"{kind}s"
        for class_name, module in _classes_of_pml(plural).items():
            if re.match("Base|Generic|BatchedDistance|.*Mixin$", class_name):
                continue
            name = f"pml/{kebab(class_name)}"
            found.append(Component(f"{module}:{class_name}", name, paper, plugin=PML, named_kind=kind))
    return found


def _classes_of_pml(package: str) -> dict[str, str]:
    """Classes that a package of PML exports, with their modules; parsed without torch."""
    modules = {}
    source = resources.files("pytorch_metric_learning") / package / "__init__.py"
    for node in ast.parse(source.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                modules[alias.name] = f"pytorch_metric_learning.{package}.{node.module}"
    return modules


def components() -> list[Component]:
    """The layer's wrappers, miner and samplers, and the tiled versions of PML's losses."""
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
