"""Search with a trained network: embed, index, query, cluster and browse images."""

from typing import TYPE_CHECKING

from pml_ext.tool import lazily

if TYPE_CHECKING:
    from .clusters import SHEET as SHEET
    from .clusters import Clusters as Clusters
    from .clusters import Grouping as Grouping
    from .clusters import group as group
    from .collection import Collection as Collection
    from .collection import Embedded as Embedded
    from .collection import RetrievalWarning as RetrievalWarning
    from .collection import StoreWarning as StoreWarning
    from .collection import check_writable as check_writable
    from .embedding import Progress as Progress
    from .embedding import SkippedImage as SkippedImage
    from .embedding import save_embeddings as save_embeddings
    from .faiss_index import FaissIndex as FaissIndex
    from .pictures import placeholder as placeholder
    from .pictures import thumbnail as thumbnail
    from .query import RADIUS as RADIUS
    from .query import Answer as Answer
    from .query import Gallery as Gallery
    from .trained import TrainedRun as TrainedRun
    from .trained import load_run as load_run

__getattr__ = lazily(__name__, "train", "load_run", ("matplotlib", "pydantic", "sklearn", "torchvision"))
