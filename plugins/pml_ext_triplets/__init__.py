"""Triplet losses, miners and a sampler: Shah, Clustering and Querying, 2017."""

from pml_ext.plugin import Component, Paper, hookimpl, packaged

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
        Component(
            "pml_ext_triplets.losses:BatchAllTripletLoss",
            name="batch-all-triplets",
            paper=SHAH,
            summary="Mean triplet loss over all violating triplets of the batch, without listing them",
        ),
        Component(
            "pml_ext_triplets.miners:LocalPositiveMiner",
            name="local-positive",
            paper=SHAH,
            summary="Miner of near positive pairs and all negative pairs, for any loss, Sec. 5.3",
        ),
        Component(
            "pml_ext_triplets.miners:AnchorSwapMiner",
            name="anchor-swap",
            paper=SHAH,
            summary="Miner that swaps anchor and positive where the positive is nearer to the negative",
        ),
        Component(
            "pml_ext_triplets.samplers:HardNegativePoolSampler",
            name="hard-negative-pool",
            paper=SHAH,
            summary="Sampler of triplets with negatives from a pool of hard ones",
        ),
    ]


pml_ext_recipes, pml_ext_papers = packaged(__name__)
