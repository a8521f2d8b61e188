"""A trained run at work: embed a user's images, index them, query them, cluster them, export the network."""

from ..errors import needs_extra

with needs_extra("train", "load_run"):
    from .checks import check_file, check_folder, printable, reason_of
    from .clusters import SHEET, SHEETS, Clusters
    from .embedding import Embedded, Images, SkippedImage, heard, save_embeddings
    from .faiss_index import FaissIndex
    from .grouping import Cluster, Grouping, group
    from .index import INDEX, Gallery
    from .pictures import PICTURED, placeholder, thumbnail
    from .search import METRICS, Answer, RetrievalWarning
    from .trained import TrainedRun, load_run

__all__ = [
    "INDEX",
    "METRICS",
    "PICTURED",
    "SHEET",
    "SHEETS",
    "Answer",
    "Cluster",
    "Clusters",
    "Embedded",
    "FaissIndex",
    "Gallery",
    "Grouping",
    "Images",
    "RetrievalWarning",
    "SkippedImage",
    "TrainedRun",
    "check_file",
    "check_folder",
    "group",
    "heard",
    "load_run",
    "placeholder",
    "printable",
    "reason_of",
    "save_embeddings",
    "thumbnail",
]
