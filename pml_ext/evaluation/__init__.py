"""Metrics, neighbours under a learned metric, clustering, figures."""

from ..errors import needs_extra

with needs_extra("train", "evaluation"):
    from .calculator import RetrievalAccuracyCalculator, retrieval_metrics
    from .clustering import kmeans, pairwise_f1, purity
    from .neighbours import NearestNeighbours, default_neighbours, neighbours_under

__all__ = [
    "NearestNeighbours",
    "RetrievalAccuracyCalculator",
    "default_neighbours",
    "kmeans",
    "neighbours_under",
    "pairwise_f1",
    "purity",
    "retrieval_metrics",
]
