"""Contrastive Bayesian metric learning: Kan et al., 2022."""

from typing import TYPE_CHECKING

import lazy_loader

from pml_ext.plugin import Component, Paper, hookimpl, packaged

if TYPE_CHECKING:
    from .statistics import PairStatistics as PairStatistics

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
        Component(
            "pml_ext_cbml.losses:CBMLLoss",
            name="cbml",
            paper=KAN_2022,
            summary="Contrastive Bayesian loss on hard pairs with a metric variance constraint, Eq. (30)",
        ),
        Component(
            "pml_ext_cbml.softmax:SoftmaxLoss",
            name="softmax",
            paper=KAN_2022,
            summary="Cross entropy of a linear classifier on the features, as in classification",
        ),
        Component(
            "pml_ext_cbml.miners:HardPairMiner",
            name="hard-pair",
            paper=KAN_2022,
            summary="Hard positive and negative pairs, Eq. (25) and (26)",
        ),
        Component(
            "pml_ext_cbml.regularizers:MetricVarianceRegularizer",
            name="metric-variance",
            paper=KAN_2022,
            summary="Metric variance constraint (MVC): a penalty on the variance of an anchor's negatives",
        ),
    ]


pml_ext_recipes, pml_ext_papers = packaged(__name__)
__getattr__, _, __all__ = lazy_loader.attach(__name__, submod_attrs={"statistics": ["PairStatistics"]})
