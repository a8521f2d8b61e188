"""Retrieval and clustering metrics, nearest-neighbor searches, k-means, and figures."""

from typing import TYPE_CHECKING

from ..lazy import lazily

if TYPE_CHECKING:
    from .calculator import Evaluation as Evaluation
    from .calculator import RetrievalAccuracyCalculator as RetrievalAccuracyCalculator
    from .classification import nearest_class_mean as nearest_class_mean
    from .classification import related_means as related_means
    from .clustering import ami as ami
    from .clustering import kmeans as kmeans
    from .clustering import nmi as nmi
    from .clustering import pairwise_f1 as pairwise_f1
    from .clustering import purity as purity
    from .listed import scores_of_pairs as scores_of_pairs
    from .listed import scores_of_triplets as scores_of_triplets
    from .listed import triplet_accuracy as triplet_accuracy
    from .listed import tuple_metrics as tuple_metrics
    from .metrics import class_means as class_means
    from .neighbors import NearestNeighbors as NearestNeighbors
    from .neighbors import Search as Search
    from .neighbors import default_neighbors as default_neighbors
    from .neighbors import has_faiss as has_faiss
    from .neighbors import learned_metric as learned_metric
    from .neighbors import nearest_of as nearest_of
    from .neighbors import neighbors_under as neighbors_under
    from .neighbors import reranked_under as reranked_under
    from .pairs import VerificationPairs as VerificationPairs
    from .pairs import listed_pairs as listed_pairs
    from .pairs import pairs_of_classes as pairs_of_classes
    from .reranking import KReciprocal as KReciprocal
    from .reranking import QueryExpansion as QueryExpansion
    from .reranking import Reranking as Reranking
    from .sampling import some_of_each_class as some_of_each_class
    from .verification import best_threshold as best_threshold
    from .verification import pair_scores as pair_scores
    from .verification import verification_metrics as verification_metrics
    from .verification import verify as verify

__getattr__ = lazily(__name__, "train", "evaluation", ("sklearn",))
