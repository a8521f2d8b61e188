"""Retrieval with a trained run: embed images, index, query and cluster them, export the network."""

from typing import TYPE_CHECKING

from ..lazy import lazily

if TYPE_CHECKING:
    from .clusters import SHEET, Clusters, Grouping, group
    from .collection import Collection, Embedded, RetrievalWarning, StoreWarning, check_writable
    from .embedding import Progress, SkippedImage, save_embeddings
    from .pictures import placeholder, thumbnail
    from .query import RADIUS, Answer, Gallery
    from .search import FaissIndex
    from .trained import TrainedRun, load_run

__getattr__ = lazily(__name__, "train", "load_run", ("matplotlib", "pydantic", "sklearn", "torchvision"))

__all__ = [
    "RADIUS",
    "SHEET",
    "Answer",
    "Clusters",
    "Collection",
    "Embedded",
    "FaissIndex",
    "Gallery",
    "Grouping",
    "Progress",
    "RetrievalWarning",
    "SkippedImage",
    "StoreWarning",
    "TrainedRun",
    "check_writable",
    "group",
    "load_run",
    "placeholder",
    "save_embeddings",
    "thumbnail",
]
