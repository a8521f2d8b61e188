"""Retrieval with a trained run: embed images, index, query and cluster them, export the network."""

from typing import TYPE_CHECKING

from ..lazy import lazily

if TYPE_CHECKING:
    from ..collection import Collection as Collection
    from ..collection import Embedded as Embedded
    from ..collection import RetrievalWarning as RetrievalWarning
    from ..collection import StoreWarning as StoreWarning
    from ..collection import check_writable as check_writable
    from ..search import FaissIndex as FaissIndex
    from .clusters import SHEET as SHEET
    from .clusters import Clusters as Clusters
    from .clusters import Grouping as Grouping
    from .clusters import group as group
    from .embedding import Progress as Progress
    from .embedding import SkippedImage as SkippedImage
    from .embedding import save_embeddings as save_embeddings
    from .pictures import placeholder as placeholder
    from .pictures import thumbnail as thumbnail
    from .query import RADIUS as RADIUS
    from .query import Answer as Answer
    from .query import Gallery as Gallery
    from .trained import TrainedRun as TrainedRun
    from .trained import load_run as load_run

__getattr__ = lazily(__name__, "train", "load_run", ("matplotlib", "pydantic", "sklearn", "torchvision"))
