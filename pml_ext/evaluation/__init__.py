"""Metrics of retrieval and clustering, neighbors under a learned metric, clustering, figures."""

from typing import TYPE_CHECKING

from ..lazy import lazily

if TYPE_CHECKING:
    from .calculator import Evaluation, RetrievalAccuracyCalculator
    from .classification import nearest_class_mean, related_means
    from .clustering import ami, kmeans, nmi, pairwise_f1, purity
    from .metrics import class_means
    from .neighbors import (
        NearestNeighbors,
        Search,
        default_neighbors,
        has_faiss,
        learned_metric,
        neighbors_under,
        reranked_under,
    )
    from .sampling import some_of_each_class

__getattr__ = lazily(__name__, "train", "evaluation", ("sklearn",))

__all__ = [
    "Evaluation",
    "NearestNeighbors",
    "RetrievalAccuracyCalculator",
    "Search",
    "ami",
    "class_means",
    "default_neighbors",
    "has_faiss",
    "kmeans",
    "learned_metric",
    "nearest_class_mean",
    "neighbors_under",
    "nmi",
    "pairwise_f1",
    "purity",
    "related_means",
    "reranked_under",
    "some_of_each_class",
]
