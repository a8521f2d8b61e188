"""PDDM, a learned metric that sees where in the embedding space it is: Huang et al., 2016."""

from __future__ import annotations

from pml_ext.plugin import Component, Paper, hookimpl, packaged

from .distances import PDDMDistance
from .losses import PDDMLoss
from .miners import HardQuadrupletMiner

__all__ = ["HardQuadrupletMiner", "PDDMDistance", "PDDMLoss"]

HUANG_2016 = Paper(
    title="Local Similarity-Aware Deep Feature Embedding",
    authors="Huang et al.",
    year=2016,
    url="https://arxiv.org/abs/1610.08904",
)


@hookimpl
def pml_ext_components() -> list[Component]:
    """The metric, its loss and its miner."""
    return [
        Component(PDDMLoss, name="pddm", paper=HUANG_2016),
        Component(PDDMDistance, name="pddm", paper=HUANG_2016),
        Component(HardQuadrupletMiner, name="hard-quadruplet", paper=HUANG_2016),
    ]


pml_ext_recipes, pml_ext_papers = packaged(__name__)
