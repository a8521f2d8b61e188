"""A trained run at work: embed a user's images, index them, query them, cluster them, export the network."""

from ..errors import needs_extra

with needs_extra("train", "load_run"):
    from .checks import check_file, check_folder, printable, reason_of
    from .clusters import SHEET
    from .embedding import Embedded, Images, Listener, Progress, SkippedImage, heard, save_embeddings
    from .faiss_index import FaissIndex
    from .index import INDEX, Gallery
    from .pictures import PICTURED
    from .search import METRICS, Answer, RetrievalWarning
    from .store import STORE, StoreWarning
    from .trained import TrainedRun, load_run

__all__ = [
    "INDEX",
    "METRICS",
    "PICTURED",
    "SHEET",
    "STORE",
    "Answer",
    "Embedded",
    "FaissIndex",
    "Gallery",
    "Images",
    "Listener",
    "Progress",
    "RetrievalWarning",
    "SkippedImage",
    "StoreWarning",
    "TrainedRun",
    "check_file",
    "check_folder",
    "heard",
    "load_run",
    "printable",
    "reason_of",
    "save_embeddings",
]
