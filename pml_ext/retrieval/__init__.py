"""Retrieval with a trained run: embed images, index, query and cluster them, export the network."""

from typing import TYPE_CHECKING

from ..lazy import lazily

if TYPE_CHECKING:
    from .checks import RetrievalWarning, StoreWarning, check_file, check_folder, reason_of
    from .clusters import SHEET, Cluster, Clusters, Grouping, group
    from .collection import COLLECTION, Changes, Collection
    from .embedding import Embedded, Images, Listener, Progress, SkippedImage, forward_warnings, save_embeddings
    from .pictures import PICTURED, placeholder, thumbnail
    from .query import METRICS, RADIUS, Answer, Gallery
    from .search import FaissIndex
    from .trained import TrainedRun, load_run

__getattr__ = lazily(__name__, "train", "load_run", ("matplotlib", "pydantic", "sklearn", "torchvision"))

__all__ = [
    "COLLECTION",
    "METRICS",
    "PICTURED",
    "RADIUS",
    "SHEET",
    "Answer",
    "Changes",
    "Cluster",
    "Clusters",
    "Collection",
    "Embedded",
    "FaissIndex",
    "Gallery",
    "Grouping",
    "Images",
    "Listener",
    "Progress",
    "RetrievalWarning",
    "SkippedImage",
    "StoreWarning",
    "TrainedRun",
    "check_file",
    "check_folder",
    "forward_warnings",
    "group",
    "load_run",
    "placeholder",
    "reason_of",
    "save_embeddings",
    "thumbnail",
]
