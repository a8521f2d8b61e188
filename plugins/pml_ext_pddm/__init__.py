"""PDDM, a learned metric that depends on the position of a pair: Huang et al., 2016."""

from pml_ext.plugin import Component, Paper, hookimpl, packaged

HUANG_2016 = Paper(
    title="Local Similarity-Aware Deep Feature Embedding",
    authors="Huang et al.",
    year=2016,
    url="https://arxiv.org/abs/1610.08904",
)


@hookimpl
def pml_ext_components() -> list[Component]:
    """The metric, a position-independent baseline, the loss and the miner."""
    return [
        Component(
            "pml_ext_pddm.losses:PDDMLoss",
            name="pddm",
            paper=HUANG_2016,
            summary="PDDM loss: trains a learned similarity and the embedding on hard quadruplets, Eq. (3), (4)",
        ),
        Component(
            "pml_ext_pddm.distances:PDDMDistance",
            name="pddm",
            paper=HUANG_2016,
            summary="Similarity learned from the difference and the mean of two embeddings (PDDM), Eq. (2)",
        ),
        Component(
            "pml_ext_pddm.distances:MahalanobisDistance",
            name="mahalanobis",
            paper=HUANG_2016,
            summary="Learned Mahalanobis distance, the position-independent baseline of Sec. 1",
        ),
        Component(
            "pml_ext_pddm.miners:HardQuadrupletMiner",
            name="hard-quadruplet",
            paper=HUANG_2016,
            summary="Miner of the most dissimilar positive pair and the hardest negative of each end",
        ),
    ]


pml_ext_recipes, pml_ext_papers = packaged(__name__)
