"""Density adaptivity: Li et al., 2019."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pml_ext.plugin import Component, Paper, hookimpl, lazily, packaged

if TYPE_CHECKING:
    from .clustering import ClusteringLoss as ClusteringLoss
    from .functional import class_densities as class_densities
    from .regularizers import DensityRegularizer as DensityRegularizer
    from .samplers import WholeClassSampler as WholeClassSampler
    from .spreading import EntropyRegularizer as EntropyRegularizer
    from .spreading import GlobalOrthogonalRegularizer as GlobalOrthogonalRegularizer

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
    """Return the regularizer, the methods that the paper compares it with, and its sampler for Online Products."""
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
__getattr__ = lazily(__name__)  # lazy: listing the package's classes does not import torch
