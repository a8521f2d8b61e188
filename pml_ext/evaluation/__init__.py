"""Metrics, neighbours under a learned metric, clustering, figures."""

from ..errors import needs_extra

with needs_extra("train", "evaluation"):
    from .calculator import RetrievalAccuracyCalculator, retrieval_metrics
    from .clustering import kmeans, pairwise_f1, purity
    from .neighbours import (
        NearestNeighbours,
        Search,
        default_neighbours,
        has_faiss,
        learned_metric,
        neighbours_under,
        reranked_under,
    )

__all__ = [
    "NearestNeighbours",
    "RetrievalAccuracyCalculator",
    "Search",
    "default_neighbours",
    "has_faiss",
    "kmeans",
    "learned_metric",
    "neighbours_under",
    "pairwise_f1",
    "purity",
    "reranked_under",
    "retrieval_metrics",
]
