"""The core as a plugin: data sets, trunks, wrappers, tiled versions of PML's losses, and recipes of PML's losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import needs_extra
from .components import Component
from .hooks import hookimpl, packaged


@hookimpl
def pml_ext_components() -> list[Component]:
    """Return the core's wrappers, miner and samplers, and tiled versions of PML's losses."""
    return [
        Component("pml_ext.losses:RegularizedLoss", name="regularized"),
        Component("pml_ext.losses:TiledContrastiveLoss", name="tiled-contrastive"),
        Component("pml_ext.losses:TiledMultiSimilarityLoss", name="tiled-multi-similarity"),
        Component("pml_ext.losses:TiledNTXentLoss", name="tiled-nt-xent"),
        Component("pml_ext.losses:TiledSupConLoss", name="tiled-sup-con"),
        Component("pml_ext.losses:TiledTripletMarginLoss", name="tiled-triplet-margin"),
        Component("pml_ext.miners:SemiHardTripletMiner", name="semi-hard-triplet"),
        Component("pml_ext.samplers:MPerLabelSampler", name="m-per-label"),
        Component("pml_ext.samplers:TreeSampler", name="tree"),
    ]


pml_ext_recipes = packaged("pml_ext")[0]  # recipes of PML's own losses, as baselines


@hookimpl
def pml_ext_datasets() -> dict[str, Callable[..., Any]]:
    """Return the data sets that need no account; some also need no network access."""
    with needs_extra("train", "a data set"):
        from ..data import builtin_datasets
    return builtin_datasets()


@hookimpl
def pml_ext_trunks() -> dict[str, Callable[..., Any]]:
    """Return our small networks and torchvision's classification models."""
    with needs_extra("train", "a trunk"):
        from ..networks.trunks import builtin_trunks
    return builtin_trunks()


@hookimpl
def pml_ext_trackers() -> dict[str, Callable[..., Any]]:
    """Return TensorBoard, Weights & Biases, MLflow and Trackio."""
    from ..training.trackers import builtin_trackers

    return builtin_trackers()


@hookimpl
def pml_ext_stores() -> dict[str, Callable[..., Any]]:
    """Return LanceDB, PostgreSQL with pgvector, and Qdrant."""
    from pml_ext_search.stores import builtin_stores

    return builtin_stores()
