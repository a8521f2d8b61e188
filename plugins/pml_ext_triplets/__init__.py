"""Triplets over the whole batch, and the conventional approach: Shah, clustering and querying."""

from __future__ import annotations

from pml_ext.plugin import Component, Paper, hookimpl, packaged

from .losses import BatchAllTripletLoss
from .miners import AnchorSwapMiner, LocalPositiveMiner
from .samplers import HardNegativePoolSampler

__all__ = ["AnchorSwapMiner", "BatchAllTripletLoss", "HardNegativePoolSampler", "LocalPositiveMiner"]

SHAH = Paper(
    title="Clustering and Querying Images from Unknown Classes Using Metric Learning",
    authors="Shah",
    year=2017,
    url="https://github.com/schinmayee/metric-learning",
)


@hookimpl
def pml_ext_components() -> list[Component]:
    """The loss, its miners and its sampler."""
    return [
        Component(BatchAllTripletLoss, name="batch-all-triplets", paper=SHAH),
        Component(LocalPositiveMiner, name="local-positive", paper=SHAH),
        Component(AnchorSwapMiner, name="anchor-swap", paper=SHAH),
        Component(HardNegativePoolSampler, name="hard-negative-pool", paper=SHAH),
    ]


pml_ext_recipes, pml_ext_papers = packaged(__name__)
