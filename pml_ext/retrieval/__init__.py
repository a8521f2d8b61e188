"""A trained run at work: embed a user's images, index them, query them, cluster them, export the network."""

from typing import TYPE_CHECKING

from ..lazy import lazily

if TYPE_CHECKING:
    from .checks import check_file, check_folder, reason_of
    from .clusters import SHEET, SHEETS, Clusters
    from .duplicates import RADIUS
    from .embedding import Embedded, Images, Listener, Progress, SkippedImage, heard
    from .faiss_index import FaissIndex
    from .grouping import Cluster, Grouping, group
    from .index import INDEX, Gallery, IndexedImages, indexed_folder
    from .pictures import PICTURED, placeholder, thumbnail
    from .saving import save_embeddings
    from .search import METRICS, Answer, RetrievalWarning
    from .store import STORE, StoreWarning
    from .table import Changes
    from .trained import TrainedRun, load_run

__getattr__ = lazily(__name__, "train", "load_run", ("matplotlib", "pydantic", "sklearn", "torchvision"))

__all__ = [
    "INDEX",
    "METRICS",
    "PICTURED",
    "RADIUS",
    "SHEET",
    "SHEETS",
    "STORE",
    "Answer",
    "Changes",
    "Cluster",
    "Clusters",
    "Embedded",
    "FaissIndex",
    "Gallery",
    "Grouping",
    "Images",
    "IndexedImages",
    "Listener",
    "Progress",
    "RetrievalWarning",
    "SkippedImage",
    "StoreWarning",
    "TrainedRun",
    "check_file",
    "check_folder",
    "group",
    "heard",
    "indexed_folder",
    "load_run",
    "placeholder",
    "reason_of",
    "save_embeddings",
    "thumbnail",
]
