from .copies import CopiesService as CopiesService, CopyKind as CopyKind, FoundCopies as FoundCopies
from .images import (
    EmbeddedImages as EmbeddedImages,
    Embedder as Embedder,
    ImageCluster as ImageCluster,
    ImageClusters as ImageClusters,
)
from .mirror import Changes as Changes, Mirror as Mirror, StoresService as StoresService
from .parts import (
    EmbeddedRows as EmbeddedRows,
    FileEmbedder as FileEmbedder,
    PartsService as PartsService,
    RayWorkers as RayWorkers,
    RowsOfFolder as RowsOfFolder,
    Written as Written,
)
from .recall_sample import RecallSample as RecallSample
from .run import (
    EmbeddingListener as EmbeddingListener,
    FitService as FitService,
    RetrievalWarning as RetrievalWarning,
    SearchedRun as SearchedRun,
    SearchService as SearchService,
)
from .stores import (
    Numbers as Numbers,
    Rows as Rows,
    SearchFilter as SearchFilter,
    SearchResult as SearchResult,
    Store as Store,
    Vectors as Vectors,
)
