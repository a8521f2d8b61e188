"""Density adaptivity: Li et al., 2019."""

from pml_ext.plugin import Component, Paper, hookimpl, packaged

LI_2019 = Paper(
    title="Deep Metric Learning with Density Adaptivity",
    authors="Li et al.",
    year=2019,
    url="https://arxiv.org/abs/1909.03909",
)
SONG_2017 = Paper(
    title="Deep Metric Learning via Facility Location",
    authors="Song et al.",
    year=2017,
    url="https://arxiv.org/abs/1612.01213",
)
ZHANG_2017 = Paper(
    title="Learning Spread-out Local Feature Descriptors",
    authors="Zhang et al.",
    year=2017,
    url="https://arxiv.org/abs/1708.06320",
)


@hookimpl
def pml_ext_components() -> list[Component]:
    """The regularizer, its sampler, and the methods that the paper compares it with."""
    return [
        Component(
            "pml_ext_density.regularizers:DensityRegularizer",
            name="density",
            paper=LI_2019,
            summary="Fits class densities to learned targets, in proportion to base densities, Eq. (6), (8)",
        ),
        Component(
            "pml_ext_density.spreading:EntropyRegularizer",
            name="entropy",
            paper=LI_2019,
            summary="Spreads embeddings by maximizing a nearest-neighbor estimate of their entropy",
        ),
        Component(
            "pml_ext_density.samplers:WholeClassSampler",
            name="whole-class",
            paper=LI_2019,
            summary="Sampler of all images of randomly drawn classes, class by class, until a batch is full",
        ),
        Component(
            "pml_ext_density.clustering:ClusteringLoss",
            name="clustering",
            paper=SONG_2017,
            summary="Structured clustering loss by facility location: the true classes should score highest",
        ),
        Component(
            "pml_ext_density.spreading:GlobalOrthogonalRegularizer",
            name="global-orthogonal",
            paper=ZHANG_2017,
            summary="Spreads negative pairs like uniform points on the sphere (global orthogonal, GOR)",
        ),
    ]


pml_ext_recipes, pml_ext_papers = packaged(__name__)
