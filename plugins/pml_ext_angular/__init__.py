"""Angular loss: Wang et al., 2017."""

from __future__ import annotations

from pml_ext.plugin import Component, Paper, hookimpl, packaged

from .losses import AngularLoss, AngularTripletLoss, NPairAngularLoss, NPairLoss

__all__ = ["AngularLoss", "AngularTripletLoss", "NPairAngularLoss", "NPairLoss"]

WANG_2017 = Paper(
    title="Deep Metric Learning with Angular Loss",
    authors="Wang et al.",
    year=2017,
    url="https://arxiv.org/abs/1708.01682",
)


@hookimpl
def pml_ext_components() -> list[Component]:
    """The four losses."""
    return [
        Component(AngularLoss, name="angular", paper=WANG_2017),
        Component(AngularTripletLoss, name="angular-triplet", paper=WANG_2017),
        Component(NPairLoss, name="n-pair", paper=WANG_2017),
        Component(NPairAngularLoss, name="n-pair-angular", paper=WANG_2017),
    ]


pml_ext_recipes, pml_ext_papers = packaged(__name__)
