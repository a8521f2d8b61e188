"""Contrastive Bayesian metric learning: Kan et al., 2022."""

from __future__ import annotations

from pml_ext.plugin import Component, Paper, hookimpl, packaged

from .losses import CBMLLoss
from .miners import HardPairMiner
from .regularizers import MetricVarianceRegularizer
from .softmax import SoftmaxLoss
from .statistics import PairStatistics

__all__ = ["CBMLLoss", "HardPairMiner", "MetricVarianceRegularizer", "PairStatistics", "SoftmaxLoss"]

KAN_2022 = Paper(
    title="Contrastive Bayesian Analysis for Deep Metric Learning",
    authors="Kan et al.",
    year=2022,
    url="https://arxiv.org/abs/2210.04402",
)


@hookimpl
def pml_ext_components() -> list[Component]:
    """The loss, its miner and its regularizer."""
    return [
        Component(CBMLLoss, name="cbml", paper=KAN_2022),
        Component(SoftmaxLoss, name="softmax", paper=KAN_2022),
        Component(HardPairMiner, name="hard-pair", paper=KAN_2022),
        Component(MetricVarianceRegularizer, name="metric-variance", paper=KAN_2022),
    ]


pml_ext_recipes, pml_ext_papers = packaged(__name__)
