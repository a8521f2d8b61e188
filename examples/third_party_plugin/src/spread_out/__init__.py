"""Alignment and uniformity on the sphere: Wang and Isola, 2020."""

import importlib.resources

from pml_ext.plugin import Command, Component, Paper, hookimpl

from .losses import AlignmentUniformityLoss

__all__ = ["AlignmentUniformityLoss"]

WANG_2020 = Paper(
    title="Understanding Contrastive Representation Learning through Alignment and Uniformity on the Hypersphere",
    authors="Wang and Isola",
    year=2020,
    url="https://arxiv.org/abs/2005.10242",
)


@hookimpl
def pml_ext_components():
    return [Component(AlignmentUniformityLoss, name="alignment-uniformity", paper=WANG_2020)]


@hookimpl
def pml_ext_recipes():
    return [importlib.resources.files(__name__) / "recipes"]


@hookimpl
def pml_ext_datasets():
    from .data import shapes  # torchvision and the like are imported when a data set is looked up

    return {"shapes": shapes}


@hookimpl
def pml_ext_commands():
    return {"spread": Command("spread_out.commands:spread", "Measure how evenly a run spreads images on the sphere.")}
